"""Walks with faults at chosen calls, counted over an environment and its replacements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from faulty import Walk

from offbeat.envs import Vector, make_vector
from offbeat.streams import episode_seed
from offbeat.types import Step

LENGTH = 7


class Record:
    """trouble: (call, its number from 0) -> a function applied to the result; calls are make, reset, step and close."""

    def __init__(self, trouble: Mapping[tuple[str, int], Callable[[Any], Any]]) -> None:
        self.trouble, self.calls, self.seeds = trouble, Counter[str](), list[int | None]()

    def __call__(self, call: str, result: Any) -> Any:
        trouble = self.trouble.get((call, self.calls[call]))
        self.calls[call] += 1
        return result if trouble is None else trouble(result)


class Troubled(Walk):
    def __init__(self, record: Record, length: int = LENGTH) -> None:
        super().__init__(length=length)
        self.record = record
        record("make", None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.record.seeds.append(seed)
        return self.record("reset", super().reset(seed=seed))

    def step(self, action: np.ndarray) -> Any:
        return self.record("step", super().step(action))

    def close(self) -> None:
        self.record("close", None)


def fail(result: Any) -> Any:
    raise RuntimeError("the motor is off")


def unfit(result: Any) -> Any:
    return result[:1]


def not_a_number(result: Any) -> Any:
    return (result[0] * np.nan, *result[1:])


def infinite_reward(result: Any) -> Any:
    return (result[0], np.inf, *result[2:])


def among_walks(record: Record, row: int = 1, num_envs: int = 3, **options: Any) -> Vector:
    """Walks, one of them troubled; environments after the first `num_envs` are its replacements."""
    made = 0

    def factory() -> Walk:
        nonlocal made
        made += 1
        return Troubled(record) if made == row + 1 or made > num_envs else Walk(length=LENGTH)

    return make_vector(factory, num_envs, seed=3, **options)


def actions(vector: Vector, steps: int) -> np.ndarray:
    shape = (steps, vector.num_envs, vector.spec.action_size)
    return np.random.default_rng(8).uniform(-1, 1, shape).astype(np.float32)


def run(vector: Vector, steps: int) -> list[Step]:
    vector.reset()
    return [vector.step(action) for action in actions(vector, steps)]


def first_observation(env: int, episode: int) -> np.ndarray:
    return Walk().reset(seed=episode_seed(3, env, episode))[0].astype(np.float32)


def assert_same_rows(ours: Step, theirs: Step, rows: list[int]) -> None:
    for name in ("reward", "terminated", "truncated", "valid", "episode", "step"):
        np.testing.assert_array_equal(getattr(ours, name)[rows], getattr(theirs, name)[rows])
    assert ours.next.vector[rows].tobytes() == theirs.next.vector[rows].tobytes()
    assert ours.observation.vector[rows].tobytes() == theirs.observation.vector[rows].tobytes()
    finished = [[each for each in step.finished if each.env in rows] for step in (ours, theirs)]
    assert finished[0] == finished[1]
