"""Steps on losses that autograd differentiates, so that an algorithm can be written as losses only."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from offbeat.algorithms.torch.differentiate import Network, filled
from offbeat.algorithms.torch.optimise import Guarded, Optimiser, apply
from offbeat.errors import OffbeatError


def minimise(
    loss: Tensor, what: Network | Tensor, optimiser: Optimiser, rate: float, max_norm: float | None = None
) -> Tensor:
    """One optimiser step on a loss, a single number; returns the loss without its graph.

    what: the network that learns, or a tensor with requires_grad; nothing else changes, whatever the loss depends on.
    max_norm: as for `apply`. The loss is computed with `network.module(...)`: `network(...)` keeps no gradient.
    """
    gradient = loss_gradient(loss, what, optimiser.scaler.scale if isinstance(optimiser, Guarded) else None)
    with torch.no_grad():
        apply(what if isinstance(what, Tensor) else what.flat, gradient, optimiser, rate, max_norm)
    # The parameters are views of the flat vector, whose step autograd does not notice by itself: an older loss that
    # depends on them must not be differentiated any more.
    increment_version(_parameters(what))
    return loss.detach()


def loss_gradient(loss: Tensor, what: Network | Tensor, scale: Tensor | None = None) -> Tensor:
    """The gradient of a loss at a network's parameters, in the order of its flat vector; or at a tensor.

    scale: multiplies gradients on their way through the graph, as float16 needs it; those returned are not scaled.
    """
    if loss.numel() != 1:
        raise OffbeatError(f"the loss has the shape {tuple(loss.shape)}, but must be one number: use its mean or sum")
    if not loss.requires_grad:
        raise OffbeatError(
            "the loss has no gradient: compute it with network.module(...), because network(...) keeps none, outside "
            "of torch.no_grad, in an Algorithm that is not explicit"
        )
    parameters = _parameters(what)
    try:
        found = torch.autograd.grad(loss.reshape(()), parameters, scale, allow_unused=True)
    except RuntimeError as error:
        raise OffbeatError(
            f"the loss cannot be differentiated: {error}. Compute each loss directly before its step: a step changes "
            "the parameters, and frees the graph of its loss"
        ) from error
    if all(each is None for each in found):
        raise OffbeatError(
            "the loss does not depend on what it is to train: pass the network that it was computed with"
        )
    whole = filled(found, parameters)
    gradient = whole[0] if isinstance(what, Tensor) else torch.cat([each.reshape(-1) for each in whole])
    return gradient if scale is None else gradient / scale


def _parameters(what: Network | Tensor) -> list[Tensor]:
    if isinstance(what, Tensor):
        return [what]
    return [parameter for parameter in what.module.parameters() if parameter.requires_grad]
