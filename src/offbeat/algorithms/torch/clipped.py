"""PPO's objectives for a minibatch, and their gradients where the networks end.

With pi the policy that learns, mu the one that acted and pi' the reference (the target network, or the policy as it was
when its turn with the rollout began), the ratio is  w = min(mu / pi', cap) * pi / mu:  that of pi to pi', as long as
pi' is not so much less likely than mu that `cap` holds it. The advantage carries how much likelier pi' makes the action
than mu (see `vtrace`), so that both together account for who acted. On policy, mu = pi' and w is the usual ratio.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def standardise(weighted: Tensor, weight: Tensor) -> Tensor:
    """Weighted advantages  weight * A  (B,) as  weight * (A - mean) / deviation,  both moments of A by weight.

    A constant subtracted from A is a valid baseline, and one subtracted from weight * A is not: under mu, weight * grad
    log pi has mean 0, and grad log pi alone does not. Where all weights are 1 these are the plain moments.
    """
    count, total = len(weighted), weight.sum().clamp(min=1e-8)
    centred = weighted - weight * (weighted.sum() / total)
    squares = (centred.square() / weight.clamp(min=1e-8)).sum()  # weight * (A - mean)^2
    return centred / ((squares / total * (count / (count - 1))).sqrt() + 1e-8)


def policy_loss(
    log_prob: Tensor, behaviour: Tensor, reference: Tensor, advantage: Tensor, clip: float, cap: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean of  -min(w A, clip(w, 1 - clip, 1 + clip) A),  its gradient (B,) at log pi, and w (B,).

    log_prob, behaviour, reference, advantage: (B,), log-probabilities under pi, mu and pi'.
    """
    ratio = (log_prob - behaviour + (behaviour - reference).clamp(max=math.log(cap))).exp()
    free, held = ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage
    # Where the clipped one is the smaller, it is constant; w's derivative by log pi is w itself.
    gradient = torch.where(free <= held, free, 0.0) * (-1.0 / len(ratio))
    return -torch.minimum(free, held).mean(), gradient, ratio


def value_loss(value: Tensor, target: Tensor, before: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """The mean of  1/2 (V - target)^2  and its gradient (B,) at V; all arguments (B,).

    clip: V may move no further than this from what it was `before`: the larger of the two errors counts.
    """
    error = value - target
    if clip is None:
        return 0.5 * error.square().mean(), error / len(error)
    moved = value - before
    held = before + moved.clamp(-clip, clip) - target
    larger = held.square() > error.square()
    # Where the clipped one is the larger: it follows V only inside the bounds.
    gradient = torch.where(larger, torch.where(moved.abs() <= clip, held, 0.0), error)
    return 0.5 * torch.where(larger, held, error).square().mean(), gradient / len(error)


def divergence(log_prob: Tensor, reference: Tensor) -> Tensor:
    """An estimate of KL(pi' || pi), never negative:  mean (w - 1 - log w)  with  w = pi / pi'.

    It is exact on average for actions of pi'; those of an older policy, where there are such, stand in for them.
    """
    difference = log_prob - reference
    return (difference.expm1() - difference).mean()
