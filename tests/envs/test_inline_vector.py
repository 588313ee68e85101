"""N environments in this process: seeds, limits and faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from faulty import Bent
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from switches import SEVERAL, Switches

from counting import Counting
from offbeat.envs import make_vector
from offbeat.errors import EnvironmentFault, OffbeatError, UsageError
from offbeat.streams import episode_seed

ZERO = np.zeros((1, 2), np.float32)


def stepped(environment: Bent, steps: int = 20, **options: Any) -> Any:
    vector = make_vector(lambda: environment, **options)
    vector.reset()
    return [vector.step(ZERO) for _ in range(steps)]


def test_every_episode_is_reset_with_its_own_seed() -> None:
    envs: list[Counting] = []

    def factory() -> Counting:
        envs.append(Counting(length=2))
        return envs[-1]

    vector = make_vector(factory, 3, seed=11, purpose="evaluate")
    vector.reset()
    for _ in range(5):
        vector.step(np.zeros((3, 2), np.float32))
    for index, env in enumerate(envs):
        assert env.seeds == [episode_seed(11, index, episode, "evaluate") for episode in range(3)]
    vector.reset(episode=1)
    assert envs[2].seeds[-1] == episode_seed(11, 2, 1, "evaluate")


def test_resetting_to_an_episode_repeats_it() -> None:
    vector = make_vector("Pendulum-v1", 2, max_episode_steps=5)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (10, 2, 1)).astype(np.float32)
    first = [vector.reset().vector, *(vector.step(action).next.vector for action in actions)]
    again = [vector.reset().vector, *(vector.step(action).next.vector for action in actions)]
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(vector.reset(1).vector, vector.reset(1).vector)
    assert not np.array_equal(vector.reset(1).vector, first[0])


def test_the_registered_limit_truncates_and_a_given_one_replaces_it() -> None:
    for given, length in ((None, 200), (30, 30), (250, 250)):
        vector = make_vector("Pendulum-v1", max_episode_steps=given)
        assert vector.spec.max_episode_steps == length
        vector.reset()
        steps = [vector.step(np.zeros((1, 1), np.float32)) for _ in range(length + 1)]
        assert [step.truncated[0] for step in steps] == [False] * (length - 1) + [True, False]
        assert not any(step.terminated[0] for step in steps)
        assert steps[length - 1].finished[0].length == length


def test_a_factorys_own_limit_and_max_episode_steps_both_apply() -> None:
    for ours, length in ((None, 6), (4, 4), (8, 6)):
        vector = make_vector(lambda: TimeLimit(Bent(), 6), max_episode_steps=ours)
        vector.reset()
        steps = [vector.step(ZERO) for _ in range(length)]
        assert [step.truncated[0] for step in steps] == [False] * (length - 1) + [True]


def test_an_end_of_both_kinds_keeps_both_flags() -> None:
    def both(env: Bent, raw: Any, reward: float, terminated: bool, truncated: bool, info: Any) -> Any:
        return raw, reward, True, True, info

    step = stepped(Bent(both), 1)[0]
    assert (step.terminated[0], step.truncated[0]) == (True, True)
    at_limit = stepped(Bent(lambda env, raw, *rest: (raw, 0.0, True, False, {}), when=4), 5, max_episode_steps=5)[-1]
    assert (at_limit.terminated[0], at_limit.truncated[0]) == (True, True)


def test_steps_keep_their_arrays_even_if_the_environment_reuses_its_own() -> None:
    class Reusing(Bent):
        array = np.zeros(3, np.float32)

        def _look(self) -> Any:
            self.array[1] = self.count
            return self.array

    steps = stepped(Reusing(), 10)
    assert [step.next.vector[0, 1] for step in steps] == list(range(1, 11))
    assert steps[-1].observation.vector[0, 1] == 0


def returning(**changes: Any) -> Any:
    """A step that returns something else: observation, reward, terminated, truncated or info."""

    def at_step(env: Bent, *values: Any) -> Any:
        names = ("observation", "reward", "terminated", "truncated", "info")
        return tuple(changes.get(name, value) for name, value in zip(names, values, strict=True))

    return at_step


def raising(env: Bent, *values: Any) -> Any:
    raise RuntimeError("the motor is off")


NAN = np.array([0, np.nan, 0], np.float32)


@pytest.mark.parametrize(
    ("at_step", "words"),
    [
        (returning(observation=NAN), r"observation, element \[1\], is nan as float32; it must be finite"),
        (returning(observation=np.array([0, 0, -np.inf])), r"observation, element \[2\], is -inf"),
        (
            returning(observation=np.zeros(4, np.float32)),
            r"observation has shape \(4,\), but its space declares \(3,\)",
        ),
        (returning(observation=np.zeros(3, complex)), r"observation has dtype complex128, which cannot be cast"),
        (returning(observation=["a", "b", "c"]), r"observation is a list, not an array of numbers: \['a', 'b', 'c'\]"),
        (returning(observation=None), r"observation is a NoneType, not an array of numbers"),
        (returning(observation=[[1], 2, 3]), r"observation is not an array of numbers"),
        (returning(reward=np.nan), r"the reward is nan; it must be finite"),
        (returning(reward=1e39), r"the reward is 1e\+39; it must fit into float32"),
        (returning(reward=10**400), r"the reward is inf; it must be finite"),
        (returning(reward=[[1], 2]), r"the reward is a list, not a number"),
        (returning(reward=np.ones(2)), r"the reward has shape \(2,\), but it must be one number"),
        (returning(reward=None), r"the reward is a NoneType, not a number"),
        (returning(reward="1.5"), r"the reward is a str, not a number: '1.5'"),
        (returning(reward=b"1.5"), r"the reward is a bytes, not a number"),
        (returning(reward=np.array("1.5")), r"the reward is a ndarray, not a number"),
        (returning(reward=np.array("1.5", object)), r"the reward is a ndarray, not a number"),
        (returning(info=None), r"info is None, but it must be a dict"),
        (returning(info=[]), r"info is \[\], but it must be a dict"),
        (returning(terminated=None), r"terminated is None, but it must be True or False"),
        (returning(truncated="no"), r"truncated is 'no', but it must be True or False"),
        (returning(terminated=0.5), r"terminated is 0.5"),
        (lambda env, *values: values[:4], r"step returned \(.*but it must return \(observation, reward, terminated"),
        (raising, r"step raised RuntimeError: the motor is off"),
    ],
)
def test_a_fault_names_environment_episode_seed_step_and_value(at_step: Any, words: str) -> None:
    bent = [Bent(), Bent(at_step, when=3, length=5)]
    supply = iter(bent)
    vector = make_vector(lambda: next(supply), 2, seed=4)
    vector.reset()
    bent[1].when = 100
    for _ in range(5):
        vector.step(np.zeros((2, 2), np.float32))
    bent[1].when = 3
    for _ in range(3):
        vector.step(np.zeros((2, 2), np.float32))
    place = rf"environment 1 \(.*\), episode 1 \(reset seed {episode_seed(4, 1, 1)}\), step 3: "
    with pytest.raises(EnvironmentFault, match=place + words) as caught:
        vector.step(np.zeros((2, 2), np.float32))
    if at_step is raising:
        assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("at_reset", "words"),
    [
        (lambda env, raw, info: (NAN, info), r"observation, element \[1\], is nan"),
        (lambda env, raw, info: raw, r"reset returned array\(.*but it must return \(observation, info\)"),
        (lambda env, raw, info: (raw[:1], info), r"observation has shape \(1,\)"),
        (lambda env, raw, info: (raw, None), r"info is None, but it must be a dict"),
        (raising, r"reset raised RuntimeError: the motor is off"),
    ],
)
def test_a_fault_in_reset_names_the_reset(at_reset: Any, words: str) -> None:
    vector = make_vector(lambda: Bent(at_reset=at_reset))
    with pytest.raises(EnvironmentFault, match=rf"environment 0 \(.*\), episode 0 \(reset seed \d+\), reset: {words}"):
        vector.reset()


def test_a_fault_names_the_part_of_a_structured_observation() -> None:
    space = spaces.Dict(
        {"arm": spaces.Dict({"joint": spaces.Box(-1, 1, (2, 2), np.float64)}), "gear": spaces.Discrete(3)}
    )
    good = {"arm": {"joint": np.zeros((2, 2))}, "gear": 2}
    cases = [
        (
            {**good, "arm": {"joint": np.array([[0, 0], [np.nan, 0]])}},
            r"observation 'arm/joint', element \[1, 0\], is nan",
        ),
        ({**good, "gear": 3}, r"observation 'gear' is .*3.*, but its Discrete space allows the integers 0 to 2"),
        ({**good, "gear": 1.0}, r"observation 'gear' has dtype float64, which cannot be cast to the declared int64"),
        ({**good, "arm": {}}, r"observation 'arm/joint' is missing: dict has no 'joint'"),
        (np.zeros(4), r"observation 'arm/joint' is missing"),
    ]
    for wrong, words in cases:
        bent = Bent(returning(observation=wrong), lambda env, raw, info: (good, info), observation_space=space)
        with pytest.raises(EnvironmentFault, match=words):
            stepped(bent)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Box(-9, 9, (3,), np.float32), [1, 2.5, 3]),
        (spaces.Box(-9, 9, (3,), np.float32), np.array([1, 2, 3])),
        (spaces.Box(-9, 9, (3,), np.float32), np.array([1.0, 2, 3], np.float64)),
        (spaces.Box(0, 9, (3,), np.uint8), [1, 2, 3]),
        (spaces.Box(-9, 9, (), np.float32), 2.5),
        (spaces.Discrete(3), np.int8(2)),
        (spaces.Discrete(3), np.array(2)),
    ],
)
def test_lists_plain_numbers_and_castable_dtypes_are_fine(space: Any, value: Any) -> None:
    bent = Bent(returning(observation=value), lambda env, raw, info: (value, info), observation_space=space)
    layout = make_vector(lambda: bent).spec.layout
    np.testing.assert_array_equal(stepped(bent, 1)[0].next.vector[0], layout.encode(value))


def test_rewards_and_flags_may_be_numpys() -> None:
    bent = Bent(returning(reward=np.float32(2), terminated=np.bool_(True), truncated=np.array(False)))
    step = stepped(bent, 1)[0]
    assert (step.reward.tolist(), step.terminated.tolist(), step.truncated.tolist()) == ([2.0], [True], [False])
    assert step.reward.dtype == np.float64
    assert step.terminated.dtype == bool


def test_a_missing_privileged_state_is_a_fault_that_names_the_step() -> None:
    bent = Bent(lambda env, *values: (*values[:4], {"state": [1.0]} if env.count < 3 else {"other": 0}))
    bent.at_reset = lambda env, raw, info: (raw, {"state": [0.0]})
    with pytest.raises(EnvironmentFault, match=r"episode 0 .*, step 2: info has no 'state' \(its keys: 'other'\)"):
        stepped(bent, state_key="state")
    with pytest.raises(
        UsageError, match=r"state_key='hidden' is neither a key of the observation space \(keys: none\)"
    ):
        make_vector(Bent, state_key="hidden")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_action_that_is_not_finite_is_the_policys_fault_not_the_environments(bad: float) -> None:
    vector = make_vector(Bent, 2)
    vector.reset()
    with pytest.raises(OffbeatError, match=r"action for environment 1 .* the policy's weights have diverged") as caught:
        vector.step(np.array([[0, 0], [0, bad]], np.float32))
    assert not isinstance(caught.value, EnvironmentFault)
    with pytest.raises(UsageError, match=r"action has shape \(2, 1\)"):
        vector.step(np.zeros((2, 1), np.float32))


@pytest.mark.parametrize("space", SEVERAL)
def test_independent_choices_are_handed_over_as_the_space_has_them(space: Any) -> None:
    envs = [Switches(space), Switches(space)]
    made = iter(envs)
    vector, rng = make_vector(lambda: next(made), 2), np.random.default_rng(0)
    vector.reset()
    actions = [vector.spec.random_actions(rng, 2) for _ in range(20)]
    for action in actions:
        vector.step(action)
    for index, env in enumerate(envs):
        np.testing.assert_array_equal(env.given, vector.spec.to_environment(np.stack(actions)[:, index]))
    with pytest.raises(UsageError, match=r"action has shape \(2, 9\)"):
        vector.step(np.zeros((2, 9), np.float32))
    with pytest.raises(OffbeatError, match="actions must be finite"):
        vector.step(np.full((2, vector.spec.action_size), np.nan, np.float32))


def test_render_shows_environment_0_if_it_draws() -> None:
    vector = make_vector("counting:make", 2, render_mode="rgb_array")
    vector.reset()
    picture = vector.render()
    assert picture is not None
    assert picture.shape == (8, 8, 3)
    silent = make_vector("counting:make")
    silent.reset()
    assert silent.render() is None
