"""Parts of losses that several algorithms have."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array


def weighted(values: Array, weight: Array | None) -> Array:
    """Values (..., B) times the rows' importance weights (B,), where there are some."""
    return values if weight is None else values * weight


def error_loss(error: Array, kind: str) -> Array:
    """The loss of each error: the square (`mse`), or Huber's."""
    if kind == "mse":
        return error * error
    slope = jnp.clip(error, -1.0, 1.0)
    return slope * (error - 0.5 * slope)


def over_critics(q: Array, of: str) -> Array:
    """One value (B, ...) of the critics' (E, B, ...): their minimum (`min`) or their `mean`."""
    return q.mean(0) if of == "mean" else q.min(0)


def values_of_taken(q: Array, action: Array) -> Array:
    """The values (..., B) of the actions (B, 1) that were taken, of those (..., B, choices) of all.

    Selected by comparison: its gradient needs no scatter, which is slow on a CPU.
    """
    taken = action.astype(jnp.int32) == jnp.arange(q.shape[-1], dtype=jnp.int32)
    return jnp.where(taken, q, 0.0).sum(-1)


def mean(values: Array, share: Array) -> Array:
    """The mean of values (B,) over the rows that count. share (B,): 1 / their number, 0 for rows that do not count."""
    return (values * share).sum()


def standardise(weighted: Array, weight: Array, share: Array, size: Array) -> Array:
    """Weighted advantages  weight * A  (B,) as  weight * (A - mean) / deviation,  both moments of A by weight.

    A constant subtracted from A is a valid baseline, and one subtracted from weight * A is not: under mu, weight * grad
    log pi has mean 0, and grad log pi alone does not. Where all weights are 1 these are the plain moments.
    share (B,), size: as in `Minibatch`. One row stays as it is.
    """
    count = size.astype(share.dtype)
    average = jnp.maximum(mean(weight, share), 1e-8 / count)
    centred = weighted - weight * (mean(weighted, share) / average)
    square = mean(centred * centred / jnp.maximum(weight, 1e-8), share)  # weight * (A - mean)^2
    deviation = jnp.sqrt(square / average * (count / jnp.maximum(count - 1.0, 1.0)))
    return jnp.where(size > 1, centred / (deviation + 1e-8), weighted)


def policy_loss(
    log_prob: Array,
    behaviour: Array,
    reference: Array,
    advantage: Array,
    clip: float | Array,
    cap: float,
    share: Array,
) -> tuple[Array, Array]:
    """PPO's loss, the mean of  -min(w A, clip(w, 1 - clip, 1 + clip) A),  and w (B,).

    log_prob, behaviour, reference, advantage: (B,), log-probabilities under the policy pi that learns, mu that acted,
    and the reference pi'. The ratio is  w = min(mu / pi', cap) * pi / mu:  that of pi to pi', unless pi' is so much
    less likely than mu that `cap` limits it. The advantage accounts for the ratio of pi' to mu (see `vtrace`), so that
    both together account for who acted. On policy, mu = pi' and w is the usual ratio.
    """
    ratio = jnp.exp(log_prob - behaviour + jnp.minimum(behaviour - reference, math.log(cap)))
    free = ratio * advantage
    clipped = jax.lax.stop_gradient(jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)
    # Not the minimum, whose gradient is halved where both are equal.
    return -mean(jnp.where(free <= clipped, free, clipped), share), ratio


def value_loss(value: Array, target: Array, before: Array, clip: float | None, share: Array) -> Array:
    """The mean of  1/2 (V - target)^2;  all arguments (B,).

    clip: V may move no further than this from what it was `before`: the larger of the two errors counts.
    """
    error = value - target
    if clip is not None:
        moved = value - before
        clipped = before + jnp.where(jnp.abs(moved) <= clip, moved, jnp.sign(moved) * clip) - target
        error = jnp.where(clipped * clipped > error * error, clipped, error)
    return 0.5 * mean(error * error, share)


def divergence(log_prob: Array, reference: Array, share: Array) -> Array:
    """An estimate of KL(pi' || pi), never negative:  mean (w - 1 - log w)  with  w = pi / pi'.

    Its expectation is exact for actions of pi'; in a rollout of an older policy, that policy's actions replace them.
    """
    difference = log_prob - reference
    return mean(jnp.expm1(difference) - difference, share)
