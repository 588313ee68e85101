"""A user's own actor, an `nn.Module`, acting through torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from offbeat.errors import OffbeatError
from offbeat.policies.heads import HEADS, Head, forbid
from offbeat.policies.mlp import BACKENDS
from offbeat.types import Array, EnvSpec, Weights

_CHOOSING = ("greedy", "categorical", "multi_categorical")


class ModulePolicy:
    """Acts with the module that `actor(spec)` makes; its parameters and buffers come as `actor/NAME` in `Weights`.

    What the module maps observations (N, O) to is up to `head`. "squashed_gaussian": mean and log standard deviation,
    each (N, A) (a pair, or one (N, 2A)); or it has `sample(obs, noise) -> action, log_prob`, which is asked with zero
    noise to act deterministically. "deterministic": actions (N, A) in [-1, 1]. "greedy": values (N, choices).
    "gaussian": means (N, A), with `actor/log_std` in the weights, which is not the module's own; or, with
    state_dependent_std, mean and log standard deviation as above. "categorical": logits (N, choices).
    "multi_categorical": logits (N, sum of branches).
    """

    def __init__(self, description: Mapping[str, Any], spec: EnvSpec, actor: Callable[[EnvSpec], Any]) -> None:
        self._module = actor(spec).eval()
        self._kind, self._action_size = description["head"], spec.action_size
        # A module of one's own gives its values as they are: none to be added to the others stands in front.
        self._description = {**description, "action_size": spec.action_size, "dueling": False}
        self._backend = BACKENDS["torch"]()
        self._head: Head
        self._normaliser: tuple[torch.Tensor, torch.Tensor, float] | None = None

    def load(self, weights: Weights) -> None:
        mine = {name.removeprefix("actor/"): array for name, array in weights.items() if name.startswith("actor/")}
        if self._kind == "gaussian" and not self._description["state_dependent_std"]:
            del mine["log_std"]
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in mine.items()}
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
            out = out.clone()  # the module may have handed out a tensor of its own
            forbid(out, self._backend.wrap(mask))
        action, extras = self._head(out, rng)
        if self._kind in _CHOOSING and np.isnan(action).any():
            raise _no_choice(out.numpy(), action)
        return action, carry, extras

    def _sampled(self, x: torch.Tensor, rng: np.random.Generator | None) -> torch.Tensor:
        shape = (len(x), self._action_size)
        noise = torch.zeros(shape) if rng is None else torch.from_numpy(rng.standard_normal(shape, np.float32))
        action: torch.Tensor = self._module.sample(x, noise.to(x.dtype))[0]
        return action


def _no_choice(out: Array, action: Array) -> OffbeatError:
    """Why a module's output (N, ...) left no action to choose. action (N, A): NaN where it did."""
    row = int(np.argwhere(np.isnan(action))[0, 0])
    if not np.isnan(out[row]).any():
        return OffbeatError(
            f"your module gave -inf for every action of observation {row}: {out[row].tolist()}; a mask must leave at "
            "least one action that can be taken"
        )
    return OffbeatError(
        f"your module gave {out[row].tolist()} for observation {row}, but what actions are chosen by must be numbers, "
        "or -inf for an action that cannot be taken. If it masks actions, do so with masked_fill(forbidden, "
        "-torch.inf), because 0 * inf is NaN; if it does not, its weights have diverged: lower the learning rates, or "
        "set max_grad_norm"
    )
