"""From a network's output to actions, and what an algorithm wants stored beside each: a head for each kind of policy.

With a generator they draw, without one they take the likeliest; `log_prob` is of the drawn action, as it is stored.
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
"""(description, backend, weights) -> head, made anew with each set of weights: what depends on them is done once."""

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
_INSIDE = 1.0 - 2.0**-20
"""As in `algorithms.torch.likelihood`, with which a learner asks again how likely these actions are."""


def forbid(out: Any, mask: Any) -> None:
    """Writes -inf over the logits or values of actions that the mask (N, K) does not allow, the last K of each row."""
    out[:, -mask.shape[1] :][~mask] = -math.inf


def squashed_gaussian(description: Mapping[str, Any], backend: SimpleNamespace, weights: Weights) -> Head:
    """out (N, 2A): mean and log standard deviation; the action is the tanh of a draw, or of the mean."""
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
    """out (N, A): means, with `actor/log_std` (A,) in the weights; or, with state_dependent_std, (N, 2A) of both.

    The action is a draw, or the mean; squashed, its tanh. Nothing is clipped: to_environment does that, and what is
    stored is what was drawn.
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
        action = drawn = mean + std * backend.wrap(rng.standard_normal((len(out), size), np.float32))
        if squashed:
            # Back from the action, not from the draw: rounding near the bounds makes them differ, and only the action
            # is stored.
            action = backend.tanh(drawn)
            inside = action.clip(-_INSIDE, _INSIDE)
            drawn = backend.atanh(inside)
        score = (drawn - mean) * inverse
        terms = 0.5 * score * score + log_std
        if squashed:
            terms = terms + backend.log((1.0 - inside) * (1.0 + inside))
        return backend.unwrap(action), {"log_prob": backend.unwrap(-constant - terms.sum(-1))}

    return head


def deterministic(description: Mapping[str, Any], backend: SimpleNamespace, weights: Weights) -> Head:
    """out (N, A): the action before its tanh."""

    def head(out: Any, rng: np.random.Generator | None) -> tuple[Array, dict[str, Array]]:
        return backend.unwrap(backend.tanh(out)), {}

    return head


def greedy(description: Mapping[str, Any], backend: SimpleNamespace, weights: Weights) -> Head:
    """out (N, choices): values, of which the largest is chosen; with dueling, one that all share stands in front."""
    first = 1 if description["dueling"] else 0

    def head(out: Any, rng: np.random.Generator | None) -> tuple[Array, dict[str, Array]]:
        return _largest(backend.unwrap(out)[:, None, first:]), {}

    return head


def categorical(description: Mapping[str, Any], backend: SimpleNamespace, weights: Weights) -> Head:
    """out (N, choices): logits; the action is the index (N, 1) of a draw, or of the most probable."""
    return _choosing(backend, lambda logits: logits[:, None], bool(description.get("log_prob")))


def multi_categorical(description: Mapping[str, Any], backend: SimpleNamespace, weights: Weights) -> Head:
    """out (N, sum of `branches`): the logits of A independent choices, one after the other; actions (N, A) indices."""
    branches = [int(choices) for choices in description["branches"]]
    count, width = len(branches), max(branches)
    places = np.concatenate([branch * width + np.arange(choices) for branch, choices in enumerate(branches)])

    def split(logits: Array) -> Array:
        if len(places) == count * width:
            return logits.reshape(-1, count, width)
        padded = np.full((len(logits), count * width), -np.inf, logits.dtype)
        padded[:, places] = logits
        return padded.reshape(-1, count, width)

    return _choosing(backend, split, bool(description.get("log_prob")))


def _choosing(backend: SimpleNamespace, split: Callable[[Array], Array], with_log_prob: bool) -> Head:
    """Draws from softmaxes. split: the output to logits (N, A, C), -inf where a branch has fewer than C choices."""

    def head(out: Any, rng: np.random.Generator | None) -> tuple[Array, dict[str, Array]]:
        logits = split(backend.unwrap(out))
        if rng is None:
            return _largest(logits), {}
        noisy = logits + rng.gumbel(size=logits.shape)  # the largest is then a draw from the softmax
        if not with_log_prob:
            return _largest(noisy), {}
        index = noisy.argmax(-1)
        with np.errstate(invalid="ignore"):  # no action is left where all are -inf
            shifted = logits - logits.max(-1, keepdims=True)
        chosen = shifted.reshape(-1, logits.shape[-1])[np.arange(index.size), index.ravel()].reshape(index.shape)
        each = chosen - np.log(np.exp(shifted).sum(-1))
        # NaN in any logit of a branch is in its log-probability, also where no action is left: see `_largest`.
        return np.where(np.isnan(each), _NAN, index.astype(np.float32)), {"log_prob": each.sum(-1)}

    return head


_NAN = np.float32(np.nan)


def _largest(values: Array) -> Array:
    """The index of the largest along the last axis; NaN where that is not finite.

    So a diverged network is noticed, and one that leaves no action: all are -inf.
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
