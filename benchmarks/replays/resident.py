"""Resident memory of this process."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes() -> int:
    """Resident bytes of this process, as counted by the kernel; Linux only."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
