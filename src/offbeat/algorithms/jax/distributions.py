"""What the actors' outputs mean: actions, their log-probabilities and entropies.

SAC samples actions with `squash`. PPO's heads take the actor's output (B, ...) and actions (B, A) and give
log-probabilities (B,) and entropies (B,).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
_INSIDE = 1.0 - 2.0**-20
"""Squashed actions are clamped to this before atanh; exact in float32."""


class Head(Protocol):
    def __call__(self, out: Array, log_std: Array | None, action: Array) -> tuple[Array, Array]:
        """Log-probability (B,) and entropy (B,). log_std (A,): where that is a parameter of its own."""
        ...

    def parameters(self, out: Array, log_std: Array | None) -> Array:
        """The distributions of B rows as one matrix (B, P), for `divergence`."""
        ...

    def divergence(self, reference: Array, parameters: Array) -> Array:
        """KL(reference || pi) (B,), both as `parameters`."""
        ...


@dataclass(frozen=True)
class GaussianHead:
    """Independent normal actions; squashed, their tanh is what acts.

    out (B, A): means, with log_std (A,) a parameter of its own; or (B, 2A): means and log standard deviations. The
    entropy of a squashed policy is that before the tanh.
    """

    squashed: bool = False

    def __call__(self, out: Array, log_std: Array | None, action: Array) -> tuple[Array, Array]:
        mean, log_std = jnp.split(out, 2, -1) if log_std is None else (out, log_std)
        inside = jnp.clip(action, -_INSIDE, _INSIDE)
        drawn = jnp.arctanh(inside) if self.squashed else action
        score = (drawn - mean) * jnp.exp(-log_std)
        log_prob = -(0.5 * score * score + log_std + _HALF_LOG_TAU).sum(-1)
        if self.squashed:
            # Not 1 - a^2, whose rounding in float32 is a hundredth of it near the bounds.
            log_prob = log_prob - jnp.log((1.0 - inside) * (1.0 + inside)).sum(-1)
        entropy = (log_std + (0.5 + _HALF_LOG_TAU)).sum(-1)
        return log_prob, jnp.broadcast_to(entropy, log_prob.shape)

    def parameters(self, out: Array, log_std: Array | None) -> Array:
        """Means and log standard deviations (B, 2A)."""
        return out if log_std is None else jnp.concatenate((out, jnp.broadcast_to(log_std, out.shape)), -1)

    def divergence(self, reference: Array, parameters: Array) -> Array:
        """The sum over actions of  log(std / std' + 1e-5) + (std'^2 + (mean' - mean)^2) / (2 std^2) - 1/2.

        1e-5, as in rsl_rl, makes the divergence of equal policies a small positive number instead of the sign of a
        rounding error, on which an adaptive rate would depend. The tanh of a squashed policy changes nothing.
        """
        (mean0, log_std0), (mean, log_std) = jnp.split(reference, 2, -1), jnp.split(parameters, 2, -1)
        squares = (jnp.exp(2.0 * log_std0) + (mean0 - mean) ** 2) * (0.5 * jnp.exp(-2.0 * log_std))
        return (jnp.log(jnp.exp(log_std - log_std0) + 1e-5) + squares - 0.5).sum(-1)


@dataclass(frozen=True)
class MultiCategorical:
    """A independent choices, the first among branches[0] actions and so on; one branch is a Discrete action.

    out (B, sum of branches): logits, -inf for an action that cannot be taken. action (B, A): indices.
    """

    branches: tuple[int, ...]

    def __call__(self, out: Array, log_std: Array | None, action: Array) -> tuple[Array, Array]:
        log_probs = self._log_probs(out)
        probs = jnp.exp(log_probs)
        # Selected, not gathered: the gradient of a gather adds up element by element.
        taken = jnp.arange(log_probs.shape[-1]) == action[..., None].astype(jnp.int32)
        log_prob = jnp.where(taken, log_probs, 0.0).sum((1, 2))
        finite = jnp.where(probs > 0.0, log_probs, 0.0)  # 0 log 0 is 0
        return log_prob, -(probs * finite).sum((1, 2))

    def parameters(self, out: Array, log_std: Array | None) -> Array:
        """Log-probabilities (B, A * C), -inf where a branch has fewer than C choices."""
        return self._log_probs(out).reshape(len(out), -1)

    def divergence(self, reference: Array, parameters: Array) -> Array:
        """The sum over actions of  p' (log p' - log p),  0 where p' is 0."""
        prob = jnp.exp(reference)
        return jnp.where(prob > 0.0, prob * (reference - parameters), 0.0).sum(-1)

    def _log_probs(self, out: Array) -> Array:
        """(B, sum of branches) to (B, A, C), -inf where a branch has fewer than C choices."""
        widest = max(self.branches)
        if min(self.branches) == widest:
            return jax.nn.log_softmax(out.reshape(len(out), -1, widest), -1)
        ends = [sum(self.branches[: index + 1]) for index in range(len(self.branches) - 1)]
        parts = [
            jnp.pad(part, ((0, 0), (0, widest - part.shape[1])), constant_values=-jnp.inf)
            for part in jnp.split(out, ends, 1)
        ]
        return jax.nn.log_softmax(jnp.stack(parts, 1), -1)


def squash(out: Array, noise: Array, bounds: tuple[float, float]) -> tuple[Array, Array]:
    """Actions (B, A) in [-1, 1] and their log-probability (B,).

    out (B, 2A): mean and log standard deviation, which is clamped to `bounds`. noise (B, A): standard normal.
    With u = mean + std * noise and a = tanh(u), log pi(a) = log N(u) - sum log(1 - a^2); the last term is written
    2 (log 2 - u - softplus(-2u)), which is exact for large |u|.
    """
    mean, raw = jnp.split(out, 2, -1)
    log_std = jnp.clip(raw, *bounds)
    u = mean + jnp.exp(log_std) * noise
    terms = log_std + 0.5 * noise * noise - 2.0 * (u + jax.nn.softplus(-2.0 * u))
    constant = noise.shape[-1] * (0.5 * math.log(2 * math.pi) + 2.0 * math.log(2.0))
    return jnp.tanh(u), -constant - terms.sum(-1)
