"""One environment in its place: its episode, its step, and faults that name both."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from offbeat.envs.infos import as_mapping, success_of
from offbeat.envs.reader import NotFinite, Reader, Unfit, short
from offbeat.errors import EnvironmentFault, describe
from offbeat.masks import USUAL_KEY
from offbeat.streams import episode_seed
from offbeat.types import Array, EnvSpec, Episode, Observation

LARGEST = float(np.finfo(np.float32).max)
"""Rewards are stored as float32, so that is what they must fit into."""

MOST_ACTIONS = 100_000
"""An episode that is longer than this is not replayed on resume, so that what a checkpoint holds stays bounded."""


def fault(name: str, env: int, episode: int, seed: int | None, step: int | None, problem: str) -> EnvironmentFault:
    """An EnvironmentFault that says where: environment, episode (and how to repeat it), step."""
    seeded = f" (reset seed {seed})" if seed is not None else ""
    when = f"step {step}" if step is not None else "reset"
    return EnvironmentFault(
        f"environment {env} ({name}), episode {episode}{seeded}, {when}: {problem}. "
        "Correct the environment, or wrap it with env_wrapper; check-env looks for more of the kind"
    )


def as_reward(reward: Any) -> float:
    """A reward as a float that fits into float32; Unfit otherwise."""
    plain = reward.item() if isinstance(reward, np.ndarray | np.generic) and reward.size == 1 else reward
    if isinstance(plain, str | bytes | bytearray | memoryview):  # float() would read a number out of it
        raise Unfit(f"the reward is a {type(reward).__name__}, not a number: {short(reward)}")
    try:
        number = float(reward) if np.ndim(reward) == 0 else None
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError) as error:
        raise Unfit(f"the reward is a {type(reward).__name__}, not a number: {short(reward)}") from error
    if number is None:
        raise Unfit(f"the reward has shape {np.shape(reward)}, but it must be one number: {short(reward)}")
    if not -LARGEST <= number <= LARGEST:
        rule = "be finite" if not math.isfinite(number) else "fit into float32"
        raise NotFinite(f"the reward is {number}; it must {rule}")
    return number


def as_flag(flag: Any, name: str) -> bool:
    """`terminated` or `truncated` as a bool: True, False, NumPy's, and 1 and 0; Unfit otherwise."""
    if isinstance(flag, bool | np.bool_ | int | np.integer) and flag in (0, 1):
        return bool(flag)
    if isinstance(flag, np.ndarray) and flag.shape == () and flag.dtype.kind == "b":
        return bool(flag)
    raise Unfit(f"{name} is {short(flag)}, but it must be True or False")


def check_info(info: Any) -> None:
    """Raises Unfit if info is not what Gymnasium says it is."""
    if not isinstance(info, dict):
        raise Unfit(f"info is {short(info)}, but it must be a dict, if an empty one")


def method(env: Any, name: str) -> Callable[..., Any] | None:
    """A method of an environment, or of one inside its wrappers."""
    try:
        found = env.get_wrapper_attr(name)
    except AttributeError:
        return None
    return found if callable(found) else None


def saves_itself(env: Any) -> bool:
    return method(env, "save_state") is not None and method(env, "load_state") is not None


def run(owner: Any, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls an environment's own code, and tells by `owner.stepping` that it is running.

    Where `stepping` is true, an exception of a signal handler comes out of here, as if the environment had raised it.
    """
    try:
        owner.stepping = True
        return call(*arguments, **options)
    finally:
        owner.stepping = False


class Slot:
    """Environment `index` of a vector: steps it, checks what it returns, and knows how its episode came about.

    number: the environment's among all of the run, which seeds and messages speak of.
    steps: how many of this episode were good. faults: how many in a row, without a good step in between.
    actions: (steps, A) what `step` was given since the reset, as policies have it (in [-1, 1], or indices); none where
    the environment saves itself, or where the episode is too long to be replayed.
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
        self._info: Any = None  # of the last step
        self.gives_mask = False  # whether info had a mask of actions when the episode began
        self._take(env)
        self._reader, self._run_seed, self._purpose, self._limit = reader, seed, purpose, limit
        self._actions: Array = np.empty((0, spec.action_size), np.float32)

    @property
    def seed(self) -> int:
        return episode_seed(self._run_seed, self.number, self.episode, self._purpose)

    @property
    def actions(self) -> Array:
        return self._actions[: self.steps if self.steps <= MOST_ACTIONS else 0]

    @property
    def finished(self) -> Episode:
        info = as_mapping(self._info)
        return Episode(self.number, self.episode, self.total_reward, self.steps, success_of(info), info)

    def begin(self, episode: int, into: Observation) -> None:
        """Resets the environment for `episode`; its first observation goes into this slot's row."""
        self.episode, self.steps, self.total_reward = episode, 0, 0.0
        seed = self.seed
        try:
            result = run(self, self.env.reset, seed=seed)
        except Exception as error:
            raise self.fault(f"reset raised {describe(error)}", None) from error
        if type(result) is not tuple or len(result) != 2:
            raise self.fault(f"reset returned {short(result)}, but it must return (observation, info)", None)
        self.gives_mask = isinstance(result[1], dict) and USUAL_KEY in result[1]
        try:
            check_info(result[1])
            self._reader.read(*result, into, self.index)
            self._reader.read_mask(*result, into, self.index)
            self._reader.check_finite(into, self.index)
        except Unfit as error:
            raise self.fault(str(error), None) from error

    def step(self, action: Array, scaled: Array, into: Observation) -> tuple[float, bool, bool]:
        """Takes `scaled`, remembers `action` (A,), and puts the true next observation into this slot's row.

        Whether that is finite is left to `check`, because one look at all rows is faster than one at each.
        """
        try:
            try:  # as in `run`, whose call would take longer than all else here
                self.stepping = True
                result = self.env.step(scaled)
            finally:
                self.stepping = False
        except Exception as error:
            raise self.fault(f"step raised {describe(error)}", self.steps) from error
        if type(result) is not tuple or len(result) != 5:
            raise self.fault(
                f"step returned {short(result)}, but it must return (observation, reward, terminated, truncated, info)",
                self.steps,
            )
        raw, reward, terminated, truncated, info = result
        try:
            if type(reward) is not float or not -LARGEST <= reward <= LARGEST:
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
        except Unfit as error:
            raise self.fault(str(error), self.steps) from error
        if not self.saves_itself and self.steps < MOST_ACTIONS:
            self._remember(action)
        self.steps += 1
        self._info = info
        self.total_reward += reward
        if self._limit is not None and self.steps >= self._limit:
            truncated = True
        return reward, terminated, truncated

    def check(self, observation: Observation) -> None:
        """Raises a fault if this slot's row is not finite after a step, which then does not count."""
        try:
            self._reader.check_finite(observation, self.index)
        except NotFinite as error:
            self.steps -= 1
            raise self.fault(str(error), self.steps) from error

    def replace(self, remake: Callable[[int, Any], Any]) -> None:
        """Closes the environment and takes a new one in its place."""
        # It is given up because it failed, which is what gets told; that it cannot be closed either adds nothing.
        with suppress(Exception):
            run(self, self.env.close)
        try:
            env = run(self, remake, self.index, self.env)
        except Exception as error:
            raise self.fault(f"making it anew raised {type(error).__name__}: {error}", None) from error
        self._take(env)

    def _take(self, env: Any) -> None:
        self.env, self.saves_itself = env, saves_itself(env)
        self.save_state, self.load_state = method(env, "save_state"), method(env, "load_state")

    def fault(self, problem: str, step: int | None) -> EnvironmentFault:
        return fault(self.name, self.number, self.episode, self.seed, step, problem)

    def _remember(self, action: Array) -> None:
        if self.steps >= len(self._actions):
            grown = np.empty((max(64, 2 * self.steps), len(action)), np.float32)
            grown[: self.steps] = self._actions[: self.steps]
            self._actions = grown
        self._actions[self.steps] = action
