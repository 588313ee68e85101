"""`witness` for JAX."""

from __future__ import annotations

from typing import Any

from own_parts.expectile_jax import init as init
from own_parts.expectile_jax import policy_description as policy_description
from witness import signature


def update(state: Any, config: Any, spec: Any, batch: Any, noise: Any, rates: Any, updates: Any) -> Any:
    return state, {"critic_loss": batch.reward.mean()}, signature(batch)
