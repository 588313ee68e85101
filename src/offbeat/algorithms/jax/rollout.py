"""Rollouts as JAX arrays: the steps, the rows that a turn learns from, and minibatches of them.

Every shape depends on T and N alone, and not on how many rows are valid, so that one program serves all rollouts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from offbeat.algorithms.jax.division import divided


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RolloutArrays:
    """T consecutive steps of N environments, normalised and scaled.

    obs, next_obs (T, N, O); state, next_state (T, N, S); action (T, N, A); reward (T, N). log_prob (T, N): under the
    policy that acted. mask (T, N, K) bool: actions that were allowed; K = 0 for none. terminated, truncated, valid
    (T, N) bool; truncated also where an episode was broken off, and after the last step. rows: how many are valid.
    ends (T * N,): flat indices of the rows whose successor is their own next_obs; the first `end_count` of them count.
    key: for the networks' own randomness (dropout); another one in each turn.
    """

    obs: Array
    next_obs: Array
    state: Array
    next_state: Array
    action: Array
    mask: Array
    reward: Array
    log_prob: Array
    terminated: Array
    truncated: Array
    valid: Array
    rows: Array
    ends: Array
    end_count: Array
    key: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Minibatch:
    """B rows of a rollout: obs (B, O), state (B, S), action (B, A), mask (B, K) bool, the reference's distributions
    (B, P), where they are needed, and five numbers (B,).

    size: how many rows count. share (B,): 1 / size, or 0 for a row that fills the minibatch up: means are sums by it.
    """

    obs: Array
    state: Array
    action: Array
    mask: Array
    policy: Array
    share: Array
    size: Array
    behaviour: Array
    reference: Array
    advantage: Array
    target: Array
    value: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RolloutRows:
    """All T * N rows of a rollout, packed side by side, so that a minibatch is one gather.

    packed (T * N, W): obs, state, action, mask, the reference's distributions, and five numbers: log-probability under
    the policy that acted and under the reference, advantage, value target, and the critic's value before the turn.
    sizes: columns of each vector. valid (T * N,) bool. rows: how many are valid.
    """

    packed: Array
    valid: Array
    rows: Array
    sizes: tuple[int, ...] = field(metadata={"static": True})

    @classmethod
    def of(cls, steps: RolloutArrays, policy: Array, *numbers: Array) -> RolloutRows:
        """policy (T * N, P): distributions, P = 0 where they are not needed. numbers: (T, N) each."""
        count, dtype = steps.reward.size, steps.reward.dtype
        vectors = [
            *(each.reshape(count, -1).astype(dtype) for each in (steps.obs, steps.state, steps.action, steps.mask)),
            policy,
        ]
        packed = jnp.concatenate((*vectors, *(each.reshape(count, 1) for each in numbers)), 1)
        return cls(packed, steps.valid.reshape(count), steps.rows, tuple(each.shape[1] for each in vectors))

    def explained_variance(self) -> Array:
        """The share of the value targets' variance that the values before the turn explain; 0 where there is none."""
        target, value = self.packed[:, -2], self.packed[:, -1]
        variance = self._variance(target)
        explained = 1.0 - self._variance(target - value) / jnp.where(variance > 0, variance, 1.0)
        return jnp.where(variance > 0, explained, 0.0)

    def normalise_advantages(self) -> RolloutRows:
        """Shifts and scales the advantages of all rows to mean 0 and standard deviation 1; one row stays as it is."""
        advantage, count = self.packed[:, -3], self.rows.astype(self.packed.dtype)
        deviation = jnp.sqrt(self._variance(advantage) * (count / jnp.maximum(count - 1.0, 1.0)))
        normalised = (advantage - self._mean(advantage)) / (deviation + 1e-8)
        found = jnp.where(self.rows > 1, normalised, advantage)
        return RolloutRows(self.packed.at[:, -3].set(found), self.valid, self.rows, self.sizes)

    def _mean(self, values: Array) -> Array:
        return jnp.where(self.valid, values, 0.0).sum() / jnp.maximum(self.rows, 1)

    def _variance(self, values: Array) -> Array:
        centred = values - self._mean(values)
        return self._mean(centred * centred)

    def minibatch(self, order: Array, first: Array, size: Array, most: int) -> Minibatch:
        """The rows that order[first : first + size] names, in arrays of `most` rows."""
        chosen = divided(self.packed[jax.lax.dynamic_slice_in_dim(order, first, most)])
        columns, start = [], 0
        for width in self.sizes:
            columns.append(chosen[:, start : start + width])
            start += width
        obs, state, action, mask, policy = columns
        numbers = (chosen[:, start + index] for index in range(5))
        share = jnp.where(jnp.arange(most) < size, 1.0 / size.astype(chosen.dtype), 0.0)
        return Minibatch(obs, state, action, mask > 0, policy, share, size, *numbers)
