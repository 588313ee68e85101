"""A user's own actor, an `nn.Module`, acting through torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from offbeat.types import Array, EnvSpec, Weights


class ModulePolicy:
    """Acts with the module that `actor(spec)` makes; its parameters and buffers come as `actor/NAME` in `Weights`.

    The module maps observations (N, O) to mean and log standard deviation, each (N, A) (a pair, or one (N, 2A)); or it
    has `sample(obs, noise) -> action, log_prob`, which is asked with zero noise to act deterministically.
    """

    def __init__(self, description: Mapping[str, Any], spec: EnvSpec, actor: Callable[[EnvSpec], Any]) -> None:
        self._module = actor(spec).eval()
        self._action_size = spec.action_size
        self._log_std = float(description["log_std_min"]), float(description["log_std_max"])
        self._normaliser: tuple[torch.Tensor, torch.Tensor, float] | None = None

    def load(self, weights: Weights) -> None:
        tensors = {
            name.removeprefix("actor/"): torch.from_numpy(np.array(array))
            for name, array in weights.items()
            if name.startswith("actor/")
        }
        for tensor in tensors.values():
            if tensor.is_floating_point():
                self._module.to(tensor.dtype)
                break
        self._module.load_state_dict(tensors)
        if "normaliser/mean" in weights:
            mean, scale = (torch.from_numpy(np.array(weights[f"normaliser/{part}"])) for part in ("mean", "scale"))
            self._normaliser = mean, scale, float(weights["normaliser/clip"])

    def initial_carry(self, num_envs: int) -> Array:
        return np.zeros((num_envs, 0), np.float32)

    @torch.inference_mode()
    def act(self, obs: Array, carry: Array, rng: np.random.Generator | None) -> tuple[Array, Array, dict[str, Array]]:
        parameter = next(self._module.parameters(), torch.zeros(()))
        x = torch.from_numpy(np.ascontiguousarray(obs)).to(parameter.dtype)
        if self._normaliser is not None:
            mean, scale, clip = self._normaliser
            x = ((x - mean) * scale).clip(-clip, clip)
        shape = (len(obs), self._action_size)
        noise = torch.zeros(shape) if rng is None else torch.from_numpy(rng.standard_normal(shape, np.float32))
        noise = noise.to(x.dtype)
        if hasattr(self._module, "sample"):
            action = self._module.sample(x, noise)[0]
        else:
            out = self._module(x)
            mean, log_std = out if isinstance(out, tuple | list) else out.chunk(2, -1)
            action = torch.tanh(mean + log_std.clip(*self._log_std).exp() * noise)
        return action.to(torch.float32).numpy(), carry, {}
