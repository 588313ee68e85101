"""Mixed precision: networks that compute in half precision with float32 weights, and the scale of float16's gradients.

Products are computed in bfloat16 or float16 by torch.autocast. Weights, their gradients, optimisers and losses stay in
float32. float16 has few exponents: gradients are multiplied by a scale on their way through a network, so that small
ones do not vanish, and divided by it at the parameters, where a step is left out if they are not finite.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import MethodType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

MIXED = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Precisions in which networks compute with float32 weights."""

FIRST_SCALE, LEAST_SCALE, LARGEST_SCALE = 2.0**16, 2.0**-16, 2.0**40
"""A scale beyond the last two would be no remedy: the loss itself, not its gradient's size, is then the reason."""
GROWTH_INTERVAL = 2_000
"""Steps in a row with finite gradients after which the scale doubles."""


def lower_precision(module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Lets a module compute in half precision from now on, whoever calls it; its outputs are float32.

    Weights that autocast has converted are not kept: the optimiser changes them in place, and one that was converted
    without gradient (in a burn-in) would have none later.
    """

    def lowered(self: Any, *inputs: Any, **named: Any) -> Any:
        with torch.autocast(device.type, dtype, cache_enabled=False):
            return _in_float32(self._full_precision_forward(*inputs, **named))

    # Bound methods, which a deep copy of the module binds to the copy.
    vars(module).update(_full_precision_forward=module.forward, forward=MethodType(lowered, module))


def full_precision_forward(module: nn.Module) -> Any:
    """The module as it computes without `lower_precision`."""
    return vars(module).get("_full_precision_forward", module)


def _in_float32(found: Any) -> Any:
    if isinstance(found, Tensor):
        return found.float() if found.dtype in MIXED.values() else found
    return type(found)(map(_in_float32, found)) if isinstance(found, tuple | list) else found


@contextlib.contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Computes in the tensors' own dtypes meanwhile; at no cost where autocast is off."""
    if not torch.is_autocast_enabled(device.type):
        yield
        return
    with torch.autocast(device.type, enabled=False):
        yield


def all_finite(gradients: Sequence[Tensor]) -> bool:
    """Whether no number of any gradient is infinite or NaN; on a GPU this waits for them."""
    return bool(torch.stack([gradient.isfinite().all() for gradient in gradients]).all())


class Scaler(Protocol):
    """What `apply` asks whether to make a step, and networks by what to multiply gradients: a tensor ()."""

    scale: Tensor

    def accepts(self, gradients: Sequence[Tensor]) -> bool: ...


class GradientScaler:
    """The factor of float16's gradients: it halves where one is not finite, and doubles after many that are.

    scale, growth, skipped: tensors (); growth counts steps since the scale changed, skipped those that were left out.
    """

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), FIRST_SCALE, device=device)
        self.growth = torch.zeros((), dtype=torch.int32, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)

    def accepts(self, gradients: Sequence[Tensor]) -> bool:
        """Whether the gradients of one step are finite; adapts the scale."""
        if all_finite(gradients):
            self.growth += 1
            if int(self.growth) >= GROWTH_INTERVAL:
                self.scale.mul_(2.0).clamp_(max=LARGEST_SCALE)
                self.growth.zero_()
            return True
        self.scale.mul_(0.5).clamp_(min=LEAST_SCALE)
        self.growth.zero_()
        self.skipped += 1
        return False

    def named(self) -> Iterator[tuple[str, Tensor]]:
        yield from (("scale", self.scale), ("growth", self.growth), ("skipped", self.skipped))

    def numbers(self) -> dict[str, float]:
        """For the log: how many steps were left out since the run began, and the scale."""
        return {"skipped_updates": float(self.skipped), "gradient_scale": float(self.scale)}
