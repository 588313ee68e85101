"""What the processor computes with: its instructions for half precision."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path

CPUINFO = "/proc/cpuinfo"
INSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16", "svebf16"),
    "float16": ("avx512_fp16", "amx_fp16", "asimdhp"),
}
"""Flags of /proc/cpuinfo, of x86 and of ARM, any of which makes products in this type fast."""
SLOWER: dict[str, str] = {
    "bfloat16": "a product of 256 x 256 matrices took 1.3 times as long as in float32 with AVX-512 alone, and 42 times "
    "as long with AVX2",
    "float16": "a product of 256 x 256 matrices took 39 times as long as in float32",
}
"""Measured on a Zen 5 processor, with the instructions switched off (`ONEDNN_MAX_CPU_ISA`) where it has them."""


def flags(path: str | Path = CPUINFO) -> frozenset[str]:
    """The processor's flags; none where the system does not list them (macOS, Windows)."""
    return frozenset(flag for key in ("flags", "Features") for flag in _listed(key, path).split())


@cache
def vendor(path: str | Path = CPUINFO) -> str:
    """The processor's maker, such as AuthenticAMD; empty where the system does not name it."""
    return _listed("vendor_id", path)


def _listed(key: str, path: str | Path) -> str:
    """What the system says of the first core under a key."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    found = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in found if name.strip() == key), "")


def slow_precision(precision: str, device: str) -> str | None:
    """Why a precision is slow on a device, as a sentence; None where it is not, or where nothing is known of it."""
    found = flags() if device == "cpu" and precision in INSTRUCTIONS else frozenset()
    if not found or found.intersection(INSTRUCTIONS[precision]):
        return None
    return (
        f"precision={precision} is slow here: this processor has no instructions for it "
        f"({' or '.join(INSTRUCTIONS[precision][:2])}); {SLOWER[precision]}. Use precision float32"
    )


def warn_of_slow_precision(precision: str, device: str) -> None:
    """A warning of Python's, for an agent; a run has its own notes."""
    if (slow := slow_precision(precision, device)) is not None:
        warnings.warn(slow, stacklevel=4)
