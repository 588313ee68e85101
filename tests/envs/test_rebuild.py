"""Interrupted episodes: rebuilt bit for bit if the environment allows it, otherwise reported."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from faulty import Bent, SavedWalk, Walk
from gymnasium.wrappers import TimeLimit
from switches import SEVERAL, Switches

from counting import Counting
from offbeat.envs import Vector, env_slot, make_vector, rebuild
from offbeat.errors import CheckpointError, EnvironmentFault


def through_json(snapshot: tuple[dict[str, Any], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A snapshot as in a checkpoint: copied arrays, and values after a JSON round trip."""
    arrays, values = snapshot
    return {name: array.copy() for name, array in arrays.items()}, json.loads(json.dumps(values))


def actions(vector: Vector, steps: int, seed: int = 0) -> np.ndarray:
    rng, shape = np.random.default_rng(seed), (steps, vector.num_envs, vector.spec.action_size)
    return vector.spec.random_actions(rng, steps * vector.num_envs).reshape(shape)


def assert_same_future(one: Vector, other: Vector, steps: int) -> None:
    for action in actions(one, steps, seed=1):
        first, second = one.step(action), other.step(action)
        for name in ("reward", "terminated", "truncated", "valid", "episode", "step"):
            np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
        for mine, theirs in ((first.next, second.next), (first.observation, second.observation)):
            assert mine.vector.tobytes() == theirs.vector.tobytes()
            assert mine.state.tobytes() == theirs.state.tobytes()
            for name, image in mine.images.items():
                np.testing.assert_array_equal(image, theirs.images[name])
        assert first.finished == second.finished


@pytest.mark.parametrize("env", ["Pendulum-v1", "HalfCheetah-v5", "InvertedPendulum-v5"])
@pytest.mark.parametrize("taken", [0, 37, 130])
def test_a_restored_vector_continues_bit_for_bit(env: str, taken: int, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves a log of its warnings where it runs
    one, other = (make_vector(env, 2, seed=5, max_episode_steps=60) for _ in range(2))
    shown = one.reset()
    for action in actions(one, taken):
        shown = one.step(action).observation
    observation, sentences = other.restore(*through_json(one.snapshot()))
    assert sentences == []
    assert observation.vector.tobytes() == shown.vector.tobytes()
    assert_same_future(one, other, 100)


@pytest.mark.parametrize("space", [SEVERAL[1], SEVERAL[3], SEVERAL[-1]])
def test_independent_choices_are_replayed_bit_for_bit(space: Any) -> None:
    one, other = (make_vector(Switches, 2, env_kwargs={"space": space, "length": 30}) for _ in range(2))
    one.reset()
    for action in actions(one, 37):
        shown = one.step(action).observation
    observation, sentences = other.restore(*through_json(one.snapshot()))
    assert sentences == []
    assert observation.vector.tobytes() == shown.vector.tobytes()
    assert_same_future(one, other, 50)


def test_a_snapshot_before_the_first_reset_restores_to_the_first_reset() -> None:
    one, other = make_vector("Pendulum-v1", 2), make_vector("Pendulum-v1", 2)
    observation, sentences = other.restore(*through_json(one.snapshot()))
    assert sentences == []
    assert observation.vector.tobytes() == one.reset().vector.tobytes()


@pytest.mark.parametrize("where", ["info", "observation"])
def test_structured_observations_and_states_are_rebuilt_too(where: str) -> None:
    kwargs = {"structure": "dict", "state": where, "length": 9}
    one, other = (make_vector(Walled, 3, env_kwargs=kwargs, state_key="state") for _ in range(2))
    one.reset()
    for action in actions(one, 14):
        one.step(action)
    _, sentences = other.restore(*through_json(one.snapshot()))
    assert sentences == []
    assert_same_future(one, other, 30)


class Walled(Counting):
    """Counts episodes by their seed instead of by its resets, so that an episode can be repeated."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode = int(self.np_random.integers(1000))
        return self._observe(), self._info()


def test_a_random_environment_is_exact_if_it_draws_from_its_seed() -> None:
    one, other = make_vector(Walk, 2), make_vector(Walk, 2)
    one.reset()
    for action in actions(one, 77):
        one.step(action)
    assert other.restore(*through_json(one.snapshot()))[1] == []
    assert_same_future(one, other, 60)


def test_an_environment_that_is_not_deterministic_is_reported_and_continues() -> None:
    one, other = (make_vector(Walk, 2, env_kwargs={"drift": "free"}) for _ in range(2))
    one.reset()
    for action in actions(one, 57):
        shown = one.step(action).observation
    observation, sentences = other.restore(*through_json(one.snapshot()))
    assert len(sentences) == 2
    assert sentences[1].startswith(
        "environment 1 (faulty:Walk): rebuilt episode 1 by replaying 7 actions, but its observation differs by up to "
    )
    assert "the resume is not exact" in sentences[1]
    assert not np.array_equal(observation.vector, shown.vector)
    step = other.step(actions(other, 1)[0])
    assert (step.episode.tolist(), step.step.tolist()) == ([1, 1], [7, 7])


def test_a_return_that_differs_is_reported_even_if_the_observation_does_not() -> None:
    def unsteady(env: Bent, raw: Any, reward: float, *rest: Any) -> Any:
        return raw, float(np.random.default_rng().normal()), *rest

    one, other = (make_vector(lambda: Bent(unsteady)) for _ in range(2))
    one.reset()
    one.step(actions(one, 1)[0])
    assert "its return so far is" in other.restore(*through_json(one.snapshot()))[1][0]


def test_an_environment_that_saves_itself_is_loaded_not_replayed() -> None:
    def build() -> tuple[Vector, list[SavedWalk]]:
        envs = [SavedWalk(), SavedWalk()]
        supply = iter(envs)
        return make_vector(lambda: TimeLimit(next(supply), 30), 2), envs

    one, _ = build()
    one.reset()
    for action in actions(one, 44):
        shown = one.step(action).observation
    arrays, values = through_json(one.snapshot())
    assert not any("actions" in name for name in arrays)
    other, envs = build()
    observation, sentences = other.restore(arrays, values)
    assert sentences == []
    assert [env.loads for env in envs] == [1, 1]
    assert observation.vector.tobytes() == shown.vector.tobytes()
    # The inner TimeLimit, which load_state does not restore, also ends the episode in time.
    assert_same_future(one, other, 16)
    assert one.step(actions(one, 1)[0]).step.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ([1, 2], "save_state must return a dict from names to arrays or JSON values, not a list"),
        ({"a": object()}, "'a' is a object"),
        ({"a": np.array(["x"])}, "its arrays must hold numbers"),
    ],
)
def test_a_save_state_that_cannot_be_stored_is_a_fault(saved: Any, words: str) -> None:
    class Wrong(SavedWalk):
        def save_state(self) -> Any:
            return saved

    vector = make_vector(Wrong)
    vector.reset()
    with pytest.raises(EnvironmentFault, match=words):
        vector.snapshot()


def test_a_load_state_that_raises_begins_the_next_episode() -> None:
    class Wrong(SavedWalk):
        def load_state(self, state: dict[str, Any]) -> None:
            raise RuntimeError("cannot")

    one, other = make_vector(Wrong), make_vector(Wrong)
    one.reset()
    one.step(actions(one, 1)[0])
    _, sentences = other.restore(*through_json(one.snapshot()))
    assert "load_state raised RuntimeError: cannot" in sentences[0]
    assert "the next episode starts" in sentences[0]
    assert other.step(actions(one, 1)[0]).episode.tolist() == [1]


def restored_with(environment: Bent) -> tuple[list[str], int]:
    """Restores an episode of 6 steps into `environment`: the messages, and the episode that continues."""
    one, other = make_vector(Bent), make_vector(lambda: environment)
    one.reset()
    for action in actions(one, 6):
        one.step(action)
    _, sentences = other.restore(*through_json(one.snapshot()))
    return sentences, int(other.step(actions(one, 1)[0]).episode[0])


def test_a_replay_that_ends_early_starts_the_next_episode_and_reports_it() -> None:
    sentences, episode = restored_with(Bent(length=4))
    assert "episode 0, interrupted at step 6, ended after 4 of its actions during replaying" in sentences[0]
    assert episode == 1


def test_a_replay_that_raises_starts_the_next_episode_and_reports_it() -> None:
    def once(env: Bent, *values: Any) -> Any:
        env.at_step = None
        raise RuntimeError("the motor is off")

    sentences, episode = restored_with(Bent(once, when=2))
    assert "step raised RuntimeError: the motor is off" in sentences[0]
    assert episode == 1


def test_very_long_episodes_are_not_replayed_on_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_slot, "MAX_REPLAYED_ACTIONS", 5)
    monkeypatch.setattr(rebuild, "MAX_REPLAYED_ACTIONS", 5)
    one, other = make_vector(Bent), make_vector(Bent)
    one.reset()
    for action in actions(one, 5):
        one.step(action)
    assert make_vector(Bent).restore(*through_json(one.snapshot()))[1] == []
    one.step(actions(one, 1)[0])
    arrays, values = through_json(one.snapshot())
    assert len(arrays["0/actions"]) == 0
    _, sentences = other.restore(arrays, values)
    assert "is longer than the 5 actions that are kept for replaying" in sentences[0]
    assert other.step(actions(one, 1)[0]).episode.tolist() == [1]


def test_a_snapshot_of_other_environments_is_refused() -> None:
    one = make_vector(Bent, 2)
    one.reset()
    arrays, values = through_json(one.snapshot())
    with pytest.raises(CheckpointError, match=r"holds 2 environments, but there are 3 now; use num_envs=2"):
        make_vector(Bent, 3).restore(arrays, values)
    with pytest.raises(CheckpointError, match=r"are \(\(2, 3\).* but those of faulty:Walk are \(\(2, 2\)"):
        make_vector(Walk, 2).restore(arrays, values)
