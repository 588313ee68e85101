"""Sizes and limits of spaces, and their values as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from offbeat.compat.skrl.utils.spaces.torch import (
    compute_space_limits,
    compute_space_size,
    flatten_tensorized_space,
    sample_space,
    tensorize_space,
    unflatten_tensorized_space,
    untensorize_space,
)
from offbeat.errors import SpaceError

BOX = spaces.Box(np.array([-1.0, -np.inf], np.float32), np.array([2.0, np.inf], np.float32))
NESTED = spaces.Dict({"b": spaces.Tuple((spaces.Discrete(5), BOX)), "a": spaces.MultiDiscrete([2, 3])})
VALUE = {"b": (3, np.array([0.5, 7.0], np.float32)), "a": np.array([1, 2])}


def test_size_of_a_space_and_of_its_flat_tensor() -> None:
    assert compute_space_size(NESTED) == 5 + 2 + (2 + 3)  # one number for each choice
    assert compute_space_size(NESTED, occupied_size=True) == 1 + 2 + 2
    assert [compute_space_size(each) for each in (None, 4, 4.0, (2, 3), [5])] == [0, 4, 4, 6, 5]
    with pytest.raises(SpaceError, match=r"Text.* is not supported; use Box"):
        compute_space_size(spaces.Text(3), occupied_size=True)


def test_limits_of_a_space() -> None:
    low, high = compute_space_limits(spaces.Tuple((BOX, spaces.Discrete(3))))
    assert low is not None
    assert high is not None
    inf = float("inf")
    assert (low.tolist(), high.tolist()) == ([-1.0, -inf, -inf, -inf, -inf], [2.0, inf, inf, inf, inf])
    low, _ = compute_space_limits(spaces.Tuple((BOX, spaces.Discrete(3))), occupied_size=True, device="meta")
    assert low is not None
    assert low.shape == (3,)
    assert low.device.type == "meta"
    assert compute_space_limits(None) == (None, None)


@pytest.mark.parametrize(
    ("option", "dropped"),
    [  # of a space without limits, with a high one only, with a low one only
        (None, [(False, False), (False, False), (False, False)]),
        ("both", [(True, True), (False, False), (False, False)]),
        ("below", [(True, False), (True, False), (False, False)]),
        ("above", [(False, True), (False, False), (False, True)]),
        ("any", [(True, True), (True, False), (False, True)]),
    ],
)
def test_limits_that_are_infinite_may_be_none(option: Any, dropped: list[tuple[bool, bool]]) -> None:
    limits = [(-np.inf, np.inf), (-np.inf, 1.0), (-1.0, np.inf)]
    found = [compute_space_limits(spaces.Box(*each, (2,)), none_if_unbounded=option) for each in limits]
    assert [tuple(each is None for each in both) for both in found] == dropped
    assert None not in compute_space_limits(BOX, none_if_unbounded=option)  # one of its two is finite


def test_values_become_tensors_flat_and_back() -> None:
    tensors = tensorize_space(NESTED, VALUE)
    assert tensors["a"].dtype == torch.int32
    flat = flatten_tensorized_space(tensors)
    assert flat is not None
    assert flat.tolist() == [[1.0, 2.0, 3.0, 0.5, 7.0]]  # keys are sorted
    assert unflatten_tensorized_space(NESTED, flat)["b"][1].tolist() == [[0.5, 7.0]]
    again = untensorize_space(NESTED, tensors)
    assert again["b"][0] == 3
    np.testing.assert_array_equal(again["b"][1], VALUE["b"][1])
    np.testing.assert_array_equal(again["a"], VALUE["a"])
    batch = untensorize_space(NESTED, tensors, squeeze_batch_dimension=False)
    assert (batch["a"].shape, batch["b"][0].shape, batch["b"][1].shape) == ((1, 2), (1, 1), (1, 2))
    two = {"b": (torch.tensor([1, 4]), torch.zeros(2, 2)), "a": torch.zeros(2, 2)}
    assert untensorize_space(NESTED, tensorize_space(NESTED, two))["b"][0].tolist() == [[1], [4]]
    for function in (tensorize_space, untensorize_space, unflatten_tensorized_space):
        assert function(None, VALUE) is function(NESTED, None) is None  # type: ignore[operator]
    assert flatten_tensorized_space(None) is None


@pytest.mark.parametrize("value", [np.zeros(2), torch.zeros(2)])
def test_tensors_are_made_on_a_device_or_moved_to_it(value: Any) -> None:
    assert tensorize_space(BOX, value).device.type == "cpu"
    assert tensorize_space(BOX, value, device="meta").device.type == "meta"
    nested = tensorize_space(spaces.Dict({"x": spaces.Tuple((BOX,))}), {"x": (value,)}, device="meta")
    assert nested["x"][0].device.type == "meta"


def test_samples_are_new_ones_of_the_size_and_kind_that_was_asked_for() -> None:
    one = sample_space(NESTED)
    assert isinstance(one["a"], np.ndarray)
    assert (one["a"].shape, one["b"][0].shape, one["b"][1].shape) == ((1, 2), (1, 1), (1, 2))
    many = sample_space(NESTED, batch_size=50, backend="native")
    assert (many["a"].shape, many["b"][0].shape, many["b"][1].shape) == ((50, 2), (50, 1), (50, 2))
    assert set(many["b"][0].flatten().tolist()) <= set(range(5))
    assert len(set(many["b"][0].flatten().tolist())) > 1
    assert sample_space(BOX, backend="native", device="meta").device.type == "meta"
    assert sample_space(None) is None
    with pytest.raises(SpaceError, match="backend='torch' is unknown; use numpy or native"):
        sample_space(BOX, backend="torch")  # type: ignore[arg-type]
