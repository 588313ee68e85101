"""An environment that does what it should, with the spaces of `faulty_envs`."""

from __future__ import annotations

from typing import Any

from faulty_envs import Faulty


def make(**kwargs: Any) -> Faulty:
    return Faulty("nan", "/nowhere", at=-1)
