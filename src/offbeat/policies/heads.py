"""Policy heads: each turns a network's output into actions, and into extras that an algorithm stores per step.

With a random generator a head samples; without one it takes the most likely action. `log_prob` is the log-probability
of the sampled action as it is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from offbeat.types import Array, Weights

Head = Callable[[Any, np.random.Generator | None], tuple[Array, dict[str, Array]]]
"""(the network's output (N, ...) float32, generator or None) -> actions (N, A) float32, extras by name (N,) float32."""

MakeHead = Callable[[Mapping[str, Any], SimpleNamespace, Weights], Head]
"""(description, backend, weights) -> head; called once per set of weights, so it precomputes what depends on them."""

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
_INSIDE = 1.0 - 2.0**-20
"""As in `algorithms.torch.distributions`, with which a learner asks again how likely these actions are."""


def mask_out(out: Any, mask: Any) -> None:
    """Sets logits or values, the last K of each row, to -inf for actions that the mask (N, K) does not allow."""
    out[:, -mask.shape[1] :][~mask] = -math.inf


def squashed_gaussian(description: Mapping[str, Any], backend: SimpleNamespace, weights: Weights) -> Head:
    """out (N, 2A): mean and log standard deviation. The action is the tanh of a sample, or of the mean."""
    size = int(description["action_size"])
    bounds = float(description["log_std_min"]), float(description["log_std_max"])

    def head(out: Any, rng: np.random.Generator | None) -> tuple[Array, dict[str, Array]]:
        action = out[:, :size]
        if rng is not None:
            noise = backend.wrap(rng.standard_normal((len(out), size), np.float32))
            action = action + backend.exp(out[:, size:].clip(*bounds)) * noise
        return backend.unwrap(backend.tanh(action)), {}

    return head


def gaussian(description: Mapping[str, Any], backend: SimpleNamespace, weights: Weights) -> Head:
    """out (N, A): means, with `actor/log_std` (A,) in the weights; or, with state_dependent_std, (N, 2A) with both.

    The action is a sample, or the mean; with `squashed`, its tanh. It is not clipped here: the sample is stored as it
    is, and `to_environment` clips.
    """
    size, squashed = int(description["action_size"]), bool(description["squashed"])
    own = None if description["state_dependent_std"] else backend.wrap(weights["actor/log_std"])
    scaling = None if own is None else (own, backend.exp(own), backend.exp(-own))
    constant = size * _HALF_LOG_TAU

    def head(out: Any, rng: np.random.Generator | None) -> tuple[Array, dict[str, Array]]:
        mean = out if scaling is not None else out[:, :size]
        if rng is None:
            return backend.unwrap(backend.tanh(mean) if squashed else mean), {}
        if scaling is not None:
            log_std, std, inverse = scaling
        else:
            log_std = out[:, size:]
            std, inverse = backend.exp(log_std), backend.exp(-log_std)
        action = sampled = mean + std * backend.wrap(rng.standard_normal((len(out), size), np.float32))
        if squashed:
            # Recomputed from the action: rounding near the bounds makes it differ from the sample, and only the action
            # is stored.
            action = backend.tanh(sampled)
            inside = action.clip(-_INSIDE, _INSIDE)
            sampled = backend.atanh(inside)
        score = (sampled - mean) * inverse
        terms = 0.5 * score * score + log_std
        if squashed:
            terms = terms + backend.log((1.0 - inside) * (1.0 + inside))
        return backend.unwrap(action), {"log_prob": backend.unwrap(-constant - terms.sum(-1))}

    return head


def deterministic(description: Mapping[str, Any], backend: SimpleNamespace, weights: Weights) -> Head:
    """out (N, A): the action before tanh."""

    def head(out: Any, rng: np.random.Generator | None) -> tuple[Array, dict[str, Array]]:
        return backend.unwrap(backend.tanh(out)), {}

    return head


def greedy(description: Mapping[str, Any], backend: SimpleNamespace, weights: Weights) -> Head:
    """out (N, choices): values; the action with the largest is taken. With dueling, column 0 is the state value."""
    first = 1 if description["dueling"] else 0

    def head(out: Any, rng: np.random.Generator | None) -> tuple[Array, dict[str, Array]]:
        return _argmax_or_nan(backend.unwrap(out)[:, None, first:]), {}

    return head


def categorical(description: Mapping[str, Any], backend: SimpleNamespace, weights: Weights) -> Head:
    """out (N, choices): logits. The action is a sampled index (N, 1), or the most probable one."""
    return _discrete_head(backend, lambda logits: logits[:, None], bool(description.get("log_prob")))


def multi_categorical(description: Mapping[str, Any], backend: SimpleNamespace, weights: Weights) -> Head:
    """out (N, sum of `branches`): logits of A independent choices, branch after branch; actions (N, A) indices."""
    branches = [int(choices) for choices in description["branches"]]
    count, width = len(branches), max(branches)
    columns = np.concatenate([branch * width + np.arange(choices) for branch, choices in enumerate(branches)])

    def split(logits: Array) -> Array:
        if len(columns) == count * width:
            return logits.reshape(-1, count, width)
        padded = np.full((len(logits), count * width), -np.inf, logits.dtype)
        padded[:, columns] = logits
        return padded.reshape(-1, count, width)

    return _discrete_head(backend, split, bool(description.get("log_prob")))


def _discrete_head(backend: SimpleNamespace, split: Callable[[Array], Array], with_log_prob: bool) -> Head:
    """Samples from softmaxes. split: output to logits (N, A, C), with -inf where a branch has fewer than C choices."""

    def head(out: Any, rng: np.random.Generator | None) -> tuple[Array, dict[str, Array]]:
        logits = split(backend.unwrap(out))
        if rng is None:
            return _argmax_or_nan(logits), {}
        noisy = logits + rng.gumbel(size=logits.shape)  # Gumbel-max: the argmax is a sample of the softmax
        if not with_log_prob:
            return _argmax_or_nan(noisy), {}
        index = noisy.argmax(-1)
        with np.errstate(invalid="ignore"):  # -inf - -inf where no action is valid
            shifted = logits - logits.max(-1, keepdims=True)
        chosen = shifted.reshape(-1, logits.shape[-1])[np.arange(index.size), index.ravel()].reshape(index.shape)
        each = chosen - np.log(np.exp(shifted).sum(-1))
        # NaN in any logit of a branch, or no valid action, makes its log-probability NaN: see `_argmax_or_nan`.
        return np.where(np.isnan(each), _NAN, index.astype(np.float32)), {"log_prob": each.sum(-1)}

    return head


_NAN = np.float32(np.nan)


def _argmax_or_nan(values: Array) -> Array:
    """The index of the largest value along the last axis; NaN where that value is not finite.

    NaN reveals a network that diverged, or one without a valid action (all values -inf).
    """
    index = values.argmax(-1).astype(np.float32)
    return np.where(np.isfinite(values.max(-1)), index, _NAN)


HEADS: dict[str, MakeHead] = {
    "squashed_gaussian": squashed_gaussian,
    "gaussian": gaussian,
    "deterministic": deterministic,
    "greedy": greedy,
    "categorical": categorical,
    "multi_categorical": multi_categorical,
}
