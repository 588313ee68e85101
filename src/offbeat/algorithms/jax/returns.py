"""V-trace (Espeholt et al. 2018): returns of rollouts of an older policy. GAE is its on-policy case."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array


def vtrace(
    *,
    behaviour_log_prob: Array,
    target_log_prob: Array,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: float | Array,
    lambda_: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
) -> tuple[Array, Array]:
    """Value targets (T, N) and advantages (T, N) of T consecutive steps of N environments.

    All arrays: (T, N), time first; terminated, truncated: bool. value: V(s). next_value: V(s') of the true successor,
    the final observation where an episode ends; so the last row needs no bootstrap of its own. gamma: one, or (T, N).
    With rho = pi(a|s) / mu(a|s) of the target and the behaviour policy, and v' the target of the next row,

        target    = V(s) + min(rho, rho_bar) (r + gamma V(s') - V(s)) + gamma lambda min(rho, c_bar) (v' - V(s'))
        advantage = min(rho, pg_rho_bar) (r + gamma (lambda v' + (1 - lambda) V(s')) - V(s))

    Termination makes V(s') 0, truncation does not; after either, and after the last row, v' is V(s').
    Where both policies are one and no bound is below 1, the advantages are GAE(lambda) and the targets its returns.
    """
    rho = jnp.exp(target_log_prob - behaviour_log_prob)
    td = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    own, trace = jnp.minimum(rho, rho_bar) * td, gamma * lambda_ * jnp.minimum(rho, c_bar)
    later = _carried(own, trace, terminated | truncated)
    return value + own + trace * later, jnp.minimum(rho, pg_rho_bar) * (td + gamma * lambda_ * later)


def _carried(own: Array, trace: Array, ended: Array) -> Array:
    """v' - V(s') of each row (T, N): row by row from the last up."""

    def row(later: Array, parts: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        own, trace, ended = parts
        later = jnp.where(ended, 0.0, later)  # filled, not multiplied: not even a NaN passes between episodes
        return own + trace * later, later

    return jax.lax.scan(row, jnp.zeros_like(own[0]), (own, trace, ended), reverse=True)[1]
