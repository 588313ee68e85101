"""A user's own actor, an `nn.Module`, acting through torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from offbeat.types import Array, EnvSpec, Weights


class ModulePolicy:
    """Acts with the module that `actor(spec)` makes; its parameters and buffers come as `actor/NAME` in `Weights`.

    What the module maps observations (N, O) to is up to `head`. "squashed_gaussian": mean and log standard deviation,
    each (N, A) (a pair, or one (N, 2A)); or it has `sample(obs, noise) -> action, log_prob`, which is asked with zero
    noise to act deterministically. "deterministic": actions (N, A) in [-1, 1]. "greedy": values
    (N, choices). "categorical": logits (N, choices).
    """

    def __init__(self, description: Mapping[str, Any], spec: EnvSpec, actor: Callable[[EnvSpec], Any]) -> None:
        self._module = actor(spec).eval()
        self._action_size = spec.action_size
        self._description, self._kind = description, description["head"]
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
    def act(
        self, obs: Array, carry: Array, rng: np.random.Generator | None, step: int = 0
    ) -> tuple[Array, Array, dict[str, Array]]:
        parameter = next(self._module.parameters(), torch.zeros(()))
        x = torch.from_numpy(np.ascontiguousarray(obs)).to(parameter.dtype)
        if self._normaliser is not None:
            mean, scale, clip = self._normaliser
            x = ((x - mean) * scale).clip(-clip, clip)
        if self._kind == "squashed_gaussian":
            action = self._squashed(x, rng)
        else:
            out = self._module(x)
            if self._kind == "categorical" and rng is not None:
                out = out + torch.from_numpy(rng.gumbel(size=out.shape))  # the largest is a draw from the softmax
            action = out.clip(-1.0, 1.0) if self._kind == "deterministic" else out.argmax(1, keepdim=True)
        return action.to(torch.float32).numpy(), carry, {}

    def _squashed(self, x: torch.Tensor, rng: np.random.Generator | None) -> torch.Tensor:
        shape = (len(x), self._action_size)
        noise = torch.zeros(shape) if rng is None else torch.from_numpy(rng.standard_normal(shape, np.float32))
        noise = noise.to(x.dtype)
        if hasattr(self._module, "sample"):
            action: torch.Tensor = self._module.sample(x, noise)[0]
            return action
        out = self._module(x)
        mean, log_std = out if isinstance(out, tuple | list) else out.chunk(2, -1)
        bounds = float(self._description["log_std_min"]), float(self._description["log_std_max"])
        return torch.tanh(mean + log_std.clip(*bounds).exp() * noise)
