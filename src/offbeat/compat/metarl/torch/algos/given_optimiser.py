"""Torch's optimiser classes on the flat vector of a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from offbeat.errors import UsageError

_FROM_ZERO = ("Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "RMSprop", "SGD")
"""Classes whose state begins with zeros, or is there from the beginning, so that a checkpoint can hold it."""


class Rate(float):
    """A learning rate that is a default, and gives way to the one among an optimiser's own arguments."""


class GivenOptimiser:
    """An optimiser class with its arguments, for one network."""

    def __init__(self, kind: type, arguments: Mapping[str, Any]) -> None:
        self.kind, self.arguments = kind, dict(arguments)

    def on(self, flat: Tensor) -> FlatOptimiser:
        return FlatOptimiser(self.kind, self.arguments, flat)


class FlatOptimiser:
    """One of torch's optimisers on a flat vector; `named` yields the tensors that it remembers."""

    def __init__(self, kind: type, arguments: Mapping[str, Any], flat: Tensor) -> None:
        # Detached, so that a step with the gradient that we give it changes the network's own memory.
        self._flat = flat.detach().requires_grad_(True)
        self._optimiser: Any = kind([self._flat], **arguments)
        state = self._optimiser.state[self._flat]
        if not state:
            state.update(_first_state(kind, arguments, flat))

    def step(self, flat: Tensor, gradient: Tensor, rate: float) -> None:
        self._optimiser.param_groups[0]["lr"] = rate
        self._flat.grad = gradient
        self._optimiser.step()

    def named(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self._optimiser.state[self._flat].items():
            if isinstance(value, Tensor):
                yield name, value


def _first_state(kind: type, arguments: Mapping[str, Any], flat: Tensor) -> dict[str, Tensor]:
    """What the optimiser remembers before its first step: zeros, of the shapes that it has after a step."""
    other = torch.zeros_like(flat, requires_grad=True)
    optimiser: Any = kind([other], **arguments)
    other.grad = torch.zeros_like(flat)
    optimiser.step()
    return {name: torch.zeros_like(each) for name, each in optimiser.state[other].items() if isinstance(each, Tensor)}


def read_optimiser(
    name: str, given: Any, rate_name: str, rate: float, weight_decay: float = 0.0
) -> tuple[float, GivenOptimiser | None]:
    """The learning rate, and the optimiser; None for plain Adam, which Offbeat has itself.

    given: a class, or (class, arguments). name, rate_name: of the arguments, for errors. weight_decay: of L2.
    """
    kind, arguments = given if isinstance(given, tuple) else (given, None)
    if not isinstance(kind, type) or kind.__module__.split(".")[:2] != ["torch", "optim"]:
        raise UsageError(f"{name}={given!r} must be a class of torch.optim, or a pair of it and its arguments")
    if kind.__name__ not in _FROM_ZERO:
        raise UsageError(f"{name}={kind.__name__} is not supported; use {', '.join(_FROM_ZERO)}")
    if arguments is not None and not isinstance(rate, Rate):
        raise UsageError(f"{rate_name}={rate} was given with {name}={given!r}; put lr among those arguments")
    own = dict(arguments or {})
    rate = float(own.pop("lr", rate))
    if kind is torch.optim.Adam and not own and not weight_decay:
        return rate, None
    if kind is torch.optim.SGD and own.get("dampening"):
        raise UsageError(f"{name}: dampening={own['dampening']} is not supported; leave it out")
    if weight_decay:
        own["weight_decay"] = weight_decay
    return rate, GivenOptimiser(kind, {"lr": rate, **own})
