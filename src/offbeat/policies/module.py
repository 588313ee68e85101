"""A policy whose actor is a user's `nn.Module`; it runs in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from offbeat.errors import OffbeatError
from offbeat.policies.heads import HEADS, Head, mask_out
from offbeat.policies.mlp import BACKENDS
from offbeat.types import Array, EnvSpec, Weights

_DISCRETE_HEADS = ("greedy", "categorical", "multi_categorical")


class ModulePolicy:
    """Runs the module that `actor(spec)` creates; its parameters and buffers are `actor/NAME` in `Weights`.

    The module maps observations (N, O) to the input of the head, by description["head"]:
    "squashed_gaussian": mean and log standard deviation, each (N, A) (a pair, or one (N, 2A)). Or the module has
    `sample(obs, noise) -> action, log_prob`, which is called with zero noise for deterministic actions.
    "deterministic": actions (N, A) in [-1, 1]. "greedy": values (N, choices). "categorical": logits (N, choices).
    "multi_categorical": logits (N, sum of branches).
    "gaussian": means (N, A), with `actor/log_std` in the weights, which is not part of the module; or, with
    state_dependent_std, mean and log standard deviation as above.
    """

    def __init__(self, description: Mapping[str, Any], spec: EnvSpec, actor: Callable[[EnvSpec], Any]) -> None:
        self._module = actor(spec).eval()
        self._kind, self._action_size = description["head"], spec.action_size
        # A user's module returns one value per action, without a separate state value in front.
        self._description = {**description, "action_size": spec.action_size, "dueling": False}
        self._backend = BACKENDS["torch"]()
        self._head: Head
        self._normaliser: tuple[torch.Tensor, torch.Tensor, float] | None = None

    def load(self, weights: Weights) -> None:
        own = {name.removeprefix("actor/"): array for name, array in weights.items() if name.startswith("actor/")}
        if self._kind == "gaussian" and not self._description["state_dependent_std"]:
            del own["log_std"]
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in own.items()}
        for tensor in tensors.values():
            if tensor.is_floating_point():
                self._module.to(tensor.dtype)
                break
        self._module.load_state_dict(tensors)
        self._head = HEADS[self._kind](self._description, self._backend, weights)
        if "normaliser/mean" in weights:
            mean, scale = (torch.from_numpy(np.array(weights[f"normaliser/{part}"])) for part in ("mean", "scale"))
            self._normaliser = mean, scale, float(weights["normaliser/clip"])

    def initial_carry(self, num_envs: int) -> Array:
        return np.zeros((num_envs, 0), np.float32)

    @torch.inference_mode()
    def act(
        self, obs: Array, carry: Array, rng: np.random.Generator | None, step: int = 0, mask: Array | None = None
    ) -> tuple[Array, Array, dict[str, Array]]:
        parameter = next(self._module.parameters(), torch.zeros(()))
        x = torch.from_numpy(np.ascontiguousarray(obs)).to(parameter.dtype)
        if self._normaliser is not None:
            mean, scale, clip = self._normaliser
            x = ((x - mean) * scale).clip(-clip, clip)
        if self._kind == "squashed_gaussian" and hasattr(self._module, "sample"):
            return self._sampled(x, rng).to(torch.float32).numpy(), carry, {}
        out = self._module(x)
        out = (torch.cat(tuple(out), -1) if isinstance(out, tuple | list) else out).to(torch.float32)
        if self._kind == "deterministic":
            return out.clip(-1.0, 1.0).numpy(), carry, {}
        if mask is not None:
            out = out.clone()  # the module may have returned a tensor that it keeps
            mask_out(out, self._backend.wrap(mask))
        action, extras = self._head(out, rng)
        if self._kind in _DISCRETE_HEADS and np.isnan(action).any():
            raise _no_valid_action(out.numpy(), action)
        return action, carry, extras

    def _sampled(self, x: torch.Tensor, rng: np.random.Generator | None) -> torch.Tensor:
        shape = (len(x), self._action_size)
        noise = torch.zeros(shape) if rng is None else torch.from_numpy(rng.standard_normal(shape, np.float32))
        action: torch.Tensor = self._module.sample(x, noise.to(x.dtype))[0]
        return action


def _no_valid_action(out: Array, action: Array) -> OffbeatError:
    """The error for a module's output (N, ...) without a valid action. action (N, A): NaN where there is none."""
    row = int(np.argwhere(np.isnan(action))[0, 0])
    if not np.isnan(out[row]).any():
        return OffbeatError(
            f"your module returned -inf for every action of observation {row}: {out[row].tolist()}; it must leave at "
            "least one action: correct its mask"
        )
    return OffbeatError(
        f"your module returned {out[row].tolist()} for observation {row}, but each value must be a number, or -inf for "
        "a forbidden action. If it masks actions, use masked_fill(forbidden, -torch.inf), because 0 * inf is NaN; "
        "otherwise its weights have diverged: lower the learning rates, or set max_grad_norm"
    )
