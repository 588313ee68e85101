"""The torch device, and the ways in which it computes products."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from offbeat.errors import UsageError


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device={name!r} is not a torch device; use cpu, cuda, cuda:1 or auto") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device={name!r} is not supported; use cpu, cuda, cuda:1 or auto")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device={name!r}, but torch sees no CUDA device here; use cpu or auto")
    return device


def check_precision(precision: str, tf32: bool, device: torch.device) -> None:
    """Raises UsageError for what the device cannot compute in. A processor computes in everything, if slowly."""
    if tf32 and device.type != "cuda":
        raise UsageError(
            f"tf32=True has no effect on device={device}: TF32 is a mode of NVIDIA GPUs; use device cuda, or leave "
            "tf32 out"
        )
    on_gpu = device.type == "cuda"
    if precision == "bfloat16" and on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError(
            f"precision=bfloat16, but device={device} ({torch.cuda.get_device_name(device)}) has no bfloat16; use "
            "precision float16 or float32"
        )


@contextlib.contextmanager
def tf32_products() -> Iterator[None]:
    """A GPU computes float32 products and convolutions in TF32 meanwhile, and torch's settings are given back."""
    gpu, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    parts: list[tuple[Any, str, Any]] = [(gpu, "allow_tf32", True), (convolutions, "allow_tf32", True)]
    if hasattr(convolutions, "conv"):  # since torch 2.9, which refuses to mix both ways
        parts = [(gpu, "fp32_precision", "tf32"), (convolutions.conv, "fp32_precision", "tf32")]
    before = [getattr(part, name) for part, name, _ in parts]
    for part, name, value in parts:
        setattr(part, name, value)
    try:
        yield
    finally:
        for (part, name, _), old in zip(parts, before, strict=True):
            setattr(part, name, old)
