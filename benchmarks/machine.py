"""Describes the machine of a measurement and its load."""

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
    """The description of the machine; after the block, `others` is the number of cores that other processes used.

    Contestants must end within the block, or they count as others. With as many threads as cores, one core that another
    process uses makes torch's threads wait for each other and slows them tenfold; such results are invalid.
    """
    machine = describe()
    start, busy, own = time.monotonic(), busy_seconds(), sum(os.times()[:4])
    yield machine
    if busy is not None:
        spent = busy_seconds() - busy - (sum(os.times()[:4]) - own)
        machine["others"] = round(max(0.0, spent / (time.monotonic() - start)), 2)


def sentence(machine: dict[str, Any]) -> str:
    text = "{cpu}, {cores} cores, {system}, Python {python}, {date}".format(**machine)
    return f"{text}; other processes used {machine['others']} cores" if "others" in machine else text


def busy_seconds() -> float | None:
    """Busy seconds of all cores since start-up, including time that the host gave to other virtual machines."""
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
    # A virtual machine often hides the name; family, model and stepping identify the processor.
    numbers = [known[name] for name in ("cpu family", "model", "stepping") if name in known]
    cache = known.get("cache size")
    details = [f"family {'/'.join(numbers)}"] * bool(numbers) + [f"{cache} cache"] * bool(cache)
    return f"{model} ({', '.join(details)})" if details else model
