"""Tasks that need a memory, and settings that learn them: a cue that is seen once, and Pendulum without its velocity.

benchmarks/memory.py trains them with several seeds, and slow tests with one.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

DELAY = 20
"""Steps between the cue and the action that it decides."""


class Cue(gymnasium.Env[Any, Any]):
    """The first observation shows a cue, -1 or 1; `DELAY` steps later the action must have its sign.

    Observation: (the cue in the first step, else 0; 1 in the last step, else 0). Only the last action counts: the
    reward is its product with the cue, and `success` says whether it has the cue's sign. discrete: the actions are 0
    and 1, for -1 and 1.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, discrete: bool = False, delay: int = DELAY) -> None:
        self._discrete, self._delay = discrete, delay
        self.action_space = gymnasium.spaces.Discrete(2) if discrete else gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self._cue, self._step = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue, self._step = float(self.np_random.choice([-1.0, 1.0])), 0
        return np.float32([self._cue, 0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._step < self._delay:
            self._step += 1
            return np.float32([0, self._step == self._delay]), 0.0, False, False, {}
        chosen = 2.0 * int(action) - 1.0 if self._discrete else float(np.asarray(action).reshape(-1)[0])
        value = chosen * self._cue
        return np.zeros(2, np.float32), value, True, False, {"success": value > 0}


class WithoutVelocity(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Pendulum-v1 with the cosine and the sine of its angle alone."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[:2]


def cue(discrete: bool = False, delay: int = DELAY) -> Cue:
    return Cue(discrete, delay)


def pendulum() -> gymnasium.Env[Any, Any]:
    return WithoutVelocity(gymnasium.make("Pendulum-v1"))


def stacked_pendulum(steps: int = 3) -> gymnasium.Env[Any, Any]:
    """With the observations of the last steps in one, which tell the velocity without a memory."""
    return gymnasium.wrappers.FlattenObservation(gymnasium.wrappers.FrameStackObservation(pendulum(), steps))


PENDULUM: dict[str, Any] = {
    **{"total_steps": 40_000, "hidden": (64, 64), "updates_per_step": 0.25},
    **{"actor_schedule": "linear", "critic_schedule": "linear"},
}
PENDULUM_MEMORY: dict[str, Any] = {
    **{"network": "gru", "recurrent_size": 64, "sequence_length": 10, "burn_in": 4, "batch_size": 32},
}
"""For SAC, which learns 320 rows in an update with these, and 256 without."""

CUE: dict[str, Any] = {"total_steps": 20_000, "hidden": (32,), "updates_per_step": 0.2}
CUE_MEMORY: dict[str, Any] = {"network": "gru", "recurrent_size": 32, "sequence_length": 42, "batch_size": 32}
"""For SAC."""

CUE_ROLLOUTS: dict[str, Any] = {
    **{"env_kwargs": {"discrete": True}, "total_steps": 200_000, "num_envs": 8, "hidden": (32,)},
    **{"rollout_steps": 84, "epochs": 4, "minibatches": 4, "gamma": 0.9, "gae_lambda": 0.5},
    **{"learning_rate": 3e-3, "schedule": "linear", "entropy_coefficient": 0.01, "max_episode_steps": DELAY + 1},
}
CUE_ROLLOUTS_MEMORY: dict[str, Any] = {"network": "gru", "recurrent_size": 32, "sequence_length": 21}
"""For PPO and APPO. With a constant rate, a policy that was always right was now and then lost within a turn: all
rewards are equal then, and normalised advantages are noise. With a rate of 1e-3 and 16 environments, which make half as
many updates, two of five runs had not found the cue by the end."""

CUE_COLLECTORS: dict[str, Any] = {"collectors": 2, "num_envs": 16}
"""For APPO: each collector's rollout has the 8 environments that a rollout has without collectors."""
