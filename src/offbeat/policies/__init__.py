"""Acting only: no learner is needed to act. Each policy consumes `Weights` and nothing else of the learner's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from offbeat.errors import UsageError
from offbeat.types import Array, EnvSpec, Weights


class Policy(Protocol):
    """Acts for N environments at once, in NumPy arrays whatever computes it.

    `carry` is the per-environment memory (leading axis N; empty (N, 0) for most policies); the collector sets the rows
    of environments whose episode ended back to `initial_carry`. `extras` holds what an algorithm stores per step.
    """

    def load(self, weights: Weights) -> None: ...

    def initial_carry(self, num_envs: int) -> Array: ...

    def act(self, obs: Array, carry: Array, rng: np.random.Generator | None) -> tuple[Array, Array, dict[str, Array]]:
        """obs (N, O) float32 -> action (N, A) float32 in [-1, 1], carry, extras. rng None acts deterministically."""
        ...


NUMPY_BELOW = 32
"""NumPy acts faster than torch below about this many environments on the CPUs that we measured."""


def make_policy(
    description: Mapping[str, Any],
    *,
    num_envs: int = 1,
    acting: str = "auto",
    spec: EnvSpec | None = None,
    actor: Callable[[EnvSpec], Any] | None = None,
) -> Policy:
    """The policy that `description` (as in policy.json) speaks of. A user's own module needs `spec` and `actor`."""
    if description["kind"] == "module":
        if spec is None or actor is None:
            named = description.get("actor") or "the callable that made it"
            raise UsageError(f"this policy is a module of your own: pass actor= ({named})")
        from offbeat.policies.module import ModulePolicy

        return ModulePolicy(description, spec, actor)
    if description["kind"] != "squashed_gaussian":
        raise UsageError(f"policy kind {description['kind']!r} is not known to this version of Offbeat")
    from offbeat.policies.squashed_gaussian import SquashedGaussian

    if acting not in ("auto", "numpy", "torch"):
        raise UsageError(f"acting={acting!r} is none of auto, numpy, torch")
    backend = acting if acting != "auto" else ("numpy" if num_envs < NUMPY_BELOW else "torch")
    return SquashedGaussian(description, backend)
