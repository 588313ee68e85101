"""How likely actions are under a policy's output, how spread it is, and the gradients of both: for on-policy learning.

A head takes the actor's output (B, ...) and actions (B, A) and gives log-probabilities (B,) and entropies (B,); its
`gradient` carries gradients at both back to the output, and to the log standard deviation where that is a parameter of
its own.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

Saved = Any
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
_INSIDE = 1.0 - 1e-6
"""Squashed actions are taken back to before their tanh from no nearer to the bounds than this."""


class Head(Protocol):
    def __call__(self, out: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Saved]:
        """Log-probability (B,), entropy (B,), and what `gradient` needs."""
        ...

    def gradient(self, saved: Saved, d_log_prob: Tensor, d_entropy: float) -> tuple[Tensor, Tensor]:
        """At the output (B, ...), and at log_std (A,), or (0,) where there is none.

        d_log_prob (B,); d_entropy: the same for every row.
        """
        ...


class Gaussian:
    """Independent normal actions; squashed, their tanh is what acts.

    out (B, A): means, with log_std (A,) a parameter of its own; or (B, 2A): means and log standard deviations, with
    log_std (0,). The entropy of a squashed policy is that before the tanh.
    """

    def __init__(self, squashed: bool = False) -> None:
        self.squashed = squashed

    def __call__(self, out: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Saved]:
        own = log_std.numel() > 0
        mean, log_std = (out, log_std.expand_as(out)) if own else out.chunk(2, -1)
        inside = action.clamp(-_INSIDE, _INSIDE)
        drawn = torch.atanh(inside) if self.squashed else action
        score = (drawn - mean) * (-log_std).exp()
        log_prob = -(0.5 * score.square() + log_std + _HALF_LOG_TAU).sum(-1)
        if self.squashed:
            log_prob = log_prob - torch.log1p(-inside.square()).sum(-1)
        return log_prob, (log_std + (0.5 + _HALF_LOG_TAU)).sum(-1), (score, log_std, own)

    def gradient(self, saved: Saved, d_log_prob: Tensor, d_entropy: float) -> tuple[Tensor, Tensor]:
        """d log pi / d mean = score / std, d log pi / d log std = score^2 - 1, d entropy / d log std = 1."""
        score, log_std, own = saved
        d_mean = d_log_prob.unsqueeze(-1) * score * (-log_std).exp()
        d_log_std = d_log_prob.unsqueeze(-1) * (score.square() - 1.0) + d_entropy
        return (d_mean, d_log_std.sum(0)) if own else (torch.cat((d_mean, d_log_std), -1), d_mean.new_zeros(0))


class Categorical:
    """One of C actions; out (B, C): logits. action (B, 1): its index."""

    def __call__(self, out: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Saved]:
        log_probs = functional.log_softmax(out, -1)
        probs, index = log_probs.exp(), action.long()
        entropy = -(probs * log_probs).sum(-1)
        return log_probs.gather(1, index).squeeze(1), entropy, (log_probs, probs, index, entropy)

    def gradient(self, saved: Saved, d_log_prob: Tensor, d_entropy: float) -> tuple[Tensor, Tensor]:
        """d log pi(a) / d logit_i = [i = a] - p_i,  d entropy / d logit_i = -p_i (log p_i + entropy)."""
        log_probs, probs, index, entropy = saved
        d_out = -probs * (d_log_prob.unsqueeze(-1) + d_entropy * (log_probs + entropy.unsqueeze(-1)))
        return d_out.scatter_add_(1, index, d_log_prob.unsqueeze(1)), d_out.new_zeros(0)
