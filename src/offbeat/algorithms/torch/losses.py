"""Losses and their gradients, written out, where the networks end: all that an algorithm differentiates by hand.

Each function that returns a gradient says of which formula. `Network` carries the gradients on to the parameters. Tests
hold every one of them to autograd.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from offbeat.algorithms.torch import across
from offbeat.algorithms.torch.batch import Batch
from offbeat.algorithms.torch.differentiate import Gradient, Network

ACTION = 2
"""Which of a critic's inputs (observation, privileged state, action) is the action."""


def weighted(values: Tensor, weight: Tensor | None) -> Tensor:
    """Values (..., B) times the rows' importance weights (B,), where there are some."""
    return values if weight is None else values * weight


def squared_error_gradient(target: Tensor, factor: float, weight: Tensor | None = None) -> Gradient:
    """The gradient of  factor / 2 * sum weight (Q - target)^2  at values Q (..., B); target, weight (B,)."""
    if weight is None:
        return lambda q: (q - target) * factor
    return lambda q: (q - target) * (factor * weight)


def error_loss(error: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """The loss of each error (B,) and its derivative (B,): the square (`mse`), or Huber's."""
    if kind == "mse":
        return error.square(), 2.0 * error
    slope = error.clamp(-1.0, 1.0)
    return slope * (error - 0.5 * slope), slope


def values_of_actions(critic: Network, batch: Batch, action: Tensor, of: str, factor: float) -> tuple[Tensor, Tensor]:
    """The critics' value V (B,) of actions (B, A), and the gradient (B, A) of  factor * sum V  at the actions.

    of: V is the minimum over critics (`min`), which has a gradient in the least one of each row alone; their `mean`; or
    the value of the `first`, the only one that is computed then.
    """
    if of == "first":
        q, tape = critic.first_member.forward(batch.obs, batch.state, action)
        return q, critic.first_member.to_input(ACTION, tape, torch.full_like(q, factor))
    q, tape = critic.forward(batch.obs, batch.state, action)
    if of == "mean":
        return q.mean(0), critic.input_gradient(ACTION, tape, torch.full_like(q, factor / len(q)))
    least, which = q.min(0)
    return least, critic.input_gradient(ACTION, tape, torch.full_like(least, factor), which)


def expected_loss_gradient(prob: Tensor, loss: Tensor, mean: Tensor) -> Tensor:
    """The gradient of  sum_a pi_a f_a  at the logits of pi (B, C):  pi_a (f_a - sum_b pi_b f_b).

    loss: f (B, C), which may contain log pi, because what log pi adds to the gradient sums to 0. mean (B, 1): the sum.
    """
    return prob * (loss - mean)


def standardise(weighted: Tensor, weight: Tensor) -> Tensor:
    """Weighted advantages  weight * A  (B,) as  weight * (A - mean) / deviation,  both moments of A by weight.

    A constant subtracted from A is a valid baseline, and one subtracted from weight * A is not: under mu, weight * grad
    log pi has mean 0, and grad log pi alone does not. Where all weights are 1 these are the plain moments. With several
    ranks, they are those of all rows together.
    """
    total, whole, count = across.sums(weight.sum(), weighted.sum(), len(weighted))
    total = total.clamp(min=1e-8)
    centred = weighted - weight * (whole / total)
    (squares,) = across.sums((centred.square() / weight.clamp(min=1e-8)).sum())  # weight * (A - mean)^2
    return centred / ((squares / total * (count / (count - 1))).sqrt() + 1e-8)


def policy_loss(
    log_prob: Tensor, behaviour: Tensor, reference: Tensor, advantage: Tensor, clip: float, cap: float
) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's loss, the mean of  -min(w A, clip(w, 1 - clip, 1 + clip) A),  its gradient (B,) at log pi, and w (B,).

    log_prob, behaviour, reference, advantage: (B,), log-probabilities under the policy pi that learns, mu that acted,
    and the reference pi'. The ratio is  w = min(mu / pi', cap) * pi / mu:  that of pi to pi', unless pi' is so much
    less likely than mu that `cap` limits it. The advantage accounts for the ratio of pi' to mu (see `vtrace`), so that
    both together account for who acted. On policy, mu = pi' and w is the usual ratio.
    """
    ratio = (log_prob - behaviour + (behaviour - reference).clamp(max=math.log(cap))).exp()
    free, clipped = ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage
    # Where the clipped one is the smaller, it is constant; w's derivative by log pi is w itself.
    gradient = torch.where(free <= clipped, free, 0.0) * (-1.0 / len(ratio))
    return -torch.minimum(free, clipped).mean(), gradient, ratio


def value_loss(value: Tensor, target: Tensor, before: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """The mean of  1/2 (V - target)^2  and its gradient (B,) at V; all arguments (B,).

    clip: V may move no further than this from what it was `before`: the larger of the two errors counts.
    """
    error = value - target
    if clip is None:
        return 0.5 * error.square().mean(), error / len(error)
    moved = value - before
    clipped = before + moved.clamp(-clip, clip) - target
    larger = clipped.square() > error.square()
    # Where the clipped one is the larger: it follows V only inside the bounds.
    gradient = torch.where(larger, torch.where(moved.abs() <= clip, clipped, 0.0), error)
    return 0.5 * torch.where(larger, clipped, error).square().mean(), gradient / len(error)


def divergence(log_prob: Tensor, reference: Tensor) -> Tensor:
    """An estimate of KL(pi' || pi), never negative:  mean (w - 1 - log w)  with  w = pi / pi'.

    Its expectation is exact for actions of pi'; in a rollout of an older policy, that policy's actions replace them.
    """
    difference = log_prob - reference
    return (difference.expm1() - difference).mean()
