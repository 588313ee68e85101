"""Networks as flat vectors, Adam on them, and the one seam through which every gradient reaches a parameter."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn


class Network:
    """A module whose trainable parameters are views of one flat vector: a step, an average or a norm is one call.

    `rename` maps the module's own names to those in `Weights` and checkpoints.
    """

    def __init__(self, module: nn.Module, rename: Callable[[str], str] = str) -> None:
        self.module, self.rename = module, rename
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.flat = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        place = 0
        for parameter in self.parameters:
            count = parameter.numel()
            parameter.data = self.flat[place : place + count].view_as(parameter)
            place += count

    def __call__(self, *inputs: Tensor) -> Tensor:
        out: Tensor = self.module(*inputs)
        return out

    def copy(self) -> Network:
        """The same network over a flat vector of its own (a target)."""
        return Network(copy.deepcopy(self.module), self.rename)

    def follow(self, other: Network, share: float) -> None:
        """Moves towards `other` by `share` (Polyak); buffers such as running statistics are copied."""
        self.flat.lerp_(other.flat, share)
        for mine, theirs in zip(self.module.buffers(), other.module.buffers(), strict=True):
            mine.copy_(theirs)

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Everything that the module holds, trainable or not, under its name in `Weights`."""
        for name, tensor in self.module.state_dict().items():
            yield self.rename(name), tensor


class Adam:
    """Adam's state for one flat vector; the step itself is torch's fused kernel."""

    def __init__(self, flat: Tensor) -> None:
        self.mean, self.square = torch.zeros_like(flat), torch.zeros_like(flat)
        self.steps = torch.zeros((), dtype=torch.float32, device=flat.device)

    def step(self, flat: Tensor, gradient: Tensor, rate: float) -> None:
        self.steps += 1
        torch._fused_adam_(
            [flat],
            [gradient],
            [self.mean],
            [self.square],
            [],
            [self.steps],
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def named(self) -> Iterator[tuple[str, Tensor]]:
        yield from (("mean", self.mean), ("square", self.square), ("steps", self.steps))


def apply(flat: Tensor, gradient: Tensor, optimiser: Adam, rate: float, max_norm: float | None = None) -> None:
    """One optimiser step on a flat vector: clips the gradient's norm where asked, then steps at `rate`."""
    if max_norm is not None:
        gradient = gradient * (max_norm / (gradient.norm() + 1e-6)).clamp(max=1.0)
    optimiser.step(flat, gradient, rate)


def gradient_of(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The gradient as one flat vector, in the order of `parameters`; zero where the loss does not depend on one."""
    parts = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(parameter) if part is None else part).reshape(-1)
            for part, parameter in zip(parts, parameters, strict=True)
        ]
    )
