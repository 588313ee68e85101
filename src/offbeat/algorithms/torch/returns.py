"""Returns of rollouts that an older policy made: V-trace (Espeholt et al. 2018), of which GAE is the on-policy case."""

from __future__ import annotations

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
    error, errors = torch.zeros_like(td[0]), []  # v' - V(s'), from the last row up
    for own_row, trace_row, ended_row in zip(own.flip(0), trace.flip(0), ended.flip(0), strict=True):
        # Filled, not multiplied by 0: not even a NaN passes from one episode to another.
        errors.append(error.masked_fill(ended_row, 0.0))
        error = torch.addcmul(own_row, trace_row, errors[-1])
    later = torch.stack(errors).flip(0)
    return value + own + trace * later, rho.clamp(max=pg_rho_bar) * (td + gamma * lambda_ * later)
