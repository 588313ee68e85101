"""Torch's threads: how soon idle ones sleep, and how many cores there are. Imported first: loads nothing heavy."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path

SPINS = "1000"
"""How often an idle thread of OpenMP looks for work before it sleeps. libgomp's own number keeps it looking for
milliseconds, on a core that another process may need: with both cores busy, updates took ten times as long."""
_WISHES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")

_sleep_soon = False


def sleep_soon() -> None:
    """Makes idle threads sleep soon, unless the user has set that. libgomp looks once, when torch loads it."""
    global _sleep_soon
    chosen = any(name in os.environ for name in _WISHES)
    _sleep_soon = chosen or "torch" not in sys.modules
    if not chosen and _sleep_soon:
        os.environ["GOMP_SPINCOUNT"] = SPINS


def spin_long() -> bool:
    """Whether idle threads keep their core busy, because torch was loaded before Offbeat could say otherwise."""
    return not _sleep_soon


def cores() -> int:
    """Cores that this process may use; a container may be given less time than its cores have."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # another system, or no limit
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        count = min(count, max(1, quota // period))
    return count


def wake_slowly() -> bool:
    """Whether a sleeping thread takes long to wake, as measured on virtual Intel machines, and not on AMD ones."""
    if platform.system() != "Linux":
        return False
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        return "GenuineIntel" in text and " hypervisor " in text
    return False
