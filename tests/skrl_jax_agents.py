"""Small skrl agents in JAX: flax models of a user, with the classes of `offbeat.compat.skrl`."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from offbeat.compat.skrl.agents.jax.sac import SAC
from offbeat.compat.skrl.memories.jax import RandomMemory
from offbeat.compat.skrl.models.jax import DeterministicMixin, GaussianMixin, Model

OBSERVATIONS = gym.spaces.Box(-1.0, 1.0, (3,))
ACTIONS = gym.spaces.Box(-2.0, 2.0, (2,))
STATES = gym.spaces.Box(-1.0, 1.0, (4,))
NAMES = ("policy", "critic_1", "critic_2", "target_critic_1", "target_critic_2")
HIDDEN = 8


def joined(inputs: dict[str, Any], *others: Any) -> jax.Array:
    parts = [inputs["observations"], inputs["states"], *others]
    return jnp.concatenate([part for part in parts if part is not None], 1)


class Policy(GaussianMixin, Model):
    """A policy that uses observations and, where there are some, states. mixin: for GaussianMixin."""

    mixin: Any = ()

    def __init__(self, mixin: Any = (), **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        self.mixin = mixin
        GaussianMixin.__init__(self, **dict(mixin))

    @nn.compact
    def __call__(self, inputs: dict[str, Any], role: str) -> Any:
        x = nn.Dense(self.num_actions)(nn.relu(nn.Dense(HIDDEN)(joined(inputs))))
        log_std = self.param("log_std", lambda _: jnp.full(self.num_actions, -0.5))
        return 2.0 * nn.tanh(x), {"log_std": log_std}


class Critic(DeterministicMixin, Model):
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)

    def setup(self) -> None:
        self.first, self.last = nn.Dense(HIDDEN), nn.Dense(1)

    def __call__(self, inputs: dict[str, Any], role: str) -> Any:
        return self.last(nn.relu(self.first(joined(inputs, inputs["taken_actions"])))), {}


def make_models(states: Any = None, seed: int = 0, dtype: Any = np.float32, **mixin: Any) -> dict[str, Any]:
    """The five models, with the same weights for the same seed."""
    spaces = {"observation_space": OBSERVATIONS, "state_space": states, "action_space": ACTIONS, "device": "cpu"}
    models: dict[str, Any] = {"policy": Policy(mixin=tuple(mixin.items()), **spaces)}
    models |= {name: Critic(**spaces) for name in NAMES[1:]}
    for index, (name, model) in enumerate(models.items()):
        model.init_state_dict(role=name)
        rng = np.random.default_rng([seed, index])
        new = jax.tree.map(
            lambda each, rng=rng: np.asarray(each + rng.normal(0, 0.3, each.shape), dtype), model.state_dict.params
        )
        model.state_dict = model.state_dict.replace(params=new)
    return models


def make_agent(
    directory: Any,
    memory: Any = None,
    models: Any = None,
    states: Any = None,
    experiment: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """A small agent whose memory has its tensors. settings: of SAC_CFG."""
    quiet = {"directory": str(directory), "experiment_name": "run", "write_interval": 0, "checkpoint_interval": 0}
    agent = SAC(
        models=make_models(states=states) if models is None else models,
        memory=RandomMemory(memory_size=64, replacement=True) if memory is None else memory,
        observation_space=OBSERVATIONS,
        state_space=states,
        action_space=ACTIONS,
        device="cpu",
        cfg={"batch_size": 8, "experiment": {**quiet, **(experiment or {})}, **settings},
    )
    agent.init()
    agent.enable_training_mode(True)
    return agent


def transitions(count: int, seed: int = 0, states: bool = False) -> dict[str, Any]:
    """Random transitions for `add_samples`, some of them terminated."""
    rng = np.random.default_rng(seed)
    sizes = {"observations": 3, "actions": 2, "rewards": 1, "next_observations": 3}
    sizes |= {"states": 4, "next_states": 4} if states else {}
    rows: dict[str, Any] = {name: rng.standard_normal((count, size)).astype(np.float32) for name, size in sizes.items()}
    return rows | {"terminated": rng.random((count, 1)) < 0.3}


def weights(agent: Any) -> dict[str, np.ndarray]:
    """A copy of all parameters of all models."""
    return {
        f"{name}{jax.tree_util.keystr(path)}": np.array(each)
        for name, model in agent.models.items()
        for path, each in jax.tree_util.tree_leaves_with_path(model.state_dict.params)
    }
