from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from offbeat.envs import make_vector
from offbeat.run.environments import Environments
from offbeat.run.evaluation import record_frames, run_episodes
from offbeat.settings import make_config


class Uneven(gymnasium.Env):
    """Its n-th instance has episodes of 2 steps for n = 0 and of 30 for the others; pays its length at the end."""

    made = 0
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    render_mode = "rgb_array"

    def __init__(self) -> None:
        self.length, self.count = (2 if type(self).made == 0 else 30), 0
        type(self).made += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.count += 1
        return np.zeros(1, np.float32), float(self.count == self.length), self.count == self.length, False, {}

    def render(self) -> np.ndarray:
        return np.full((4, 4, 3), self.count, np.uint8)


class Still:
    def load(self, weights: Any) -> None: ...

    def initial_carry(self, num_envs: int) -> np.ndarray:
        return np.zeros((num_envs, 0), np.float32)

    def act(self, obs: np.ndarray, carry: np.ndarray, rng: Any, step: int = 0) -> tuple[np.ndarray, np.ndarray, dict]:
        assert rng is None  # deterministic
        return np.zeros((len(obs), 1), np.float32), carry, {}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Uneven.made = 0


def test_each_environment_plays_a_fixed_share_so_that_short_episodes_count_no_more_than_long_ones() -> None:
    results = run_episodes(make_vector(Uneven, 2), Still(), episodes=5)
    assert results is not None
    assert results[1] == (2, 30, 2, 30, 2)


def test_evaluation_stops_when_asked() -> None:
    answers = iter([False, False, True])
    assert run_episodes(make_vector(Uneven, 2), Still(), 5, stop=lambda: next(answers)) is None
    assert next(answers, None) is None


def test_recorded_frames_are_one_complete_episode_of_environment_zero() -> None:
    assert [int(frame[0, 0, 0]) for frame in record_frames(make_vector(Uneven, 1), Still())] == [0, 1]
    Uneven.made = 1
    assert len(record_frames(make_vector(Uneven, 1), Still(), most_frames=7)) == 7


def test_the_docs_name_the_purposes_that_runs_reset_with(monkeypatch: pytest.MonkeyPatch) -> None:
    purposes: list[str] = []
    monkeypatch.setattr("offbeat.run.environments.make_vector", lambda *_, purpose, **__: purposes.append(purpose))
    environments = Environments(make_config("sac", {"env": "Pendulum-v1"}), None, None)
    environments.training()
    environments.evaluation(3, seed=0)
    page = Path(__file__).parents[2] / "docs" / "environments.md"
    assert re.findall(r'purpose="(\w+)"', page.read_text()) == purposes
