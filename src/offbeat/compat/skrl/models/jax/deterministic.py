"""Critics, and policies without noise."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen

from offbeat.compat.skrl.models.jax.limits import limits_of
from offbeat.compat.skrl.models.jax.model import Inputs, Output


class DeterministicMixin:
    """`act` that returns what the module returns. clip_actions: clipped to the limits of the action space.

    role: what the module gets where `act` is called without one.
    """

    action_space: Any
    apply: Any
    state_dict: Any

    def __init__(self, *, clip_actions: bool = False, role: str = "") -> None:
        self._clip_actions, self._role = clip_actions, role
        self._limits = limits_of(self.action_space)
        linen.Module.__post_init__(self)  # type: ignore[arg-type] # flax asks for it where a module has its own __init__

    def act(self, inputs: Inputs, *, role: str = "", params: Any = None) -> Output:
        """Values or actions, and a dictionary. params: used instead of the model's own."""
        actions, outputs = self.apply(self.state_dict.params if params is None else params, inputs, role or self._role)
        if self._clip_actions:
            actions = jnp.clip(actions, *self._limits)
        return actions, outputs
