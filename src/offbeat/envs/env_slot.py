"""One environment of a vector: steps it, checks its results, and names episode and step in faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from offbeat.envs.infos import as_mapping, success_of
from offbeat.envs.reader import InvalidValue, NotFinite, Reader, short_repr
from offbeat.errors import EnvironmentFault, describe
from offbeat.masks import USUAL_KEY
from offbeat.streams import episode_seed
from offbeat.types import Array, EnvSpec, Episode, Observation

MAX_REWARD = float(np.finfo(np.float32).max)
"""Rewards are stored as float32, so they must fit into it."""

MAX_REPLAYED_ACTIONS = 100_000
"""A longer episode is not replayed on resume, so that the size of a checkpoint stays bounded."""


def fault(name: str, env: int, episode: int, seed: int | None, step: int | None, problem: str) -> EnvironmentFault:
    """An EnvironmentFault that names environment, episode (with its reset seed) and step."""
    seeded = f" (reset seed {seed})" if seed is not None else ""
    when = f"step {step}" if step is not None else "reset"
    return EnvironmentFault(
        f"environment {env} ({name}), episode {episode}{seeded}, {when}: {problem}. "
        "Correct the environment, or wrap it with env_wrapper; check-env finds more such problems"
    )


def as_reward(reward: Any) -> float:
    """Converts a reward to a float that fits into float32; raises InvalidValue otherwise."""
    plain = reward.item() if isinstance(reward, np.ndarray | np.generic) and reward.size == 1 else reward
    if isinstance(plain, str | bytes | bytearray | memoryview):  # float() would parse it
        raise InvalidValue(f"the reward is a {type(reward).__name__}, not a number: {short_repr(reward)}")
    try:
        number = float(reward) if np.ndim(reward) == 0 else None
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError) as error:
        raise InvalidValue(f"the reward is a {type(reward).__name__}, not a number: {short_repr(reward)}") from error
    if number is None:
        raise InvalidValue(f"the reward has shape {np.shape(reward)}, but it must be one number: {short_repr(reward)}")
    if not -MAX_REWARD <= number <= MAX_REWARD:
        rule = "be finite" if not math.isfinite(number) else "fit into float32"
        raise NotFinite(f"the reward is {number}; it must {rule}")
    return number


def as_flag(flag: Any, name: str) -> bool:
    """Converts `terminated` or `truncated` to a bool: a bool of Python or NumPy, 1 or 0; else raises InvalidValue."""
    if isinstance(flag, bool | np.bool_ | int | np.integer) and flag in (0, 1):
        return bool(flag)
    if isinstance(flag, np.ndarray) and flag.shape == () and flag.dtype.kind == "b":
        return bool(flag)
    raise InvalidValue(f"{name} is {short_repr(flag)}, but it must be True or False")


def check_info(info: Any) -> None:
    """Raises InvalidValue if info is not a dict, as Gymnasium requires."""
    if not isinstance(info, dict):
        raise InvalidValue(f"info is {short_repr(info)}, but it must be a dict (it may be empty)")


def find_method(env: Any, name: str) -> Callable[..., Any] | None:
    """A method of an environment, or of one inside its wrappers."""
    try:
        found = env.get_wrapper_attr(name)
    except AttributeError:
        return None
    return found if callable(found) else None


def can_save_state(env: Any) -> bool:
    return find_method(env, "save_state") is not None and find_method(env, "load_state") is not None


def call_env(owner: Any, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls an environment's code, with `owner.stepping` True while it runs.

    While `stepping` is True, an exception from a signal handler leaves this call as if the environment had raised it.
    """
    try:
        owner.stepping = True
        return call(*arguments, **options)
    finally:
        owner.stepping = False


class EnvSlot:
    """Environment `index` of a vector: steps it, checks its results and tracks its episode.

    number: the environment's number in the whole run, for seeds and messages.
    steps: valid steps of this episode. faults: faults in a row, without a valid step in between.
    actions: (steps, A) the actions since the reset, in the policy's format (in [-1, 1], or indices); empty if the
    environment can save its state, or if the episode is too long to be replayed.
    """

    def __init__(
        self,
        env: Any,
        index: int,
        number: int,
        spec: EnvSpec,
        reader: Reader,
        seed: int,
        purpose: str,
        limit: int | None,
    ) -> None:
        self.index, self.number, self.name = index, number, spec.name
        self.episode, self.steps, self.total_reward, self.faults = -1, 0, 0.0, 0
        self.stepping = False
        self.info: Any = None  # of the last step or reset
        self.gives_mask = False  # whether info had an action mask at the start of the episode
        self._set_env(env)
        self._reader, self._run_seed, self._purpose, self._limit = reader, seed, purpose, limit
        self._actions: Array = np.empty((0, spec.action_size), np.float32)

    @property
    def seed(self) -> int:
        return episode_seed(self._run_seed, self.number, self.episode, self._purpose)

    @property
    def actions(self) -> Array:
        return self._actions[: self.steps if self.steps <= MAX_REPLAYED_ACTIONS else 0]

    @property
    def finished(self) -> Episode:
        info = as_mapping(self.info)
        return Episode(self.number, self.episode, self.total_reward, self.steps, success_of(info), info)

    def begin(self, episode: int, into: Observation) -> None:
        """Resets the environment for `episode` and writes its first observation into this slot's row."""
        self.episode, self.steps, self.total_reward = episode, 0, 0.0
        seed = self.seed
        try:
            result = call_env(self, self.env.reset, seed=seed)
        except Exception as error:
            raise self.fault(f"reset raised {describe(error)}", None) from error
        if type(result) is not tuple or len(result) != 2:
            raise self.fault(f"reset returned {short_repr(result)}, but it must return (observation, info)", None)
        self.info = result[1]
        self.gives_mask = isinstance(result[1], dict) and USUAL_KEY in result[1]
        try:
            check_info(result[1])
            self._reader.read(*result, into, self.index)
            self._reader.read_mask(*result, into, self.index)
            self._reader.check_finite(into, self.index)
        except InvalidValue as error:
            raise self.fault(str(error), None) from error

    def step(self, action: Array, scaled: Array, into: Observation) -> tuple[float, bool, bool]:
        """Steps with `scaled`, stores `action` (A,), and writes the true next observation into this slot's row.

        `check` tests whether that is finite, because one test of all rows is faster than one per row.
        """
        try:
            try:  # `call_env` inlined: the extra call would take longer than everything else here
                self.stepping = True
                result = self.env.step(scaled)
            finally:
                self.stepping = False
        except Exception as error:
            raise self.fault(f"step raised {describe(error)}", self.steps) from error
        if type(result) is not tuple or len(result) != 5:
            raise self.fault(
                f"step returned {short_repr(result)}, but it must return (observation, reward, terminated, truncated, "
                "info)",
                self.steps,
            )
        raw, reward, terminated, truncated, info = result
        try:
            if type(reward) is not float or not -MAX_REWARD <= reward <= MAX_REWARD:
                reward = as_reward(reward)
            if terminated is not False and terminated is not True:
                terminated = as_flag(terminated, "terminated")
            if truncated is not False and truncated is not True:
                truncated = as_flag(truncated, "truncated")
            if type(info) is not dict:
                check_info(info)
            self._reader.read(raw, info, into, self.index)
            if into.mask is not None:
                self._reader.read_mask(raw, info, into, self.index, terminated)
        except InvalidValue as error:
            raise self.fault(str(error), self.steps) from error
        if not self.can_save_state and self.steps < MAX_REPLAYED_ACTIONS:
            self._store_action(action)
        self.steps += 1
        self.info = info
        self.total_reward += reward
        if self._limit is not None and self.steps >= self._limit:
            truncated = True
        return reward, terminated, truncated

    def check(self, observation: Observation) -> None:
        """Raises a fault if this slot's row is not finite after a step; the step then does not count."""
        try:
            self._reader.check_finite(observation, self.index)
        except NotFinite as error:
            self.steps -= 1
            raise self.fault(str(error), self.steps) from error

    def replace(self, remake: Callable[[int, Any], Any]) -> None:
        """Closes the environment and replaces it by a new one."""
        # The environment already faulted, and that fault is reported; an error in its close adds nothing.
        with suppress(Exception):
            call_env(self, self.env.close)
        try:
            env = call_env(self, remake, self.index, self.env)
        except Exception as error:
            raise self.fault(f"creating it again raised {type(error).__name__}: {error}", None) from error
        self._set_env(env)

    def _set_env(self, env: Any) -> None:
        self.env, self.can_save_state = env, can_save_state(env)
        self.save_state, self.load_state = find_method(env, "save_state"), find_method(env, "load_state")

    def fault(self, problem: str, step: int | None) -> EnvironmentFault:
        return fault(self.name, self.number, self.episode, self.seed, step, problem)

    def _store_action(self, action: Array) -> None:
        if self.steps >= len(self._actions):
            grown = np.empty((max(64, 2 * self.steps), len(action)), np.float32)
            grown[: self.steps] = self._actions[: self.steps]
            self._actions = grown
        self._actions[self.steps] = action
