"""Notes at the start of a run: wrappers with their own statistics, and flattened images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from offbeat.envs import make_vector
from offbeat.envs.environment_notes import environment_notes
from short_runs import train


class Shows(gymnasium.Env[Any, Any]):
    """An environment whose observations are zeros of a shape."""

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.float32) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, shape, dtype)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), {}

    def step(self, action: Any) -> Any:
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), 0.0, False, False, {}


def normalised() -> gymnasium.Env[Any, Any]:
    return NormalizeReward(NormalizeObservation(gymnasium.make("Pendulum-v1")))


@pytest.mark.parametrize("collectors", [0, 1])
def test_a_wrapper_that_normalises_is_named_with_our_setting(collectors: int, tmp_path: Path, capsys) -> None:
    run = train(tmp_path, env=normalised, collectors=collectors)
    said, logged = capsys.readouterr().err, (run.path / "log.txt").read_text()
    for text in (said, logged):
        assert "the wrapper NormalizeObservation keeps its own statistics" in text
        assert "use normalise_observations" in text
        assert "the wrapper NormalizeReward" in text


def test_wrappers_of_vector_environments_are_named_too() -> None:
    inside = gymnasium.vector.SyncVectorEnv([normalised, normalised])
    outside = gymnasium.wrappers.vector.NormalizeObservation(gymnasium.make_vec("Pendulum-v1", num_envs=2))
    for env, count in ((inside, 2), (outside, 1)):
        vector = make_vector(env)
        assert len(environment_notes(vector)) == count
        vector.close()


@pytest.mark.parametrize(
    ("shape", "words"),
    [((84, 84, 1), "flattened to 7,056 numbers"), ((3, 64, 64), "flattened to 12,288 numbers"), ((17, 17), "to 289")],
)
def test_a_flattened_float_image_is_reported(shape: tuple[int, ...], words: str) -> None:
    [remark] = environment_notes(make_vector(lambda: Shows(shape)))
    assert words in remark
    assert f"float32 of shape {shape}" in remark


@pytest.mark.parametrize("shape", [(3,), (1000,), (4, 4), (2, 3, 5)])
def test_vectors_and_small_tables_need_no_remark(shape: tuple[int, ...]) -> None:
    assert environment_notes(make_vector(lambda: Shows(shape))) == []


def test_an_ordinary_environment_needs_no_remark() -> None:
    assert environment_notes(make_vector("Pendulum-v1", 2)) == []
