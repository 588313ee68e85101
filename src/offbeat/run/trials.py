"""One call each of a user's own parts, with their results checked, before a run begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from offbeat.errors import OffbeatError, UsageError, describe
from offbeat.learn.statistics import Preprocessor
from offbeat.policies import Policy
from offbeat.types import EnvSpec, Weights

ROWS = 2


def try_exploration(policy: Policy, spec: EnvSpec, weights: Weights) -> None:
    """Raises UsageError if a policy with a user's exploration cannot act, or returns other shapes than it must."""
    rng, obs = np.random.default_rng(0), np.zeros((ROWS, spec.observation_size), np.float32)
    mask = (np.ones((ROWS, spec.mask_size), bool),) if spec.mask_size else ()
    try:
        policy.load(weights)
        carry = policy.initial_carry(ROWS)
        result: Any = policy.act(obs, carry, rng, 0, *mask)
    except OffbeatError:
        raise
    except Exception as error:
        raise UsageError(f"exploration: acting on {ROWS} observations of zeros raised {describe(error)}") from error
    if not (isinstance(result, tuple) and len(result) == 3 and isinstance(result[2], Mapping)):
        raise UsageError(f"exploration: act returned a {type(result).__name__}; return (action, carry, extras)")
    shapes = {"action": (ROWS, spec.action_size), "carry": np.shape(carry)}
    for (name, wanted), found in zip(shapes.items(), result[:2], strict=True):
        if np.shape(found) != wanted or not wanted or wanted[0] != ROWS:
            raise UsageError(
                f"exploration: act returned the {name} {np.shape(found)} for {ROWS} environments, where initial_carry "
                f"is {np.shape(carry)}; the action must be {shapes['action']}, and both carries the same (N, C)"
            )


def try_preprocessor(preprocessor: Preprocessor, spec: EnvSpec) -> None:
    """Raises UsageError if a user's preprocessor cannot be called, saved and restored."""
    zeros = np.zeros((ROWS, spec.observation_size), np.float32)
    try:
        arrays: Any = preprocessor.arrays()
        if not isinstance(arrays, Mapping):
            raise UsageError(f"preprocessor: arrays returned a {type(arrays).__name__}; return a dict of NumPy arrays")
        preprocessor.restore({name: np.array(array) for name, array in arrays.items()})
        found = np.shape(preprocessor(zeros))
    except OffbeatError:
        raise
    except Exception as error:
        raise UsageError(f"preprocessor: a trial with observations of zeros raised {describe(error)}") from error
    if found != zeros.shape:
        raise UsageError(f"preprocessor: it returned the shape {found} for observations {zeros.shape}; keep the shape")
