"""Gymnasium's environments and vector environments as wrappers of either framework, stepped by our own vectors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from offbeat.compat.skrl.arrays import Arrays
from offbeat.compat.skrl.envs.wrappers.wrapper import TRUE_STEP, AnyWrapper, TrueStep
from offbeat.compat.skrl.framework import logger
from offbeat.compat.skrl.utils.spaces.functions import SpaceFunctions
from offbeat.compat.skrl.utils.spaces.sizes import compute_space_size, leaves
from offbeat.envs.batched import BatchedVector
from offbeat.envs.inline import InlineVector
from offbeat.envs.reader import all_finite
from offbeat.errors import OffbeatError, SpaceError
from offbeat.layout import Layout, Leaf
from offbeat.types import Array, EnvSpec, Observation, Step

STATE = "offbeat/state"
"""The key in info under which a single environment's privileged state reaches our vector."""


class OwnUnits(EnvSpec):
    """An environment whose actions are in its own units: they reach it as they were drawn, and are not clipped."""

    def to_environment(self, action: Array) -> Array:
        return action.astype(self.action_dtype).reshape(action.shape[:-1] + self.action_shape)

    def from_environment(self, action: Array) -> Array:
        return np.asarray(action, np.float32).reshape(-1, self.action_size)


class StateInInfo(gymnasium.Wrapper):
    """Puts an environment's `state()` into info, so that the final state of an episode is not lost in the reset."""

    def __init__(self, env: Any, arrays: Arrays) -> None:
        super().__init__(env)
        self._arrays = arrays

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return observation, {**info, STATE: self._state()}

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, STATE: self._state()}

    def _state(self) -> Array:
        own: Any = self.unwrapped
        return self._arrays.get(flat_values(self._arrays, own.state_space, own.state(), "cpu"))[0].astype(np.float32)


def flat_values(arrays: Arrays, space: gymnasium.Space, values: Any, device: Any) -> Any:
    """Values of a space as one tensor (batch, size)."""
    functions = SpaceFunctions(arrays)
    return functions.flatten_tensorized_space(functions.tensorize_space(space, values, device=device))


class GymnasiumVector(AnyWrapper):
    """`GymnasiumWrapper` of either framework. flag_dtype: of terminated and truncated.

    One Gymnasium environment, or a VectorEnv in any autoreset mode.

    Each episode of a single environment is reset with a seed of its own, derived from that of `set_seed`.
    """

    flag_dtype: type = np.bool_

    def __init__(self, env: Any) -> None:
        AnyWrapper.__init__(self, env)
        self._vectorized = isinstance(env, gymnasium.vector.VectorEnv)
        spec = _spec(env, self.observation_space, self.action_space, None if self._vectorized else self.state_space)
        options: dict[str, Any] = {"seed": self.arrays.seed, "purpose": "train", "limit": None}
        self._vector: Any
        if self._vectorized:
            self._vector = BatchedVector(env, spec, **options)
        else:
            own = StateInInfo(env, self.arrays) if spec.state is not None else env
            self._vector = InlineVector([own], spec, **options)
        self._shown: Observation | None = None  # the last observation that was returned
        self._next: Observation | None = None  # the input of the next action, where the vector has begun an episode
        self._episode = 0

    @property
    def num_envs(self) -> int:
        return int(self._env.num_envs) if self._vectorized else 1

    @property
    def observation_space(self) -> gymnasium.Space:
        return self._env.single_observation_space if self._vectorized else self._env.observation_space

    @property
    def action_space(self) -> gymnasium.Space:
        return self._env.single_action_space if self._vectorized else self._env.action_space

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        drawn = self.arrays.get(actions).astype(np.float32, copy=False).reshape(self.num_envs, -1)
        if not all_finite(drawn):
            row = int(np.argwhere(~np.isfinite(drawn))[0, 0])
            raise OffbeatError(
                f"the action for environment {row} is {drawn[row].tolist()}, but actions must be finite; NaN means "
                "that the policy's weights have diverged: lower learning_rate, or set grad_norm_clip"
            )
        step: Step = self._vector.step(drawn)
        self._episode = int(step.episode[0])
        if self._vectorized:
            self._shown, infos = step.observation, self._vector_infos(step)
        else:
            self._shown, self._next = step.next, step.observation if step.finished else None
            infos = dict(step.finished[0].info if step.finished else self._vector.last_infos[0])
        reward = self._tensor(step.reward.astype(np.float32).reshape(-1, 1))
        terminated, truncated = (
            self._tensor(each.astype(self.flag_dtype).reshape(-1, 1)) for each in (step.terminated, step.truncated)
        )
        return self._tensor(self._shown.vector), reward, terminated, truncated, infos

    def _vector_infos(self, step: Step) -> dict[str, Any]:
        infos = dict(self._vector.last_infos)
        if step.next is not step.observation or not step.valid.all():
            infos[TRUE_STEP] = TrueStep(self._tensor(step.next.vector), np.array(step.valid))
        return infos

    def state(self) -> Any:
        if self.state_space is None:
            return None
        if self._vectorized:
            return flat_values(self.arrays, self.state_space, self._unwrapped.state(), self.device)
        return None if self._shown is None else self._tensor(self._shown.state)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        """A VectorEnv resets its environments itself: after the first call, its last observations are returned."""
        if self._shown is None:
            self._shown = self._vector.reset()
        elif self._next is not None:  # the vector began the next episode when the last one ended
            self._shown, self._next = self._next, None
        elif not self._vectorized:
            self._shown = self._vector.reset(self._episode + 1)
        infos = dict(self._vector.last_infos if self._vectorized else self._vector.last_infos[0])
        return self._tensor(self._shown.vector), infos

    def _tensor(self, array: Array) -> Any:
        return self.arrays.put(array, self.device)

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """Does nothing where the environment has no render_mode."""
        if getattr(self._env, "render_mode", None) is None:
            return None
        return self._env.call("render", *args, **kwargs) if self._vectorized else self._env.render(*args, **kwargs)

    def close(self) -> None:
        self._vector.close()

    # Resume.

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Where each episode is, as arrays and JSON values."""
        found: tuple[dict[str, Array], dict[str, Any]] = self._vector.snapshot()
        return found

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Continues from a snapshot, in place of the first `reset`."""
        self._shown, messages = self._vector.restore(arrays, values)
        for message in messages:
            logger.warning(message)
        assert self._shown is not None
        self._episode = values["envs"][0]["episode"] if values["envs"] else 0
        return self._tensor(self._shown.vector), {}


def _layout(space: gymnasium.Space, what: str) -> Layout:
    found = []
    for path, leaf in leaves(space):
        if not isinstance(leaf, spaces.Box):
            raise SpaceError(f"{what} has {leaf} at {path or 'its top'}; SAC takes Box, and Dict and Tuple of Box")
        found.append(Leaf(path, "box", leaf.shape, str(leaf.dtype)))
    return Layout(tuple(found))


def _spec(
    env: Any, observation_space: gymnasium.Space, action_space: gymnasium.Space, state_space: gymnasium.Space | None
) -> OwnUnits:
    if not isinstance(action_space, spaces.Box):
        raise SpaceError(
            f"the action space is {action_space}; SAC takes Box actions: wrap the environment so that it has them"
        )
    state = None
    if state_space is not None:
        state = Layout((Leaf((), "box", (compute_space_size(state_space, occupied_size=True),), "float32"),))
    known = getattr(env, "spec", None)
    return OwnUnits(
        name=str(getattr(known, "id", None) or type(env).__name__),
        layout=_layout(observation_space, "the observation space"),
        action_low=tuple(action_space.low.reshape(-1).tolist()),
        action_high=tuple(action_space.high.reshape(-1).tolist()),
        action_shape=action_space.shape,
        action_dtype=str(action_space.dtype),
        state_key=None if state is None else STATE,
        state_from=None if state is None else "info",
        state=state,
    )
