"""Steps a single environment with random actions and records everything that it does wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.envs.env_slot import as_flag, as_reward
from offbeat.envs.reader import InvalidValue, LeafReader, short_repr
from offbeat.envs.spaces import (
    ObservationLayouts,
    action_problems,
    make_spec,
    observation_problems,
    read_action_space,
    read_observation_space,
)
from offbeat.layout import Layout, Leaf
from offbeat.masks import USUAL_KEY, BadMask, as_mask
from offbeat.types import Array

FindingTuple = tuple[Any, str, str]
"""Severity, what, remedy."""


class StopTrial(Exception):
    """The environment cannot be stepped any further; a finding gives the reason."""


@dataclass
class Trial:
    """The result of a trial. record: (method, result) of each call, comparable bit for bit. info: of the last call.

    endless: no episode ended. completed: all steps were taken.
    """

    findings: list[FindingTuple] = field(default_factory=list)
    record: list[tuple[str, Any]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    endless: bool = True
    completed: bool = False
    info: Any = None
    _kinds: set[str] = field(default_factory=set)

    def add_finding(self, kind: str, severity: str, what: str, remedy: str) -> None:
        """Adds a finding, unless there is one of this kind already."""
        if kind not in self._kinds:
            self._kinds.add(kind)
            self.findings.append((severity, what, remedy))


def run_trial(env: Any, steps: int, seed: int, limit: int | None, mask_key: str | None = None) -> Trial:
    """Steps `env` with random allowed actions from fixed seeds; episodes also end after `limit` steps."""
    trial = Trial(endless=limit is None)
    act = RandomActor(env.action_space, seed, mask_key, trial)
    try:
        _run_trial(env, steps, seed, limit, trial, ObservationChecker(env.observation_space, trial, mask_key), act)
        trial.completed = True
    except StopTrial:
        pass
    return trial


def _run_trial(
    env: Any,
    steps: int,
    seed: int,
    limit: int | None,
    trial: Trial,
    check_observation: ObservationChecker,
    act: RandomActor,
) -> None:
    raw, length, episode = _reset(env, seed, trial), 0, 0
    check_observation(raw, "after reset")
    for step in range(steps):
        before, kept = raw, _freeze(raw)
        raw, terminated, truncated = _step(env, act(raw), step, trial)
        if _freeze(before) != kept:
            trial.add_finding(
                "alias",
                "warning",
                f"step {step} changed the previously returned observation: both use the same memory",
                "return a copy (observation.copy()); Offbeat copies at once, but wrappers and your own code may not",
            )
        check_observation(raw, f"at step {step}")
        length += 1
        if terminated or truncated or length == limit:
            trial.endless = False
            episode, length = episode + 1, 0
            raw = _reset(env, seed + episode, trial)
            check_observation(raw, "after reset")


def _reset(env: Any, seed: int, trial: Trial) -> Any:
    try:
        try:
            result = env.reset(seed=seed)
        except TypeError as error:
            if "seed" not in str(error):
                raise
            trial.add_finding(
                "seed",
                "error",
                f"reset does not take a seed: {error}",
                "declare def reset(self, *, seed=None, options=None) and call super().reset(seed=seed)",
            )
            result = env.reset()
    except Exception as error:
        trial.add_finding("reset", "error", f"reset raised {type(error).__name__}: {error}", "correct reset")
        raise StopTrial from error
    if type(result) is not tuple or len(result) != 2 or not isinstance(result[1], dict):
        trial.add_finding(
            "reset", "error", f"reset returned {short_repr(result)}", "return (observation, info), info being a dict"
        )
        raise StopTrial
    trial.record.append(("reset", _freeze(result[0])))
    trial.info = result[1]
    return result[0]


def _step(env: Any, action: Any, step: int, trial: Trial) -> tuple[Any, bool, bool]:
    try:
        result = env.step(action)
    except Exception as error:
        what = f"step {step} raised {type(error).__name__}: {error}"
        trial.add_finding("step", "error", what, f"correct step; the action was {short_repr(action)}")
        raise StopTrial from error
    if type(result) is not tuple or len(result) != 5:
        old = isinstance(result, tuple) and len(result) == 4
        four = "step returned 4 values, which is the old API (observation, reward, done, info)"
        trial.add_finding(
            "step",
            "error",
            four if old else f"step returned {short_repr(result)}",
            "return (observation, reward, terminated, truncated, info): terminated if the task ended, truncated if "
            "only the time limit was reached",
        )
        raise StopTrial
    raw, reward, terminated, truncated, info = result
    try:
        reward = as_reward(reward)
        terminated, truncated = as_flag(terminated, "terminated"), as_flag(truncated, "truncated")
    except InvalidValue as error:
        trial.add_finding("outcome", "error", f"at step {step} {error}", "return a float and two bools")
        raise StopTrial from error
    if not isinstance(info, dict):
        trial.add_finding(
            "info", "error", f"step returned {short_repr(info)} as info", "return a dict (it may be empty)"
        )
    trial.info = info
    trial.rewards.append(reward)
    trial.record.append(("step", (_freeze(raw), reward, terminated, truncated)))
    return raw, terminated, truncated


class ObservationChecker:
    """Compares observations with their space; does nothing if the space is not supported."""

    def __init__(self, space: Any, trial: Trial, mask_key: str | None) -> None:
        self._trial = trial
        self._leaves: list[tuple[LeafReader, Any]] = []
        if not observation_problems(space, None, mask_key):
            for leaf in read_observation_space(space, None, mask_key).layout.leaves:
                self._leaves.append((LeafReader(leaf, slice(0, leaf.size), (), "observation"), leaf_space(space, leaf)))

    def __call__(self, raw: Any, when: str) -> None:
        for reader, space in self._leaves:
            try:
                value = reader.array(raw)
                if reader.leaf.kind == "discrete":
                    reader.write(raw, np.empty((1, reader.leaf.size), np.float32), 0)
            except InvalidValue as error:
                remedy = "return what observation_space declares"
                self._trial.add_finding("invalid", "error", f"{when} {error}", remedy)
                continue
            if reader.leaf.kind != "discrete":
                self._check_box(reader, space, value, when)

    def _check_box(self, reader: LeafReader, space: Any, value: Array, when: str) -> None:
        if not np.isfinite(value).all():
            what = f"{when} {reader.name} is not finite: {short_repr(value)}"
            remedy = "look for a division by zero, or an unstable simulation"
            self._trial.add_finding("finite", "error", what, remedy)
            return
        outside = np.argwhere((value < space.low) | (value > space.high))
        if len(outside):
            at = tuple(outside[0])
            self._trial.add_finding(
                f"bounds {reader.name}",
                "warning",
                f"{when} {reader.name}{[int(index) for index in at] if at else ''} is {value[at]}, outside its "
                f"declared [{space.low[at]}, {space.high[at]}]",
                "declare bounds that hold (they may be infinite), or clip",
            )
        if value.dtype != np.dtype(reader.leaf.dtype):
            what = f"{reader.name} is {value.dtype}, but declared {reader.leaf.dtype}"
            remedy = "no change is needed, because it is cast; astype in the environment avoids this note"
            self._trial.add_finding(f"dtype {reader.name}", "note", what, remedy)


def leaf_space(space: Any, leaf: Leaf) -> Any:
    for part in leaf.path:
        space = space.spaces[part]
    return space


class RandomActor:
    """Samples uniform allowed actions, in the same format as training.

    If the space is not supported, it uses the space's own `sample`.
    """

    def __init__(self, space: Any, seed: int, mask_key: str | None, trial: Trial) -> None:
        self._space, self._key, self._trial = space, mask_key, trial
        self._rng, self._spec = np.random.default_rng(seed), None
        if action_problems(space):
            space.seed(seed)
        else:
            self._spec = make_spec("", ObservationLayouts(Layout(()), None), read_action_space(space), None, None)

    def __call__(self, raw: Any) -> Any:
        if self._spec is None:
            return self._space.sample()
        mask = self._mask(raw, self._spec.counts) if self._spec.counts else None
        return self._spec.to_environment(self._spec.random_actions(self._rng, 1, mask))[0]

    def _mask(self, raw: Any, counts: tuple[int, ...]) -> Array | None:
        info = self._trial.info if isinstance(self._trial.info, dict) else {}
        if self._key is None:
            if USUAL_KEY in info:
                self._trial.add_finding(
                    "mask",
                    "note",
                    f"info has {USUAL_KEY!r}, but mask_key is not set, so forbidden actions are taken, too",
                    f"set mask_key={USUAL_KEY!r} (--mask-key {USUAL_KEY}) to take only allowed actions",
                )
            return None
        source = raw if isinstance(raw, dict) and self._key in raw else info
        try:
            return as_mask(source[self._key], counts)[None]
        except (BadMask, KeyError) as error:
            problem = "is missing" if isinstance(error, KeyError) else str(error)
            what = f"after {len(self._trial.rewards)} steps the mask {self._key!r} {problem}"
            self._trial.add_finding("mask", "error", what, "return it with every observation, in info or in the Dict")
            raise StopTrial from error


def _freeze(raw: Any) -> Any:
    """An immutable copy of an observation, comparable bit for bit."""
    if isinstance(raw, dict):
        return tuple((key, _freeze(raw[key])) for key in sorted(raw, key=str))
    if isinstance(raw, tuple | list):
        return tuple(_freeze(each) for each in raw)
    array = np.asarray(raw)
    return repr(raw) if array.dtype.kind == "O" else (array.shape, array.dtype.str, array.tobytes())
