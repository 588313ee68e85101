"""An environment that writes what happened to disk, step by step: what was collected is compared with its log.

An episode gets a number of its own when it begins, drawn from the system, and every observation says where it belongs:
(number, seed, step). So a row tells which step of which episode it is, whoever collected it and however often its
process was killed. Seeds alone would not do: among a hundred thousand of 32 bits some are the same.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from offbeat.streams import episode_seed

RECORD = np.dtype(
    [("number", "i8"), ("step", "i4"), ("action", "f4", 2), ("reward", "f4"), ("terminated", "i4"), ("truncated", "i4")]
)


class Logged(gymnasium.Env[Any, np.ndarray]):
    """Observation: the episode's number in three parts of 16 bits, its seed in two, and the step. 1 to 12 steps.

    numbered: without, the number is 0, and an episode that is played again is the same.
    """

    def __init__(self, log_dir: str, numbered: bool = True) -> None:
        self.observation_space = gymnasium.spaces.Box(0, np.inf, (6,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self._file = os.open(Path(log_dir) / f"{os.getpid()}-{id(self)}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._numbered = numbered
        self._number = self._seed = self._step = self._length = 0
        self._ends = True, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None
        self._seed, self._step = seed, 0
        self._number = int.from_bytes(os.urandom(6)) if self._numbered else 0
        self._length = int(self.np_random.integers(1, 13))
        self._ends = [(True, False), (False, True), (True, True)][int(self.np_random.integers(3))]
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = (self._seed % 1_000) + self._step / 16
        step, self._step = self._step, self._step + 1
        terminated, truncated = self._ends if self._step >= self._length else (False, False)
        record = np.array((self._number, step, action, reward, terminated, truncated), RECORD)
        os.write(self._file, record.tobytes())  # one call, so that a kill leaves whole records
        return self._observe(), reward, terminated, truncated, {}

    def _observe(self) -> np.ndarray:
        number, seed = self._number, self._seed
        parts = [number >> 32, (number >> 16) & 0xFFFF, number & 0xFFFF, seed >> 16, seed & 0xFFFF, self._step]
        return np.array(parts, np.float32)

    def close(self) -> None:
        os.close(self._file)


def make(**kwargs: Any) -> Logged:
    return Logged(**kwargs)


def read_log(directory: Path) -> np.ndarray:
    """Every record of every environment, in no order."""
    return np.concatenate([np.fromfile(path, RECORD) for path in sorted(directory.glob("*.log"))])


def _keys(observation: np.ndarray) -> np.ndarray:
    """One integer for each (number, step): 48 bits and 4."""
    high, middle, low, _, _, step = observation.astype(np.int64).T
    return (((high << 32) + (middle << 16) + low) << 4) + step


def compare(columns: list[dict[str, np.ndarray]], log: np.ndarray, run_seed: int) -> int:
    """Holds rows to the log; returns how many steps of the log no row tells of.

    columns: those of each shard, in the order in which they were written.
    """
    rows = {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}
    missing, key = compare_rows(rows, log), _keys(rows["obs"])
    log = log[np.argsort((log["number"] << 4) + log["step"])]
    place = np.searchsorted((log["number"] << 4) + log["step"], key)
    cut = rows["truncated"] & ~log["truncated"][place].astype(bool)
    assert not (rows["truncated"] < log["truncated"][place]).any()
    assert not np.isin(key[cut] + 1, key).any(), "an episode goes on after it was cut"
    ended = rows["terminated"] | rows["truncated"]
    newest = {int(env): int(np.flatnonzero(rows["env"] == env)[-1]) for env in np.unique(rows["env"])}
    still_open = np.isin(np.arange(len(key)), list(newest.values()))
    assert (np.isin(key + 1, key) | ended | still_open).all(), "an episode stops without a flag"

    high, low = rows["obs"][:, 3:5].astype(np.int64).T
    seed = (high << 16) + low
    for env, episode, of in set(zip(rows["env"].tolist(), rows["episode"].tolist(), seed.tolist(), strict=True)):
        assert episode_seed(run_seed, env, episode) == of, "a row bears another episode's name"
    for each in columns:
        order = np.lexsort((each["step"], each["episode"], each["env"]))
        by_time = np.argsort(each["env"], kind="stable")
        assert (order == by_time).all(), "an environment's rows are out of order"
    return missing


def compare_rows(rows: dict[str, np.ndarray], log: np.ndarray) -> int:
    """Holds single rows to the log, in whatever order; returns how many steps of the log no row tells of."""
    key = _keys(rows["obs"])
    assert len(np.unique(key)) == len(key), "a step is there twice"
    logged = (log["number"] << 4) + log["step"]
    order = np.argsort(logged)
    log, logged = log[order], logged[order]
    place = np.searchsorted(logged, key)
    assert (place < len(logged)).all(), "a row is of no step that happened"
    assert (logged[place] == key).all(), "a row is of no step that happened"
    for name in ("action", "reward", "terminated"):
        assert (rows[name] == log[name][place]).all(), f"{name} is not what happened"
    assert (_keys(rows["next_obs"]) == key + 1).all(), "a row goes on in another episode"
    return len(logged) - len(key)
