"""Small skrl agents: models of a user, with the classes of `offbeat.compat.skrl` or of skrl itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from offbeat.compat import skrl as ours

OBSERVATIONS = gym.spaces.Box(-1.0, 1.0, (3,))
ACTIONS = gym.spaces.Box(-2.0, 2.0, (2,))
STATES = gym.spaces.Box(-1.0, 1.0, (4,))
NAMES = ("policy", "critic_1", "critic_2", "target_critic_1", "target_critic_2")


def model_classes(library: Any = ours, hidden: int = 8, **mixin: Any) -> SimpleNamespace:
    """A policy and a critic that use observations and, where there are some, states. mixin: for GaussianMixin."""

    def joined(inputs: dict[str, Any], *others: Any) -> torch.Tensor:
        parts = [inputs["observations"], inputs["states"], *others]
        return torch.cat([part for part in parts if part is not None], 1)

    class Policy(library.GaussianMixin, library.Model):  # type: ignore[name-defined,misc]
        def __init__(self, **spaces: Any) -> None:
            library.Model.__init__(self, device="cpu", **spaces)
            library.GaussianMixin.__init__(self, **mixin)
            self.net = nn.Sequential(
                nn.Linear(self.num_observations + self.num_states, hidden),
                nn.ReLU(),
                nn.Linear(hidden, self.num_actions),
            )
            self.log_std = nn.Parameter(torch.full((self.num_actions,), -0.5))

        def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
            return 2.0 * torch.tanh(self.net(joined(inputs))), {"log_std": self.log_std}

    class Critic(library.DeterministicMixin, library.Model):  # type: ignore[name-defined,misc]
        def __init__(self, **spaces: Any) -> None:
            library.Model.__init__(self, device="cpu", **spaces)
            library.DeterministicMixin.__init__(self)
            width = self.num_observations + self.num_states + self.num_actions
            self.net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

        def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
            return self.net(joined(inputs, inputs["taken_actions"])), {}

    return SimpleNamespace(Policy=Policy, Critic=Critic)


def make_models(library: Any = ours, states: Any = None, seed: int = 0, dtype: Any = torch.float32, **own: Any) -> Any:
    """The five models, with the same weights for the same seed."""
    classes, spaces = model_classes(library, **own), {"observation_space": OBSERVATIONS, "action_space": ACTIONS}
    torch.manual_seed(seed)
    kinds = (classes.Policy, *[classes.Critic] * 4)
    return {name: kind(**spaces, state_space=states).to(dtype) for name, kind in zip(NAMES, kinds, strict=True)}


def make_agent(
    directory: Any,
    memory: Any = None,
    models: Any = None,
    states: Any = None,
    experiment: dict[str, Any] | None = None,
    init: bool = True,
    **settings: Any,
) -> Any:
    """A small agent whose memory has its tensors. settings: of SAC_CFG."""
    quiet = {"directory": str(directory), "experiment_name": "run", "write_interval": 0, "checkpoint_interval": 0}
    agent = ours.SAC(
        models=make_models(states=states) if models is None else models,
        memory=ours.RandomMemory(memory_size=64, replacement=True) if memory is None else memory,
        observation_space=OBSERVATIONS,
        state_space=states,
        action_space=ACTIONS,
        device="cpu",
        cfg={"batch_size": 8, "experiment": {**quiet, **(experiment or {})}, **settings},
    )
    if init:
        agent.init()
        agent.enable_training_mode(True)
    return agent


def transitions(count: int, seed: int = 0, states: bool = False) -> dict[str, torch.Tensor]:
    """Random transitions for `add_samples`, some of them terminated."""
    rng = np.random.default_rng(seed)
    sizes = {"observations": 3, "actions": 2, "rewards": 1, "next_observations": 3}
    sizes |= {"states": 4, "next_states": 4} if states else {}
    rows: dict[str, Any] = {
        name: torch.from_numpy(rng.standard_normal((count, size)).astype(np.float32)) for name, size in sizes.items()
    }
    return rows | {"terminated": torch.from_numpy(rng.random((count, 1)) < 0.3)}


def weights(agent: Any) -> dict[str, torch.Tensor]:
    """A copy of all parameters of all models."""
    return {
        f"{name}.{key}": tensor.detach().clone()
        for name, model in agent.models.items()
        for key, tensor in model.state_dict().items()
    }


class Still(gym.Env):
    """An environment of so many steps: observations count them, rewards are 1; it ends, or is cut off.

    With a state space, its state is its step, negative.
    """

    def __init__(self, steps: int = 5, terminates: bool = False, state: bool = False) -> None:
        self.observation_space, self.action_space = OBSERVATIONS, ACTIONS
        self._steps, self._terminates, self._now = steps, terminates, 0
        self.taken: list[np.ndarray] = []
        if state:
            self.state_space = STATES

    def state(self) -> np.ndarray:
        return np.full(4, -self._now, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._now = 0
        return self._observation(), {"seed": seed}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._now += 1
        self.taken.append(np.array(action))
        over = self._now >= self._steps
        info = {"episode": {"height": torch.tensor(float(self._now)), "Own / depth": 2.0, "name": "x"}}
        return self._observation(), 1.0, over and self._terminates, over and not self._terminates, info

    def _observation(self) -> np.ndarray:
        return np.full(3, self._now, np.float32)


def still(count: int | None = None, mode: Any = AutoresetMode.NEXT_STEP, **options: Any) -> Any:
    """A wrapped `Still`, or a wrapped vector of some."""
    if count is None:
        return ours.wrap_env(Still(**options), verbose=False)
    make = lambda: Still(**options)  # noqa: E731
    return ours.wrap_env(SyncVectorEnv([make] * count, autoreset_mode=mode), verbose=False)
