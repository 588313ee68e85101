"""MLP policies in NumPy or torch: one forward pass, then a head.

Both backends share the code: arrays and tensors have the same operators, and a small table holds the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from offbeat.errors import UsageError
from offbeat.policies.heads import HEADS, Head, mask_out
from offbeat.types import Array, Weights


class MLPPolicy:
    """An MLP from `Weights`: `actor/K/weight` (in, out), `actor/K/bias`, optional `actor/K/norm/{scale,offset}`.

    description["kind"] selects the head (see `heads`) that turns the last layer's output into actions; a head may read
    further weights. With `normaliser/{mean,scale,clip}` in the weights, observations are normalised first.
    backend: "numpy" or "torch".
    """

    def __init__(self, description: Mapping[str, Any], backend: str = "numpy") -> None:
        if "recurrent" in description:
            raise UsageError(
                "this policy has a recurrent state, which an MLP policy cannot carry from step to step; make it with "
                "offbeat.policies.make_policy"
            )
        self._description, self._make_head = description, HEADS[description["kind"]]
        self._backend = BACKENDS[backend]()
        self._activation = self._backend.activations[description["activation"]]
        self._head: Head
        self._layers: list[tuple[Any, Any, Any, Any]] = []
        self._normaliser: tuple[Any, Any, float] | None = None

    def load(self, weights: Weights) -> None:
        wrap, count = self._backend.wrap, 0
        layers = []
        while f"actor/{count}/weight" in weights:
            name = f"actor/{count}"
            norm = [weights.get(f"{name}/norm/{part}") for part in ("scale", "offset")]
            parts = (weights[f"{name}/weight"], weights[f"{name}/bias"], *norm)
            layers.append(tuple(None if part is None else wrap(part) for part in parts))
            count += 1
        self._layers = layers  # type: ignore[assignment]
        self._head = self._make_head(self._description, self._backend, weights)
        if "normaliser/mean" in weights:
            clip = float(weights["normaliser/clip"])
            self._normaliser = wrap(weights["normaliser/mean"]), wrap(weights["normaliser/scale"]), clip

    def initial_carry(self, num_envs: int) -> Array:
        return np.zeros((num_envs, 0), np.float32)

    def act(
        self, obs: Array, carry: Array, rng: np.random.Generator | None, step: int = 0, mask: Array | None = None
    ) -> tuple[Array, Array, dict[str, Array]]:
        with self._backend.context():
            action, extras = self.actions(self.outputs(self._backend.wrap(obs)), rng, mask)
            return action, carry, extras

    def actions(self, out: Any, rng: np.random.Generator | None, mask: Array | None) -> tuple[Array, dict[str, Array]]:
        """The actions and extras of the last layer's output (N, ...), which is overwritten."""
        if mask is not None:
            mask_out(out, self._backend.wrap(mask))
        return self._head(out, rng)

    def outputs(self, x: Any) -> Any:
        """(N, O) -> the last layer's output (N, ...)."""
        return self.layered(self.normalised(x))

    def normalised(self, x: Any) -> Any:
        """Observations (N, O) as the network takes them."""
        if self._normaliser is None:
            return x
        mean, scale, clip = self._normaliser
        return ((x - mean) * scale).clip(-clip, clip)

    def layered(self, x: Any) -> Any:
        """The last layer's output (N, ...) for the input (N, I) of the first."""
        *hidden, (weight, bias, _, _) = self._layers
        for hidden_weight, hidden_bias, norm_scale, norm_offset in hidden:
            x = x @ hidden_weight + hidden_bias
            if norm_scale is not None:
                x = x - x.mean(-1, keepdims=True)
                x = x / self._backend.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * norm_scale + norm_offset
            x = self._activation(x)
        return x @ weight + bias


def _sigmoid(x: Array) -> Array:
    half: Array = 0.5 * (1.0 + np.tanh(0.5 * x))
    return half


def _numpy_gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


NUMPY_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0, out=x),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _numpy_gelu,
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
}


def _numpy() -> SimpleNamespace:
    from contextlib import nullcontext

    return SimpleNamespace(
        wrap=np.asarray,
        unwrap=np.asarray,
        exp=np.exp,
        log=np.log,
        tanh=np.tanh,
        sigmoid=_sigmoid,
        concatenate=np.concatenate,
        atanh=np.arctanh,
        sqrt=np.sqrt,
        context=nullcontext,
        activations=NUMPY_ACTIVATIONS,
    )


def _torch() -> SimpleNamespace:
    import torch
    from torch.nn import functional

    def wrap(array: Array) -> torch.Tensor:
        return torch.from_numpy(np.require(array, requirements="W"))

    return SimpleNamespace(
        wrap=wrap,
        unwrap=lambda tensor: tensor.numpy(),
        exp=torch.exp,
        log=torch.log,
        tanh=torch.tanh,
        sigmoid=torch.sigmoid,
        concatenate=torch.cat,
        atanh=torch.atanh,
        sqrt=torch.sqrt,
        context=torch.inference_mode,
        activations={
            "relu": torch.relu_,
            "tanh": torch.tanh,
            "elu": functional.elu,
            "silu": functional.silu,
            "gelu": lambda x: functional.gelu(x, approximate="tanh"),
            "leaky_relu": functional.leaky_relu,
        },
    )


BACKENDS: dict[str, Callable[[], SimpleNamespace]] = {"numpy": _numpy, "torch": _torch}
