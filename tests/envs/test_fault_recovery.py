"""Only the faulty environment is restarted; valid rows are kept, and invalid rows are never returned."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from faulty import Bent, SavedWalk, Walk
from gymnasium.vector import SyncVectorEnv
from troubled import (
    LENGTH,
    Record,
    Troubled,
    actions,
    among_walks,
    assert_same_rows,
    fail,
    first_observation,
    infinite_reward,
    not_a_number,
    run,
    unfit,
)

from counting import Counting
from offbeat.envs import make_vector
from offbeat.errors import EnvironmentFault
from offbeat.streams import episode_seed


@pytest.mark.parametrize(
    ("trouble", "kind", "made", "words"),
    [
        (fail, "raised", 2, "step raised RuntimeError: the motor is off"),
        (unfit, "raised", 2, r"step returned \("),
        (not_a_number, "not finite", 1, r"observation, element \[0\], is nan"),
        (infinite_reward, "not finite", 1, "the reward is inf"),
    ],
)
@pytest.mark.parametrize("at", [0, 4, LENGTH - 1, LENGTH])
def test_a_faulted_step_ends_the_episode_of_its_environment_alone(
    trouble: Any, kind: str, made: int, words: str, at: int
) -> None:
    record = Record({("step", at): trouble})
    ours = run(among_walks(record, max_faults=1), 30)
    theirs = run(make_vector(Walk, 3, seed=3, env_kwargs={"length": LENGTH}), 30)
    for mine, healthy in zip(ours, theirs, strict=True):
        assert_same_rows(mine, healthy, [0, 2])
    for mine, healthy in zip(ours[:at], theirs[:at], strict=True):
        assert_same_rows(mine, healthy, [1])
    step, before = ours[at], at // LENGTH
    assert step.valid.tolist() == [True, False, True]
    assert (step.terminated[1], step.truncated[1], step.reward[1]) == (False, False, 0.0)
    assert np.isfinite(step.next.vector).all()
    assert step.observation.vector[1].tobytes() == first_observation(1, before + 1).tobytes()
    assert [(fault.env, fault.kind) for fault in step.faults] == [(1, kind)]
    place = rf"environment 1 \(.*\), episode {before} \(.*\), step {at % LENGTH}: "
    assert re.search(place + words, str(step.faults[0].error))
    assert not any(other.faults or not other.valid.all() for other in ours if other is not step)
    assert (ours[at + 1].episode[1], ours[at + 1].step[1]) == (before + 1, 0)
    assert (record.calls["make"], record.calls["close"]) == (made, made - 1)


def test_the_first_fault_is_raised_without_recovery() -> None:
    for trouble in (fail, not_a_number):
        vector = among_walks(Record({("step", 2): trouble}))
        with pytest.raises(EnvironmentFault, match=r"^environment 1 \(.*\), episode 0 .* step 2: "):
            run(vector, 3)


@pytest.mark.parametrize("trouble", [{("reset", 1): not_a_number}, {("step", 3): not_a_number}])
def test_if_a_reset_does_not_help_the_environment_is_created_again(trouble: Any) -> None:
    record = Record({("step", 2): not_a_number, **trouble})
    steps = run(among_walks(record, max_faults=2), 10)
    assert [fault.kind for step in steps for fault in step.faults] == ["not finite"] * 2
    assert (record.calls["make"], record.calls["close"]) == (2, 1)
    assert record.seeds == [episode_seed(3, 1, episode) for episode in range(len(record.seeds))]


@pytest.mark.parametrize("trouble", [fail, unfit, not_a_number])
def test_a_fault_in_the_reset_after_an_episode_leaves_its_last_row_as_it_is(trouble: Any) -> None:
    record = Record({("reset", 1): trouble, ("reset", 2): fail})
    steps = run(among_walks(record, max_faults=2), 20)
    healthy = run(make_vector(Walk, 3, seed=3, env_kwargs={"length": LENGTH}), LENGTH)
    last = steps[LENGTH - 1]
    assert last.valid.all()
    assert last.terminated.all()
    assert last.finished == healthy[-1].finished
    assert last.next.vector.tobytes() == healthy[-1].next.vector.tobytes()
    assert [fault.env for fault in last.faults] == [1, 1]
    assert last.observation.vector[1].tobytes() == first_observation(1, 3).tobytes()
    assert steps[LENGTH].episode.tolist() == [1, 3, 1]
    assert record.seeds == [episode_seed(3, 1, episode) for episode in range(len(record.seeds))]


def test_faults_of_the_first_reset_are_reported_with_the_first_step() -> None:
    record = Record({("reset", 0): not_a_number, ("reset", 1): fail})
    vector = among_walks(record, max_faults=2)
    assert vector.reset().vector[1].tobytes() == first_observation(1, 2).tobytes()
    first, second = (vector.step(action) for action in actions(vector, 2))
    assert [fault.kind for fault in first.faults] == ["not finite", "raised"]
    assert first.valid.all()
    assert (first.episode.tolist(), second.faults) == ([0, 2, 0], ())


@pytest.mark.parametrize("trouble", [fail, not_a_number, infinite_reward])
def test_faults_in_a_row_are_counted_and_then_raised(trouble: Any) -> None:
    vector = among_walks(Record({("step", at): trouble for at in (2, 3, 4)}), max_faults=2)
    for step in run(vector, 4)[2:]:
        assert step.valid.tolist() == [True, False, True]
    with pytest.raises(EnvironmentFault, match=r"3 faults in a row .* the limit is 2; the last was: environment 1"):
        vector.step(actions(vector, 1)[0])


def test_faults_in_resets_and_in_creation_count_too() -> None:
    vector = among_walks(Record({("step", 2): fail, ("make", 1): fail, ("reset", 1): fail}), max_faults=2)
    with pytest.raises(
        EnvironmentFault, match=r"3 faults in a row .* the last was: .* reset: reset raised RuntimeError"
    ):
        run(vector, 3)
    steps = run(among_walks(Record({("step", 2): fail, ("make", 1): fail, ("reset", 1): fail}), max_faults=3), 3)
    for fault, words in zip(steps[2].faults, ("step raised", "creating it again raised", "reset raised"), strict=True):
        assert words in str(fault.error)


@pytest.mark.parametrize("trouble", [fail, not_a_number])
def test_a_good_step_ends_the_row_of_faults(trouble: Any) -> None:
    steps = run(among_walks(Record({("step", at): trouble for at in range(1, 60, 2)}), max_faults=1), 60)
    assert [step.valid[1] for step in steps] == [True, False] * 30
    # In episodes of one step, the reset after each valid step faults.
    record = Record({("reset", at): trouble for at in range(1, 60, 2)})
    steps = run(make_vector(lambda: Troubled(record, length=1), max_faults=1), 29)
    assert [len(step.faults) for step in steps] == [1] * 29
    assert all(step.valid.all() and step.terminated.all() for step in steps)


def test_no_episode_number_is_used_twice_and_no_valid_row_is_lost() -> None:
    rng, kinds = np.random.default_rng(0), (fail, not_a_number, unfit, infinite_reward)
    chosen = [("step", at) for at in range(400)] + [("reset", at) for at in range(200)]
    record = Record({call: kinds[rng.integers(4)] for call in chosen if rng.random() < 0.2})
    # A reset has no reward, so an infinite reward does not affect it.
    record.trouble = {key: each for key, each in record.trouble.items() if (key[0], each) != ("reset", infinite_reward)}
    steps = run(among_walks(record, max_faults=20), 400)
    assert record.seeds == [episode_seed(3, 1, episode) for episode in range(len(record.seeds))]
    bad = sum(key[0] == "step" for key in record.trouble)
    assert [step.valid[1] for step in steps].count(False) == bad > 50
    assert len([fault for step in steps for fault in step.faults]) > bad
    place = None
    for step in (step for step in steps if step.valid[1]):
        here = int(step.episode[1]), int(step.step[1])
        assert place is None or here == (place[0], place[1] + 1) or (here[0] > place[0] and here[1] == 0)
        place = here
    theirs = run(make_vector(Walk, 3, seed=3, env_kwargs={"length": LENGTH}), 400)
    for mine, healthy in zip(steps, theirs, strict=True):
        assert_same_rows(mine, healthy, [0, 2])


def test_two_environments_may_fault_in_one_step() -> None:
    record = Record({("step", 0): fail, ("step", 1): not_a_number, ("step", 4): fail})
    vector = make_vector(lambda: Troubled(record), 2, max_faults=1)
    first, second, third = run(vector, 3)
    assert [(fault.env, fault.kind) for fault in first.faults] == [(0, "raised"), (1, "not finite")]
    assert not first.valid.any()
    assert second.valid.all()
    assert (third.valid.tolist(), third.episode.tolist()) == ([False, True], [1, 1])


def test_a_new_environment_has_the_same_wrappers_and_renders() -> None:
    drawing = []

    def factory(render_mode: str | None = None) -> Counting:
        drawing.append(render_mode)
        return Counting(render_mode=render_mode, length=50)

    class Once(gymnasium.Wrapper[Any, Any, Any, Any]):
        made = 0

        def __init__(self, env: Any) -> None:
            super().__init__(env)
            Once.made += 1
            self.number = Once.made

        def step(self, action: Any) -> Any:
            return fail(None) if self.number == 1 else super().step(action)

    vector = make_vector(factory, 2, env_wrapper=Once, render_mode="rgb_array", max_episode_steps=3, max_faults=1)
    before = vector.unwrapped_envs
    steps = run(vector, 7)
    assert drawing == ["rgb_array", None, "rgb_array"]
    assert Once.made == 3
    assert vector.unwrapped_envs[0] is not before[0]
    assert vector.unwrapped_envs[1] is before[1]
    assert vector.render() is not None
    assert [step.truncated.tolist() for step in steps[2:4]] == [[False, True], [True, False]]


def test_a_factory_that_returns_the_old_object_is_refused() -> None:
    bent = Bent(lambda env, *values: fail(None), when=2)
    vector = make_vector(lambda: bent, max_faults=3)
    with pytest.raises(EnvironmentFault, match=r"4 faults in a row .* returned the same environment twice"):
        run(vector, 4)
    supply = iter([Walk(), Counting()])
    other = make_vector(lambda: next(supply), max_faults=1)
    other.unwrapped_envs[0].step = fail  # type: ignore[attr-defined]
    with pytest.raises(EnvironmentFault, match=r"2 faults in a row .* has spaces .* must have the same spaces"):
        run(other, 1)


def test_an_environment_that_reassigns_its_space_can_be_created_again() -> None:
    def grow(env: Bent, raw: Any, *others: Any) -> Any:
        if env.count != 3:
            return raw, *others
        env.observation_space = gymnasium.spaces.Box(-100, 100, (4,), np.float32)
        return np.zeros(4, np.float32), *others

    made: list[Bent] = []

    def make() -> Bent:
        made.append(Bent(grow))
        return made[-1]

    step = run(make_vector(make, 2, max_faults=1), 3)[-1]
    assert [fault.kind for fault in step.faults] == ["raised", "raised"]
    assert "shape (4,), but its space declares (3,)" in str(step.faults[0].error)
    assert len(made) == 4


def test_an_environment_that_cannot_be_closed_is_replaced_all_the_same() -> None:
    record = Record({("step", 1): fail, ("close", 0): fail})
    steps = run(among_walks(record, max_faults=1), 5)
    assert (record.calls["make"], record.calls["close"]) == (2, 1)
    assert "the motor is off" in str(steps[1].faults[0].error)


def test_a_privileged_state_that_is_not_finite_is_recovered_from() -> None:
    def forget(env: Bent, *values: Any) -> Any:
        return *values[:4], {"state": [np.nan if env.count == 3 else 2.0]}

    vector = make_vector(
        lambda: Bent(forget, lambda env, raw, info: (raw, {"state": [1.0]})), state_key="state", max_faults=1
    )
    step = run(vector, 3)[-1]
    assert (step.valid[0], step.faults[0].kind) == (False, "not finite")
    assert (step.observation.state.tolist(), step.next.state.tolist()) == ([[1.0]], [[0.0]])


@pytest.mark.parametrize("saved", [False, True])
def test_a_run_continues_exactly_from_a_snapshot_after_a_fault(saved: bool) -> None:
    class Breaking(SavedWalk if saved else Walk):  # type: ignore[misc]
        made = 0

        def __init__(self) -> None:
            super().__init__(length=20)
            Breaking.made += 1
            self.breaks = Breaking.made == 1

        def step(self, action: Any) -> Any:
            return fail(None) if self.breaks and self.count == 3 else super().step(action)

    one = make_vector(Breaking, 2, max_faults=1)
    run(one, 10)
    other = make_vector(Breaking, 2, max_faults=1)
    _, sentences = other.restore(*one.snapshot())
    assert sentences == []
    for action in actions(one, 9):
        assert_same_rows(one.step(action), other.step(action), [0, 1])


def test_a_vector_env_raises_every_fault() -> None:
    def batch() -> SyncVectorEnv:
        return SyncVectorEnv([lambda: Troubled(Record({("step", 0): fail}))])

    for env in (batch, batch()):
        with pytest.raises(EnvironmentFault, match="the motor is off"):
            run(make_vector(env, max_faults=9), 1)
