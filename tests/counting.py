"""An environment that counts, and keeps its own log: what was collected is compared with what really happened.

Its observation is (episode, step), so that every row says where it belongs. `counting:make` names it in a config.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

_made = 0


class Entry(NamedTuple):
    """One step as the environment saw it; `obs` is always (episode, step) and `next` (episode, step + 1)."""

    episode: int
    step: int
    action: tuple[float, ...]
    reward: float
    terminated: bool
    truncated: bool


class Counting(gymnasium.Env[Any, np.ndarray]):
    """Observation: (episode, step). Episodes count from 0 in each environment, whatever resets it.

    length: of every episode; None draws it from the seeded generator, 1 to 12. ends: "terminated", "truncated", "mixed"
    (drawn, sometimes both at once). structure: "box", or "dict" for {"where": {"episode", "step"}, "flag": Discrete}.
    state: privileged (episode, step, 1) in "info" or, with "dict", in the "observation", under the name "state".
    log_dir: each environment writes its log there as env-PROCESS-N.jsonl, a line per step, at the ends of episodes and
    at last.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        length: int | None = None,
        ends: str = "mixed",
        structure: str = "box",
        state: str | None = None,
        log_dir: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        global _made
        self.length, self.ends, self.structure, self.state = length, ends, structure, state
        self.render_mode = render_mode
        self.log: list[Entry] = []
        self.seeds: list[int | None] = []
        self._file = Path(log_dir) / f"env-{os.getpid()}-{_made}.jsonl" if log_dir is not None else None
        self._written = 0
        _made += 1
        self.episode, self.step_index, self._length, self._end = -1, 0, 0, (True, False)
        self.action_space = gymnasium.spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))
        number = gymnasium.spaces.Box(0, np.inf, (1,), np.float32)
        spaces: dict[str, Any] = {
            "where": gymnasium.spaces.Dict({"episode": number, "step": number}),
            "flag": gymnasium.spaces.Discrete(2, start=5),
        }
        if state == "observation":
            spaces["state"] = gymnasium.spaces.Box(0, np.inf, (3,), np.float32)
        self.observation_space = (
            gymnasium.spaces.Dict(spaces) if structure == "dict" else gymnasium.spaces.Box(0, np.inf, (2,), np.float32)
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode, self.step_index = self.episode + 1, 0
        self._length = self.length if self.length is not None else int(self.np_random.integers(1, 13))
        kinds = {"terminated": [(True, False)], "truncated": [(False, True)]}
        mixed = [(True, False), (False, True), (True, True)]
        choice = kinds.get(self.ends, mixed)
        self._end = choice[int(self.np_random.integers(len(choice)))]
        return self._observe(), self._info()

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self.episode + self.step_index / 8
        step, self.step_index = self.step_index, self.step_index + 1
        terminated, truncated = self._end if self.step_index >= self._length else (False, False)
        entry = Entry(self.episode, step, tuple(action.tolist()), reward, terminated, truncated)
        self.log.append(entry)
        if terminated or truncated:
            self._write()
        return self._observe(), reward, terminated, truncated, self._info()

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), self.step_index, np.uint8)

    def close(self) -> None:
        self._write()

    def _observe(self) -> Any:
        if self.structure == "box":
            return np.array([self.episode, self.step_index], np.float32)
        observation: dict[str, Any] = {
            "where": {"episode": np.float32([self.episode]), "step": np.float32([self.step_index])},
            "flag": 5 + self.step_index % 2,
        }
        if self.state == "observation":
            observation["state"] = self._state()
        return observation

    def _info(self) -> dict[str, Any]:
        return {"state": self._state()} if self.state == "info" else {}

    def _state(self) -> np.ndarray:
        return np.array([self.episode, self.step_index, 1], np.float32)

    def _write(self) -> None:
        if self._file is not None:
            with self._file.open("a") as file:
                file.writelines(json.dumps(entry) + "\n" for entry in self.log[self._written :])
            self._written = len(self.log)


def make(**kwargs: Any) -> Counting:
    return Counting(**kwargs)
