"""One call each of a user's own parts, with their results checked, before a run begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offbeat.algorithms.registry import Algorithm
from offbeat.deploy.document import InvalidDocument, check_policy
from offbeat.errors import OffbeatError, UsageError, describe
from offbeat.learn.statistics import Preprocessor
from offbeat.policies import Policy
from offbeat.policies.mlp import MLPPolicy
from offbeat.policies.recurrent import RecurrentPolicy
from offbeat.types import EnvSpec, Weights

ROWS = 2


def try_document(description: Mapping[str, Any], spec: EnvSpec, weights: Weights, algorithm: Algorithm) -> None:
    """Raises UsageError if an algorithm's description of its policy does not describe the network that acts."""
    try:
        check_policy(description, spec, weights)
    except InvalidDocument as error:
        name, acting = algorithm.name, algorithm.acts_with
        raise UsageError(
            f"policy_description of the algorithm {name} does not describe its network {acting}: {error}. It "
            "must be an MLP of Offbeat's (offbeat.algorithms.torch.MLP), described by a kind and its keys, or a "
            "module that the user gives (own_networks), with the kind module"
        ) from error


def try_description(description: Mapping[str, Any], backend: Any, spec: EnvSpec) -> None:
    """Raises UsageError if the policy that is described computes something else than the network that learns."""
    obs = np.random.default_rng(0).standard_normal((8, spec.observation_size), np.float32)
    policy = RecurrentPolicy(description) if "recurrent" in description else MLPPolicy(description)
    policy.load(backend.weights())
    try:
        wanted = backend.acting_outputs(obs)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise UsageError(f"the network that acts raised {describe(error)} for observations {obs.shape}") from error
    found = policy.outputs(obs.copy())
    if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=0, atol=1e-3 * np.abs(wanted).max()):
        raise UsageError(
            f"policy_description: a policy with activation={description['activation']!r} computes other outputs than "
            "the network that acts, for the same observations; name the activation of its hidden layers, and act with "
            "an MLP of Offbeat's"
        )


def try_exploration(policy: Policy, spec: EnvSpec, weights: Weights, extras: Sequence[str] = ()) -> None:
    """Raises UsageError if a policy with a user's exploration cannot act, or returns other shapes than it must.

    extras: those that rows store.
    """
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
    if missing := [name for name in extras if name not in result[2]]:
        raise UsageError(
            f"exploration: act returned extras without {missing[0]!r}, which replay stores: pass on those of the policy"
        )
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
