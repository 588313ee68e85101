"""An environment that prints at every step, as native simulators do: to the descriptors, whatever Python knows."""

from __future__ import annotations

import os
from typing import Any

from faulty_envs import Faulty


class Printing(Faulty):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for descriptor in (1, 2):
            os.write(descriptor, b"x" * 1_000)
        return super().step(action)


def make(**kwargs: Any) -> Printing:
    return Printing("nan", "/nowhere", at=-1)
