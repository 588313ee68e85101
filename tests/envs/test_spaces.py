"""Spaces: how each is converted, and errors for unsupported ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from faulty import Bent
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from switches import SEVERAL

from offbeat.envs import make_vector
from offbeat.envs.reader import Reader
from offbeat.envs.spaces import (
    action_problems,
    make_spec,
    observation_problems,
    read_action_space,
    read_observation_space,
)
from offbeat.errors import SpaceError
from offbeat.types import EnvSpec

ACTION = spaces.Box(-1, 1, (2,), np.float32)


def spec_of(space: Any, state_key: str | None = None, action: Any = ACTION) -> EnvSpec:
    return make_spec("it", read_observation_space(space, state_key), read_action_space(action), state_key, None)


def read(space: Any, raw: Any) -> Any:
    reader = Reader(spec_of(space))
    into = reader.blank(1)
    reader.read(raw, {}, into, 0)
    return into


NESTED = spaces.Dict(
    {
        "zebra": spaces.Box(-1, 1, (2,), np.float64),
        "apple": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(0, 9, (2, 2), np.int32))),
        "middle": spaces.Dict({"b": spaces.Box(0, 1, (), np.float32), "a": spaces.Discrete(2)}),
    }
)


def test_nested_spaces_are_flattened_with_sorted_keys_depth_first() -> None:
    layout = read_observation_space(NESTED).layout
    assert [leaf.name for leaf in layout.leaves] == ["apple/0", "apple/1", "middle/a", "middle/b", "zebra"]
    raw = {
        "zebra": np.array([0.5, -0.5]),
        "middle": {"b": np.float32(0.25), "a": 1},
        "apple": (1, np.array([[1, 2], [3, 4]], np.int32)),
    }
    expected = [0, 0, 1, 1, 2, 3, 4, 0, 1, 0.25, 0.5, -0.5]
    assert read(NESTED, raw).vector.tolist() == [expected]
    assert layout.encode(raw).tolist() == expected


@pytest.mark.parametrize(
    "space",
    [
        NESTED,
        spaces.Box(-1, 1, (3,), np.float64),
        spaces.Box(0, 255, (7,), np.uint8),
        spaces.Box(-5, 5, (2, 3), np.int16),
        spaces.Box(-5, 5, (), np.float32),
        spaces.Box(0, 1, (4,), np.bool_),
        spaces.Discrete(4, start=2),
        spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
    ],
)
def test_the_checked_reading_equals_the_layouts_own_encoding(space: Any) -> None:
    space.seed(0)
    for _ in range(20):
        raw = space.sample()
        into = read(space, raw)
        assert into.vector.dtype == np.float32
        np.testing.assert_array_equal(into.vector[0], read_observation_space(space).layout.encode(raw))


@pytest.mark.parametrize("shape", [(8, 6), (8, 6, 3)])
def test_images_keep_their_shape_and_dtype(shape: tuple[int, ...]) -> None:
    space = spaces.Dict({"camera": spaces.Box(0, 255, shape, np.uint8), "joint": spaces.Box(-1, 1, (2,), np.float32)})
    layout = read_observation_space(space).layout
    assert [leaf.name for leaf in layout.images] == ["camera"]
    raw = space.sample()
    into = read(space, raw)
    assert into.images["camera"].dtype == np.uint8
    np.testing.assert_array_equal(into.images["camera"][0], raw["camera"])
    assert into.vector.shape == (1, 2)


def test_a_privileged_state_leaves_the_layout() -> None:
    space = spaces.Dict({"state": spaces.Box(-1, 1, (2, 2), np.float32), "see": spaces.Discrete(3)})
    spec = spec_of(space, "state")
    assert [leaf.name for leaf in spec.layout.leaves] == ["see"]
    assert (spec.state_from, spec.state_size) == ("observation", 4)
    assert spec_of(space, "elsewhere").state_from == "info"


def test_action_bounds_are_kept_for_each_dimension() -> None:
    bounds = read_action_space(spaces.Box(np.float32([[-2, 0]]), np.float32([[2, 10]])))
    assert (bounds.low, bounds.high, bounds.shape, bounds.dtype) == ((-2, 0), (2, 10), (1, 2), "float32")


def test_scaled_actions_stay_within_bounds_that_do_not_add_up_in_floating_point() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        low = (rng.normal(size=50) * 10.0 ** rng.integers(-6, 6, 50)).astype(dtype)
        space = spaces.Box(
            low, low + np.abs(rng.normal(size=50).astype(dtype)) + dtype(1e-3) + np.abs(low), dtype=dtype
        )
        bounds = read_action_space(space)
        spec = EnvSpec("it", read_observation_space(space).layout, bounds.low, bounds.high, bounds.shape, bounds.dtype)
        for action in (-1.0, 1.0, 3.0, *rng.uniform(-1, 1, 20)):
            assert space.contains(spec.to_environment(np.full(50, action, np.float32)))
        np.testing.assert_array_equal(spec.to_environment(np.full(50, -np.inf)), space.low)


def test_discrete_actions_are_indices_from_zero_and_go_back_and_forth() -> None:
    space, rng = spaces.Discrete(4, start=-1), np.random.default_rng(0)
    bounds = read_action_space(space)
    assert (bounds.choices, bounds.shape) == (4, ())
    layout = read_observation_space(spaces.Box(-1, 1, (2,))).layout
    spec = EnvSpec("it", layout, bounds.low, bounds.high, bounds.shape, bounds.dtype, choices=bounds.choices)
    assert EnvSpec.from_json(spec.to_json()) == spec
    action = spec.random_actions(rng, 200)
    assert action.shape == (200, 1)
    assert set(action.ravel()) == {0.0, 1.0, 2.0, 3.0}
    given = spec.to_environment(action)
    assert all(space.contains(each) for each in given)
    assert set(given) == {-1, 0, 1, 2}
    np.testing.assert_array_equal(spec.from_environment(given), action)


@pytest.mark.parametrize(
    ("space", "low", "high", "branches"),
    [
        (spaces.MultiDiscrete([2, 3]), (0, 0), (1, 2), (2, 3)),
        (spaces.MultiDiscrete([2, 1, 3], start=[-4, 5, 0]), (-4, 5, 0), (-3, 5, 2), (2, 1, 3)),
        (spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])), (0, 0, 0, 0), (1, 2, 3, 4), (2, 3, 4, 5)),
        (spaces.MultiDiscrete([6], dtype=np.uint8, start=[250]), (250,), (255,), (6,)),
        (spaces.MultiBinary(3), (0, 0, 0), (1, 1, 1), (2, 2, 2)),
        (spaces.MultiBinary((2, 1)), (0, 0), (1, 1), (2, 2)),
    ],
)
def test_independent_choices_become_branches_in_the_order_of_the_flattened_space(
    space: Any, low: tuple[float, ...], high: tuple[float, ...], branches: tuple[int, ...]
) -> None:
    spec = spec_of(ACTION, action=space)
    assert (spec.action_low, spec.action_high, spec.branches) == (low, high, branches)
    assert (spec.action_size, spec.choices) == (len(branches), None)
    assert (spec.action_shape, spec.action_dtype) == (space.shape, str(space.dtype))


@st.composite
def several(draw: st.DrawFn) -> Any:
    """A MultiDiscrete or MultiBinary space of up to three axes."""
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple))
    if draw(st.booleans()):
        return spaces.MultiBinary(shape)
    size = int(np.prod(shape))
    dtype = draw(st.sampled_from([np.int64, np.int32, np.int8, np.uint8]))
    lowest = 0 if dtype is np.uint8 else -60
    counts = draw(st.lists(st.integers(1, 60), min_size=size, max_size=size))
    start = draw(st.lists(st.integers(lowest, 60), min_size=size, max_size=size))
    return spaces.MultiDiscrete(np.reshape(counts, shape), dtype=dtype, start=np.reshape(start, shape))


@settings(max_examples=100)
@given(several(), st.integers(0, 2**32), st.integers(1, 4))
def test_indices_go_to_the_environment_and_back_in_every_space_of_independent_choices(
    space: Any, seed: int, count: int
) -> None:
    spec = spec_of(ACTION, action=space)
    action = spec.random_actions(np.random.default_rng(seed), count)
    assert (action.shape, action.dtype) == ((count, spec.action_size), np.float32)
    given = spec.to_environment(action)
    assert (given.shape, given.dtype) == ((count, *space.shape), space.dtype)
    assert all(space.contains(each) for each in given)
    np.testing.assert_array_equal(spec.from_environment(given), action)
    np.testing.assert_array_equal(spec.to_environment(action[0]), given[0])
    np.testing.assert_array_equal(spec.from_environment(given[0]), action[0])
    np.testing.assert_array_equal(spec.to_environment(action[None]), given[None])
    space.seed(seed)
    sample = space.sample()
    np.testing.assert_array_equal(spec.to_environment(spec.from_environment(sample)), sample)
    first, last = np.zeros(spec.action_size), np.array(spec.branches) - 1
    np.testing.assert_array_equal(spec.to_environment(first).ravel(), spec.action_low)
    np.testing.assert_array_equal(spec.to_environment(last).ravel(), spec.action_high)


def test_random_actions_are_uniform_over_each_branch_and_independent_between_them() -> None:
    spec = spec_of(ACTION, action=spaces.MultiDiscrete([[2, 5], [1, 3]], start=[[4, -9], [2, 0]]))
    rows = 60_000
    action = spec.random_actions(np.random.default_rng(0), rows).astype(int)
    for branch, count in enumerate(spec.branches):
        share = np.bincount(action[:, branch], minlength=count) / rows
        np.testing.assert_allclose(share, np.full(count, 1 / count), atol=0.01)
    pairs = np.bincount(action[:, 0] * 5 + action[:, 1], minlength=10) / rows
    np.testing.assert_allclose(pairs, np.full(10, 0.1), atol=0.01)


@pytest.mark.parametrize("space", [*SEVERAL, spaces.Discrete(4, start=-1), ACTION])
def test_a_spec_survives_json_whatever_its_actions_are(space: Any) -> None:
    spec = spec_of(ACTION, action=space)
    assert EnvSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_spec_that_was_saved_before_there_were_branches_has_none() -> None:
    spec = spec_of(ACTION)
    values = spec.to_json()
    del values["branches"]
    assert EnvSpec.from_json(values) == spec


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.MultiDiscrete([]), r"has no dimension; declare at least one action dimension"),
        (spaces.Text(3), r"is neither a Box of floats nor Discrete, MultiDiscrete or MultiBinary; declare one Box"),
        (spaces.Dict({"a": ACTION}), r"declare one Box of floats in an env_wrapper"),
        (spaces.Box(0, 5, (2,), np.int32), r"dtype int32, but continuous actions need a float dtype"),
        (
            spaces.Box(np.float32([-1, -np.inf]), np.float32([1, 3])),
            r"dimension 1 ranges from -inf to 3.0.*TransformAction",
        ),
        (spaces.Box(-np.inf, np.inf, (2, 2), np.float32), r"dimension \(0, 0\) \(and 3 more\) ranges from -inf to inf"),
        (
            spaces.Box(np.float32([-1, 2]), np.float32([1, 2])),
            r"dimension 1 ranges from 2.0 to 2.0, but low must be less",
        ),
        (spaces.Box(-1, 1, (0,), np.float32), r"has no dimension"),
    ],
)
def test_action_spaces_that_cannot_be_scaled_are_refused_with_a_remedy(space: Any, words: str) -> None:
    with pytest.raises(SpaceError, match=words):
        make_vector(lambda: Bent(action_space=space))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.MultiBinary(3), r"the observation space is MultiBinary\(3\).*FlattenObservation"),
        (spaces.Dict({"a": spaces.Tuple((spaces.MultiDiscrete([2]),))}), r"part 'a/0' of the observation space"),
        (spaces.Text(3), r"turn it into a Box of fixed shape"),
        (spaces.Dict({}), r"has no part, but a policy needs at least one"),
        (spaces.Dict({"a/b": ACTION, "a": spaces.Dict({"b": ACTION})}), r"have the joined key 'a/b'"),
    ],
)
def test_observation_spaces_that_cannot_be_flattened_are_refused_with_a_remedy(space: Any, words: str) -> None:
    with pytest.raises(SpaceError, match=words):
        make_vector(lambda: Bent(observation_space=space))


def test_every_problem_is_listed_not_only_the_first() -> None:
    space = spaces.Dict({"a": spaces.Text(3), "b": ACTION, "c": spaces.MultiBinary(2)})
    assert len(observation_problems(space)) == 2
    both = spaces.Box(np.float32([-np.inf, 1, -1]), np.float32([1, 1, 1]))
    assert len(action_problems(both)) == 2


def test_an_observation_with_nothing_but_the_state_is_refused() -> None:
    with pytest.raises(SpaceError, match="no part besides the privileged state 'state'"):
        read_observation_space(spaces.Dict({"state": ACTION}), "state")
