"""Optimisers on flat vectors, and the one seam through which every gradient reaches a parameter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, get_args

import torch
from torch import Tensor

from offbeat.algorithms.configs import groups
from offbeat.algorithms.torch import across
from offbeat.algorithms.torch.precision import Scaler

OPTIMISERS = get_args(groups.Optimiser)
"""The names that `make_optimiser` knows."""


class Optimiser(Protocol):
    """What learns one flat vector. Its tensors, by name, are all that it remembers."""

    def step(self, flat: Tensor, gradient: Tensor, rate: float) -> None: ...

    def named(self) -> Iterator[tuple[str, Tensor]]: ...


class Adam:
    """Adam's state for one flat vector; the step itself is torch's fused kernel.

    decay: makes it AdamW, whose parameters shrink by this times the rate in each step (Loshchilov & Hutter 2019).
    """

    def __init__(
        self, flat: Tensor, epsilon: float = 1e-8, betas: tuple[float, float] = (0.9, 0.999), decay: float = 0.0
    ) -> None:
        self.epsilon, self.betas, self.decay = epsilon, betas, decay
        self.mean, self.square = torch.zeros_like(flat), torch.zeros_like(flat)
        self.steps = torch.zeros((), dtype=torch.float32, device=flat.device)

    def step(self, flat: Tensor, gradient: Tensor, rate: float) -> None:
        self.steps += 1
        fused = torch._fused_adamw_ if self.decay else torch._fused_adam_
        fused(
            [flat],
            [gradient],
            [self.mean],
            [self.square],
            [],
            [self.steps],
            lr=rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.decay,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
        )

    def named(self) -> Iterator[tuple[str, Tensor]]:
        yield from (("mean", self.mean), ("square", self.square), ("steps", self.steps))


class RMSProp:
    """Steps in units of the gradient's running root mean square."""

    def __init__(self, flat: Tensor) -> None:
        self.square = torch.zeros_like(flat)

    def step(self, flat: Tensor, gradient: Tensor, rate: float) -> None:
        self.square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        flat.addcdiv_(gradient, self.square.sqrt().add_(1e-8), value=-rate)

    def named(self) -> Iterator[tuple[str, Tensor]]:
        yield "square", self.square


class SGD:
    """Plain gradient descent."""

    def step(self, flat: Tensor, gradient: Tensor, rate: float) -> None:
        flat.sub_(gradient, alpha=rate)

    def named(self) -> Iterator[tuple[str, Tensor]]:
        yield from ()


class Guarded:
    """An optimiser whose step `apply` leaves out where a gradient is not finite, as float16's may be."""

    def __init__(self, optimiser: Optimiser, scaler: Scaler) -> None:
        self.optimiser, self.scaler = optimiser, scaler

    def step(self, flat: Tensor, gradient: Tensor, rate: float) -> None:
        self.optimiser.step(flat, gradient, rate)

    def named(self) -> Iterator[tuple[str, Tensor]]:
        return self.optimiser.named()


def make_optimiser(settings: groups.Optimisation, flat: Tensor, decay: bool = True) -> Optimiser:
    """The optimiser that the settings name, for one flat vector. decay: whether adamw's weight decay applies to it."""
    if settings.optimiser == "rmsprop":
        return RMSProp(flat)
    if settings.optimiser == "sgd":
        return SGD()
    shrink = settings.weight_decay if settings.optimiser == "adamw" and decay else 0.0
    return Adam(flat, settings.adam_epsilon, settings.adam_betas, shrink)


def apply(flat: Tensor, gradient: Tensor, optimiser: Optimiser, rate: float, max_norm: float | None = None) -> None:
    """One optimiser step on a flat vector: clips the gradient's norm where asked, then steps at `rate`."""
    apply_jointly([(flat, gradient, optimiser)], rate, max_norm)


def apply_jointly(
    parts: Sequence[tuple[Tensor, Tensor, Optimiser]], rate: float, max_norm: float | None = None
) -> None:
    """As `apply`, on several vectors whose gradients are clipped by the norm of all together.

    With several ranks, gradients become their mean over ranks first. Where one of them must be finite and is not, none
    is stepped, on any rank: the norm of all together is not finite either.
    """
    across.average([gradient for _, gradient, _ in parts])
    guards = [optimiser.scaler for _, _, optimiser in parts if isinstance(optimiser, Guarded)]
    if guards and not guards[0].accepts([gradient for _, gradient, _ in parts]):
        return
    if max_norm is not None:
        norms = [gradient.norm() for _, gradient, _ in parts]
        norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        parts = [(flat, gradient * factor, optimiser) for flat, gradient, optimiser in parts]
    for flat, gradient, optimiser in parts:
        optimiser.step(flat, gradient, rate)
