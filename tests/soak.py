"""How long the fault tests go on: a twentieth by default, in full with OFFBEAT_SOAK=1 (`make soak`)."""

from __future__ import annotations

import os

FULL = bool(os.environ.get("OFFBEAT_SOAK"))


def count(full: int) -> int:
    return full if FULL else max(1, full // 20)
