"""OpenMP threads: limits the spinning of idle threads, counts cores. Imported first, so it loads nothing heavy."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path

SPINS = "1000"
"""GOMP_SPINCOUNT: polls of an idle OpenMP thread before it sleeps. By libgomp's default it spins for milliseconds, on a
core that another process may need: with both cores busy, updates took ten times as long."""
_USER_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")

_spinning_limited = False


def limit_spinning() -> None:
    """Limits spinning of idle threads, unless the user set it. Must run before torch, because libgomp reads it once."""
    global _spinning_limited
    chosen = any(name in os.environ for name in _USER_VARIABLES)
    _spinning_limited = chosen or "torch" not in sys.modules
    if not chosen and _spinning_limited:
        os.environ["GOMP_SPINCOUNT"] = SPINS


def idle_threads_spin() -> bool:
    """Whether idle threads keep spinning, because torch was loaded before Offbeat could limit it."""
    return not _spinning_limited


def cores() -> int:
    """Cores that this process may use: CPU affinity, reduced to the CPU quota of a container."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # not Linux, or no limit
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        count = min(count, max(1, quota // period))
    return count


def threads_wake_slowly() -> bool:
    """Whether a sleeping thread wakes slowly: measured on virtual Intel machines, not on AMD machines."""
    if platform.system() != "Linux":
        return False
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        return "GenuineIntel" in text and " hypervisor " in text
    return False
