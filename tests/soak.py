"""How long the fault tests go on: in full with OFFBEAT_SOAK=1 (`make soak`), a small part by default."""

from __future__ import annotations

import os

FULL = bool(os.environ.get("OFFBEAT_SOAK"))


def count(full: int) -> int:
    return full if FULL else max(1, full // 20)
