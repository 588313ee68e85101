"""Distributions of actions from an actor's output, and their gradients.

SAC samples actions with `squash`. PPO's heads take the actor's output (B, ...) and actions (B, A) and give
log-probabilities (B,) and entropies (B,); their `gradient` carries gradients at both back to the output, and to the log
standard deviation where that is a parameter of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

Saved = Any
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
_INSIDE = 1.0 - 2.0**-20
"""Squashed actions are clamped to this before atanh; exact in float32."""


class Head(Protocol):
    def __call__(self, out: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Saved]:
        """Log-probability (B,), entropy (B,), and what `gradient` needs."""
        ...

    def gradient(self, saved: Saved, d_log_prob: Tensor, d_entropy: float) -> tuple[Tensor, Tensor]:
        """Gradients at the output (B, ...), and at log_std (A,), or (0,) where there is none.

        d_log_prob (B,); d_entropy: the same for every row.
        """
        ...

    def parameters(self, out: Tensor, log_std: Tensor) -> Tensor:
        """The distributions of B rows as one matrix (B, P), for `divergence`."""
        ...

    def divergence(self, reference: Tensor, parameters: Tensor) -> Tensor:
        """KL(reference || pi) (B,), both as `parameters`."""
        ...


class GaussianHead:
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
            # Not 1 - a^2, whose rounding in float32 is a hundredth of it near the bounds.
            log_prob = log_prob - torch.log((1.0 - inside) * (1.0 + inside)).sum(-1)
        return log_prob, (log_std + (0.5 + _HALF_LOG_TAU)).sum(-1), (score, log_std, own)

    def gradient(self, saved: Saved, d_log_prob: Tensor, d_entropy: float) -> tuple[Tensor, Tensor]:
        """d log pi / d mean = score / std, d log pi / d log std = score^2 - 1, d entropy / d log std = 1."""
        score, log_std, own = saved
        d_mean = d_log_prob.unsqueeze(-1) * score * (-log_std).exp()
        d_log_std = d_log_prob.unsqueeze(-1) * (score.square() - 1.0) + d_entropy
        return (d_mean, d_log_std.sum(0)) if own else (torch.cat((d_mean, d_log_std), -1), d_mean.new_zeros(0))

    def parameters(self, out: Tensor, log_std: Tensor) -> Tensor:
        """Means and log standard deviations (B, 2A)."""
        return torch.cat((out, log_std.expand_as(out)), -1) if log_std.numel() else out

    def divergence(self, reference: Tensor, parameters: Tensor) -> Tensor:
        """The sum over actions of  log(std / std' + 1e-5) + (std'^2 + (mean' - mean)^2) / (2 std^2) - 1/2.

        1e-5, as in rsl_rl, makes the divergence of equal policies a small positive number instead of the sign of a
        rounding error, on which an adaptive rate would depend. The tanh of a squashed policy changes nothing.
        """
        (mean0, log_std0), (mean, log_std) = reference.chunk(2, -1), parameters.chunk(2, -1)
        squares = ((2.0 * log_std0).exp() + (mean0 - mean).square()) * (0.5 * (-2.0 * log_std).exp())
        return (((log_std - log_std0).exp() + 1e-5).log() + squares - 0.5).sum(-1)


class Categorical:
    """One of C actions; out (B, C): logits, -inf for an action that cannot be taken. action (B, 1): its index."""

    def __call__(self, out: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Saved]:
        log_probs = functional.log_softmax(out, -1)
        probs, index = log_probs.exp(), action.long()
        log_prob = log_probs.gather(1, index).squeeze(1)
        log_probs = torch.where(probs > 0.0, log_probs, 0.0)  # 0 log 0 is 0
        entropy = -(probs * log_probs).sum(-1)
        return log_prob, entropy, (log_probs, probs, index, entropy)

    def gradient(self, saved: Saved, d_log_prob: Tensor, d_entropy: float) -> tuple[Tensor, Tensor]:
        """d log pi(a) / d logit_i = [i = a] - p_i,  d entropy / d logit_i = -p_i (log p_i + entropy)."""
        log_probs, probs, index, entropy = saved
        d_out = -probs * (d_log_prob.unsqueeze(-1) + d_entropy * (log_probs + entropy.unsqueeze(-1)))
        return d_out.scatter_add_(1, index, d_log_prob.unsqueeze(1)), d_out.new_zeros(0)

    def parameters(self, out: Tensor, log_std: Tensor) -> Tensor:
        """Log-probabilities (B, C)."""
        return functional.log_softmax(out, -1)

    def divergence(self, reference: Tensor, parameters: Tensor) -> Tensor:
        """The sum over actions of  p' (log p' - log p)."""
        return _categorical_divergence(reference, parameters).sum(-1)


class MultiCategorical:
    """A independent choices, the first among branches[0] actions and so on; out (B, sum of branches): logits.

    action (B, A): their indices.
    """

    def __init__(self, branches: Sequence[int]) -> None:
        self._branches, self._shape = tuple(branches), (len(branches), max(branches))
        self._even = min(branches) == max(branches)

    def __call__(self, out: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Saved]:
        log_probs = functional.log_softmax(self._padded(out), -1)  # (B, A, C)
        probs, index = log_probs.exp(), action.long().unsqueeze(-1)
        log_prob = log_probs.gather(2, index).squeeze(-1).sum(-1)
        log_probs = torch.where(probs > 0.0, log_probs, 0.0)  # also where a branch has fewer than C choices
        entropy = -(probs * log_probs).sum(-1, keepdim=True)
        return log_prob, entropy.sum((1, 2)), (log_probs, probs, index, entropy)

    def gradient(self, saved: Saved, d_log_prob: Tensor, d_entropy: float) -> tuple[Tensor, Tensor]:
        """As for one choice, in each branch."""
        log_probs, probs, index, entropy = saved
        d_log_prob = d_log_prob.reshape(-1, 1, 1)
        d_out = -probs * (d_log_prob + d_entropy * (log_probs + entropy))
        d_out.scatter_add_(2, index, d_log_prob.expand_as(index))
        return self._unpadded(d_out), d_out.new_zeros(0)

    def parameters(self, out: Tensor, log_std: Tensor) -> Tensor:
        """Log-probabilities (B, A * C), -inf where a branch has fewer than C choices."""
        return functional.log_softmax(self._padded(out), -1).flatten(1)

    def divergence(self, reference: Tensor, parameters: Tensor) -> Tensor:
        """As for one choice, over all branches."""
        return _categorical_divergence(reference, parameters).sum(-1)

    def _padded(self, out: Tensor) -> Tensor:
        """(B, sum of branches) to (B, A, C), -inf where a branch has fewer than C choices."""
        if self._even:
            return out.unflatten(1, self._shape)
        empty = out.new_full((len(out), math.prod(self._shape)), -math.inf)
        return empty.index_copy(1, _places(self._branches, out.device), out).unflatten(1, self._shape)

    def _unpadded(self, padded: Tensor) -> Tensor:
        """The inverse of `_padded`."""
        flat = padded.flatten(1)
        return flat if self._even else flat.index_select(1, _places(self._branches, flat.device))


def _categorical_divergence(reference: Tensor, log_probs: Tensor) -> Tensor:
    """p' (log p' - log p) of each action, 0 where p' is 0."""
    prob = reference.exp()
    return torch.where(prob > 0.0, prob * (reference - log_probs), 0.0)


@cache
def _places(branches: tuple[int, ...], device: torch.device) -> Tensor:
    """The index of each logit once all branches are padded to the widest: (sum of branches,)."""
    wide = max(branches)
    places = [branch * wide + choice for branch, size in enumerate(branches) for choice in range(size)]
    with torch.inference_mode(False):  # cached, and a later caller may need autograd
        return torch.tensor(places, device=device)


SquashSaved = tuple[Tensor, Tensor, Tensor]
"""action (B, A), deviation times noise (B, A), log standard deviation before the clamp (B, A)"""


def squash(out: Tensor, noise: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor, SquashSaved]:
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


def squash_gradient(saved: SquashSaved, d_action: Tensor, d_log_prob: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The gradient (B, 2A) at `out`, from those at the action (B, A) and the log-probability (B, 1) or (1,).

    d log pi / du = 2 tanh(u), and d log pi / d log std = -1 besides what u carries.
    """
    action, moved, raw = saved
    d_u = d_action * (1.0 - action.square()) + (2.0 * d_log_prob) * action
    d_log_std = torch.where((raw >= bounds[0]) & (raw <= bounds[1]), d_u * moved - d_log_prob, 0.0)
    return torch.cat((d_u, d_log_std), -1)
