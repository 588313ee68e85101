"""A user's recurrent module as the trunk of a policy; it runs in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from offbeat.errors import UsageError
from offbeat.policies.recurrent import TRUNK
from offbeat.types import Array, Weights


class OwnTrunk:
    """A module with `initial_state(batch)` and `forward(x, state, mask) -> features, state`, for one step of a batch.

    mask (N, 1) is 0 where the state is the initial one, as at the first step of an episode, and 1 elsewhere.
    """

    def __init__(self, module: Any) -> None:
        if not hasattr(module, "initial_state"):
            raise UsageError(
                f"actor= made a {type(module).__name__} without initial_state, but this policy has a recurrent state; "
                "pass the callable that was given as network"
            )
        self._module = module.eval().float()

    def load(self, weights: Weights) -> None:
        own = {name.removeprefix(TRUNK): array for name, array in weights.items() if name.startswith(TRUNK)}
        self._module.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in own.items()})

    def initial_state(self, rows: int) -> Array:
        with torch.inference_mode():
            return np.array(self._module.initial_state(rows).to(torch.float32).numpy())

    def step(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new = torch.from_numpy(self.initial_state(len(x)))
        features, after = self._module(x, state, (state != new).any(1, keepdim=True).to(x.dtype))
        return features, after
