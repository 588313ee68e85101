"""Critics, and policies without noise."""

from __future__ import annotations

from typing import Any

import torch

from offbeat.compat.skrl.models.torch.model import Inputs, Output
from offbeat.compat.skrl.utils.spaces.torch import compute_space_limits


class DeterministicMixin:
    """`act` that returns what `compute` returns. clip_actions: clipped to the limits of the action space.

    role: what `compute` gets where `act` is called without one.
    """

    action_space: Any
    device: torch.device
    compute: Any

    def __init__(self, *, clip_actions: bool = False, role: str = "") -> None:
        self._clip_actions, self._role = clip_actions, role
        self._limits = compute_space_limits(self.action_space, device=self.device, none_if_unbounded="any")

    def act(self, inputs: Inputs, *, role: str = "") -> Output:
        actions, outputs = self.compute(inputs, role or self._role)
        low, high = self._limits
        if self._clip_actions and not (low is None and high is None):
            actions = torch.clamp(actions, min=low, max=high)
        return actions, outputs
