"""The squashed Gaussian: actions and log-probabilities from mean and log standard deviation, and the way back."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

Saved = tuple[Tensor, Tensor, Tensor]
"""action (B, A), deviation times noise (B, A), log standard deviation before the clamp (B, A)"""


def squash(out: Tensor, noise: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor, Saved]:
    """Actions (B, A) in [-1, 1], their log-probability (B,), and what `squash_gradient` needs.

    out (B, 2A): mean and log standard deviation, which is clamped to `bounds`. noise (B, A): standard normal.
    With u = mean + std * noise and a = tanh(u), log pi(a) = log N(u) - sum log(1 - a^2); the last term is written
    2 (log 2 - u - softplus(-2u)), which is exact for large |u|.
    """
    mean, raw = out.chunk(2, -1)
    log_std = raw.clamp(*bounds)
    moved = log_std.exp() * noise
    u = mean + moved
    action = torch.tanh(u)
    # u + softplus(-2u), written for torch's softplus(u, beta) = log(1 + exp(beta u)) / beta, exact up to its threshold.
    terms = torch.addcmul(log_std, noise, noise, value=0.5) - 2.0 * (functional.softplus(u, 2.0, 50.0) * 2.0 - u)
    constant = noise.shape[-1] * (0.5 * math.log(2 * math.pi) + 2.0 * math.log(2.0))
    return action, -constant - terms.sum(-1), (action, moved, raw)


def squash_gradient(saved: Saved, d_action: Tensor, d_log_prob: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The gradient (B, 2A) at `out`, from those at the action (B, A) and the log-probability (B, 1) or (1,).

    d log pi / du = 2 tanh(u), and d log pi / d log std = -1 besides what u carries.
    """
    action, moved, raw = saved
    d_u = d_action * (1.0 - action.square()) + (2.0 * d_log_prob) * action
    d_log_std = torch.where((raw >= bounds[0]) & (raw <= bounds[1]), d_u * moved - d_log_prob, 0.0)
    return torch.cat((d_u, d_log_std), -1)
