"""What the numbers were measured on."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """CPU, cores, system, Python and date."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


@contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """A description; after the block, `others` in it is how many cores were busy meanwhile with anything but us.

    Contestants count as ours once they have ended. With as many threads as cores, already one busy core of others makes
    torch's threads wait for each other, and slows it tenfold: such results mean nothing.
    """
    machine = describe()
    start, busy, own = time.monotonic(), _busy_seconds(), sum(os.times()[:4])
    yield machine
    if busy is not None:
        spent = _busy_seconds() - busy - (sum(os.times()[:4]) - own)
        machine["others"] = round(max(0.0, spent / (time.monotonic() - start)), 2)


def sentence(machine: dict[str, Any]) -> str:
    text = "{cpu}, {cores} cores, {system}, Python {python}, {date}".format(**machine)
    return f"{text}; other processes kept {machine['others']} cores busy" if "others" in machine else text


def _busy_seconds() -> float | None:
    """Seconds that all cores together were not idle since start-up, time given to other virtual machines included."""
    counters = Path("/proc/stat")
    if not counters.exists():
        return None
    user, nice, system, _idle, _waiting, *rest = map(int, counters.read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return platform.processor() or "unknown CPU"
    fields = [line.split(":", 1) for line in information.read_text().splitlines() if ":" in line]
    known = {name.strip(): value.strip() for name, value in reversed(fields)}
    model = known.get("model name", platform.processor() or "unknown CPU")
    # A virtual machine often hides the name; family, model and stepping still say which core it is.
    numbers = [known[name] for name in ("cpu family", "model", "stepping") if name in known]
    cache = known.get("cache size")
    details = [f"family {'/'.join(numbers)}"] * bool(numbers) + [f"{cache} cache"] * bool(cache)
    return f"{model} ({', '.join(details)})" if details else model
