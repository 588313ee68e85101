"""The final info of an episode: the last step's, in every kind of vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from offbeat.envs import make_vector
from offbeat.envs.infos import portable, row_of, success_of
from offbeat.types import Episode
from reaching import Reaching

ZERO = np.zeros((3, 1), np.float32)


@pytest.mark.parametrize(
    ("info", "success"),
    [
        ({"is_success": True}, True),
        ({"is_success": np.float32(0.0)}, False),
        ({"success": np.array([1])}, True),
        ({"is_success": False, "success": True}, False),
        ({"is_success": "yes", "success": 1}, True),
        ({"success": 0.7}, None),
        ({"success": [True, False]}, None),
        ({"success": np.array([True, False])}, None),
        ({"other": True}, None),
        (None, None),
    ],
)
def test_success_is_a_bool_or_0_or_1(info: Any, success: bool | None) -> None:
    assert success_of(info) is success


def vectors() -> dict[str, Any]:
    found: dict[str, Any] = {"inline": lambda: (Reaching, 3)}
    for mode in AutoresetMode:
        found[f"sync {mode.name}"] = lambda mode=mode: (SyncVectorEnv([Reaching] * 3, autoreset_mode=mode), 3)
    found["async SAME_STEP"] = lambda: (
        AsyncVectorEnv([Portable] * 3, autoreset_mode=AutoresetMode.SAME_STEP),
        3,
    )
    return found


class Portable(Reaching):
    """Without values that an AsyncVectorEnv cannot send."""

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *others, info = super().step(action)
        return *others, portable(info)  # type: ignore[return-value]


@pytest.mark.parametrize("kind", vectors())
def test_success_and_info_are_those_of_the_last_step(kind: str) -> None:
    vector = make_vector(*vectors()[kind]())
    vector.reset()
    ended: list[Episode] = []
    for _ in range(40):
        ended += vector.step(ZERO).finished
    vector.close()
    assert len(ended) >= 18
    assert {each.success for each in ended} == {True, False}
    assert all(each.success == (each.total_reward > 0) for each in ended)
    assert all(each.info["steps"] == 5 and each.info["place"].tolist() == [5, 5] for each in ended)


def test_a_row_of_infos_holds_the_values_of_that_environment() -> None:
    infos = {
        "here": np.array([1, 2]),
        "_here": np.array([True, False]),
        "nested": {"a": np.array([3, 4]), "_a": np.array([True, True])},
        "of no one": 5,
    }
    assert row_of(infos, 0) == {"here": 1, "nested": {"a": 3}}
    assert row_of(infos, 1) == {"nested": {"a": 4}}
    assert row_of(np.array([{"a": 1}, None]), 0) == {"a": 1}
    assert row_of(np.array([{"a": 1}, None]), 1) == {}


def test_a_collector_sends_only_plain_and_small_values() -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    info = {
        **{"number": 1, "text": "a", "none": None, "array": np.ones(3), "nested": {"list": [1, (2.0, "b")]}},
        **{"object": object(), "large": np.zeros(2_000), "objects": np.array([object()]), 7: "no text", "deep": loop},
        "mixed": [1, object()],
    }
    sent = portable(info)
    np.testing.assert_array_equal(sent.pop("array"), np.ones(3))
    assert sent == {
        **{"number": 1, "text": "a", "none": None, "nested": {"list": [1, [2.0, "b"]]}},
        "deep": {"loop": {"loop": {}}},
    }
