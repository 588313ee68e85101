"""One run of random actions through a single environment, noting whatever it does wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.envs.reader import Part, Unfit, short
from offbeat.envs.slot import as_flag, as_reward
from offbeat.envs.spaces import (
    Seen,
    action_problems,
    make_spec,
    observation_problems,
    read_action_space,
    read_observation_space,
)
from offbeat.layout import Layout, Leaf
from offbeat.masks import USUAL_KEY, BadMask, as_mask
from offbeat.types import Array

Note = tuple[Any, str, str]
"""Severity, what, remedy."""


class Halt(Exception):
    """The environment cannot be stepped any further; why is among the findings."""


@dataclass
class Trial:
    """What a run showed. record: (what was called, what came back) for each call, comparable bit for bit.

    info: what the last call gave.
    """

    findings: list[Note] = field(default_factory=list)
    record: list[tuple[str, Any]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    endless: bool = True
    completed: bool = False
    info: Any = None
    _said: set[str] = field(default_factory=set)

    def say(self, kind: str, severity: str, what: str, remedy: str) -> None:
        """One finding of a kind is enough, however often it happens."""
        if kind not in self._said:
            self._said.add(kind)
            self.findings.append((severity, what, remedy))


def walk(env: Any, steps: int, seed: int, limit: int | None, mask_key: str | None = None) -> Trial:
    """Steps `env` with random actions from fixed seeds, which the mask allows; episodes also end at `limit`."""
    trial = Trial(endless=limit is None)
    act = Act(env.action_space, seed, mask_key, trial)
    try:
        _walk(env, steps, seed, limit, trial, Look(env.observation_space, trial, mask_key), act)
        trial.completed = True
    except Halt:
        pass
    return trial


def _walk(env: Any, steps: int, seed: int, limit: int | None, trial: Trial, look: Look, act: Act) -> None:
    raw, length, episode = _reset(env, seed, trial), 0, 0
    look(raw, "after reset")
    for step in range(steps):
        before, kept = raw, _freeze(raw)
        raw, terminated, truncated = _step(env, act(raw), step, trial)
        if _freeze(before) != kept:
            trial.say(
                "alias",
                "warning",
                f"step {step} changed the observation that it had returned before: both are the same memory",
                "return a copy (observation.copy()); Offbeat copies at once, but wrappers and your own code may not",
            )
        look(raw, f"at step {step}")
        length += 1
        if terminated or truncated or length == limit:
            trial.endless = False
            episode, length = episode + 1, 0
            raw = _reset(env, seed + episode, trial)
            look(raw, "after reset")


def _reset(env: Any, seed: int, trial: Trial) -> Any:
    try:
        try:
            result = env.reset(seed=seed)
        except TypeError as error:
            if "seed" not in str(error):
                raise
            trial.say(
                "seed",
                "error",
                f"reset does not take a seed: {error}",
                "declare def reset(self, *, seed=None, options=None) and call super().reset(seed=seed)",
            )
            result = env.reset()
    except Exception as error:
        trial.say("reset", "error", f"reset raised {type(error).__name__}: {error}", "correct reset")
        raise Halt from error
    if type(result) is not tuple or len(result) != 2 or not isinstance(result[1], dict):
        trial.say("reset", "error", f"reset returned {short(result)}", "return (observation, info), info being a dict")
        raise Halt
    trial.record.append(("reset", _freeze(result[0])))
    trial.info = result[1]
    return result[0]


def _step(env: Any, action: Any, step: int, trial: Trial) -> tuple[Any, bool, bool]:
    try:
        result = env.step(action)
    except Exception as error:
        what = f"step {step} raised {type(error).__name__}: {error}"
        trial.say("step", "error", what, f"correct step; the action was {short(action)}")
        raise Halt from error
    if type(result) is not tuple or len(result) != 5:
        old = isinstance(result, tuple) and len(result) == 4
        four = "step returned 4 values, which is the old API (observation, reward, done, info)"
        trial.say(
            "step",
            "error",
            four if old else f"step returned {short(result)}",
            "return (observation, reward, terminated, truncated, info): terminated where the task is over, truncated "
            "where only the time is",
        )
        raise Halt
    raw, reward, terminated, truncated, info = result
    try:
        reward = as_reward(reward)
        terminated, truncated = as_flag(terminated, "terminated"), as_flag(truncated, "truncated")
    except Unfit as error:
        trial.say("outcome", "error", f"at step {step} {error}", "return a float and two bools")
        raise Halt from error
    if not isinstance(info, dict):
        trial.say("info", "error", f"step returned {short(info)} as info", "return a dict, if an empty one")
    trial.info = info
    trial.rewards.append(reward)
    trial.record.append(("step", (_freeze(raw), reward, terminated, truncated)))
    return raw, terminated, truncated


class Look:
    """Compares observations with their space; silent where the space itself cannot be taken."""

    def __init__(self, space: Any, trial: Trial, mask_key: str | None) -> None:
        self._trial = trial
        self._parts: list[tuple[Part, Any]] = []
        if not observation_problems(space, None, mask_key):
            for leaf in read_observation_space(space, None, mask_key).layout.leaves:
                self._parts.append((Part(leaf, slice(0, leaf.size), (), "observation"), leaf_space(space, leaf)))

    def __call__(self, raw: Any, when: str) -> None:
        for part, space in self._parts:
            try:
                value = part.array(raw)
                if part.leaf.kind == "discrete":
                    part.write(raw, np.empty((1, part.leaf.size), np.float32), 0)
            except Unfit as error:
                self._trial.say("unfit", "error", f"{when} {error}", "return what observation_space declares")
                continue
            if part.leaf.kind != "discrete":
                self._box(part, space, value, when)

    def _box(self, part: Part, space: Any, value: Array, when: str) -> None:
        if not np.isfinite(value).all():
            what = f"{when} {part.name} is not finite: {short(value)}"
            self._trial.say("finite", "error", what, "look for a division by zero, or a simulation that blew up")
            return
        outside = np.argwhere((value < space.low) | (value > space.high))
        if len(outside):
            at = tuple(outside[0])
            self._trial.say(
                f"bounds {part.name}",
                "warning",
                f"{when} {part.name}{[int(index) for index in at] if at else ''} is {value[at]}, outside its declared "
                f"[{space.low[at]}, {space.high[at]}]",
                "declare bounds that hold (infinite ones are fine), or clip",
            )
        if value.dtype != np.dtype(part.leaf.dtype):
            what = f"{part.name} is {value.dtype}, but declared {part.leaf.dtype}"
            self._trial.say(
                f"dtype {part.name}", "note", what, "nothing: it is cast; astype in the environment is tidier"
            )


def leaf_space(space: Any, leaf: Leaf) -> Any:
    for part in leaf.path:
        space = space.spaces[part]
    return space


class Act:
    """Draws uniform actions, in the form in which training hands them over, of those that the mask allows.

    Where the space cannot be taken: whatever it samples.
    """

    def __init__(self, space: Any, seed: int, mask_key: str | None, trial: Trial) -> None:
        self._space, self._key, self._trial = space, mask_key, trial
        self._rng, self._spec = np.random.default_rng(seed), None
        if action_problems(space):
            space.seed(seed)
        else:
            self._spec = make_spec("", Seen(Layout(()), None), read_action_space(space), None, None)

    def __call__(self, raw: Any) -> Any:
        if self._spec is None:
            return self._space.sample()
        mask = self._mask(raw, self._spec.counts) if self._spec.counts else None
        return self._spec.to_environment(self._spec.random_actions(self._rng, 1, mask))[0]

    def _mask(self, raw: Any, counts: tuple[int, ...]) -> Array | None:
        info = self._trial.info if isinstance(self._trial.info, dict) else {}
        if self._key is None:
            if USUAL_KEY in info:
                self._trial.say(
                    "mask",
                    "note",
                    f"info has {USUAL_KEY!r}, but without mask_key the actions that it forbids are taken like others",
                    f"set mask_key={USUAL_KEY!r} (--mask-key {USUAL_KEY}) to take only those that it allows",
                )
            return None
        source = raw if isinstance(raw, dict) and self._key in raw else info
        try:
            return as_mask(source[self._key], counts)[None]
        except (BadMask, KeyError) as error:
            words = "is missing" if isinstance(error, KeyError) else str(error)
            what = f"after {len(self._trial.rewards)} steps the mask {self._key!r} {words}"
            self._trial.say("mask", "error", what, "give it with every observation, in info or in the Dict")
            raise Halt from error


def _freeze(raw: Any) -> Any:
    """An observation as a value that later changes cannot reach, comparable bit for bit."""
    if isinstance(raw, dict):
        return tuple((key, _freeze(raw[key])) for key in sorted(raw, key=str))
    if isinstance(raw, tuple | list):
        return tuple(_freeze(each) for each in raw)
    array = np.asarray(raw)
    return repr(raw) if array.dtype.kind == "O" else (array.shape, array.dtype.str, array.tobytes())
