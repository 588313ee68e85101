"""V-trace (Espeholt et al. 2018): returns of rollouts of an older policy. GAE is its on-policy case."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


@torch.no_grad()
def vtrace(
    *,
    behaviour_log_prob: Tensor,
    target_log_prob: Tensor,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float | Tensor,
    lambda_: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Value targets (T, N) and advantages (T, N) of T consecutive steps of N environments.

    All tensors: (T, N), time first; terminated, truncated: bool. value: V(s). next_value: V(s') of the true successor,
    the final observation where an episode ends; so the last row needs no bootstrap of its own. gamma: one, or (T, N).
    With rho = pi(a|s) / mu(a|s) of the target and the behaviour policy, and v' the target of the next row,

        target    = V(s) + min(rho, rho_bar) (r + gamma V(s') - V(s)) + gamma lambda min(rho, c_bar) (v' - V(s'))
        advantage = min(rho, pg_rho_bar) (r + gamma (lambda v' + (1 - lambda) V(s')) - V(s))

    Termination makes V(s') 0, truncation does not; after either, and after the last row, v' is V(s').
    Where both policies are one and no bound is below 1, the advantages are GAE(lambda) and the targets its returns.
    """
    rho = (target_log_prob - behaviour_log_prob).exp()
    td = reward + gamma * next_value.masked_fill(terminated, 0.0) - value
    own, trace, ended = rho.clamp(max=rho_bar) * td, gamma * lambda_ * rho.clamp(max=c_bar), terminated | truncated
    later = _carried(own, trace, ended)
    return value + own + trace * later, rho.clamp(max=pg_rho_bar) * (td + gamma * lambda_ * later)


def _carried(own: Tensor, trace: Tensor, ended: Tensor) -> Tensor:
    """v' - V(s') of each row (T, N): row by row from the last up, in NumPy, whose small steps cost least."""
    own_rows, trace_rows, ended_rows = (each.cpu().numpy() for each in (own, trace, ended))
    later = np.zeros_like(own_rows)
    for row in range(len(own_rows) - 1, 0, -1):
        np.multiply(trace_rows[row], later[row], out=later[row - 1])
        later[row - 1] += own_rows[row]
        later[row - 1][ended_rows[row - 1]] = 0.0  # filled, not multiplied: not even a NaN passes between episodes
    return torch.from_numpy(later).to(own.device)
