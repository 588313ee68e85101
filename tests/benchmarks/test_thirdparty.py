"""How benchmarks/thirdparty.py classifies the result of training on a third-party environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import thirdparty


@pytest.mark.parametrize(
    ("code", "stderr", "outcome"),
    [
        (0, "a warning", "works"),
        (2, "offbeat: error: part 'mission' of the observation space is text", "refused"),
        (1, "noise\noffbeat: error: Fetch-v4 could not be made: AssertionError at a.py:1", "cannot be made"),
        (1, "offbeat: error: KeyError: 'x' (unexpected; --debug prints the traceback)", "FAILS"),
        (-9, "Killed", "FAILS"),
    ],
)
def test_a_trial_fails_only_on_an_unexpected_error(code: int, stderr: str, outcome: str) -> None:
    assert thirdparty.judge(code, stderr)[0] == outcome


def test_a_package_that_is_not_installed_is_not_tried() -> None:
    assert thirdparty.attempt(thirdparty.Trial("no-such-package", "sac", "nothing:Nothing-v0"), 100) == (
        "not installed",
        "",
    )
