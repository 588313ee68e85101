"""Acting only: no learner is needed to act. Each policy consumes `Weights` and nothing else of the learner's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offbeat.errors import UsageError
from offbeat.policies.protocol import Policy
from offbeat.types import EnvSpec

__all__ = ["NUMPY_BELOW", "Policy", "make_policy"]


NUMPY_BELOW = 32
"""NumPy acts faster than torch below about this many environments on the CPUs that we measured."""


def make_policy(
    description: Mapping[str, Any],
    *,
    num_envs: int = 1,
    first_env: int = 0,
    total_envs: int | None = None,
    acting: str = "auto",
    spec: EnvSpec | None = None,
    actor: Callable[[EnvSpec], Any] | None = None,
) -> Policy:
    """The policy that `description` (as in policy.json) speaks of. A user's own module needs `spec` and `actor`.

    It acts for the environments first_env to first_env + num_envs - 1 of `total_envs`, over which noise scales are
    spread; without total_envs, over those that it acts for.
    """
    total = num_envs if total_envs is None else total_envs
    if first_env < 0 or first_env + num_envs > total:
        raise UsageError(
            f"first_env={first_env}, num_envs={num_envs}, total_envs={total_envs}: first_env must be at least 0, and "
            "total_envs at least first_env + num_envs"
        )
    policy = _acting(description, num_envs, acting, spec, actor)
    exploration = description.get("exploration")
    if exploration is None or spec is None:
        return policy
    from offbeat.policies.exploration import Exploring

    return Exploring(policy, exploration, spec, first_env, total_envs)


def _acting(
    description: Mapping[str, Any],
    num_envs: int,
    acting: str,
    spec: EnvSpec | None,
    actor: Callable[[EnvSpec], Any] | None,
) -> Policy:
    if description["kind"] == "module":
        if spec is None or actor is None:
            named = description.get("actor") or "the callable that made it"
            raise UsageError(f"this policy is a module of your own: pass actor= ({named})")
        from offbeat.policies.module import ModulePolicy

        return ModulePolicy(description, spec, actor)
    from offbeat.policies.heads import HEADS
    from offbeat.policies.mlp import MLPPolicy

    if description["kind"] not in HEADS:
        raise UsageError(f"policy kind {description['kind']!r} is not known to this version of Offbeat")
    if acting not in ("auto", "numpy", "torch"):
        raise UsageError(f"acting={acting!r} is none of auto, numpy, torch")
    backend = acting if acting != "auto" else ("numpy" if num_envs < NUMPY_BELOW else "torch")
    return MLPPolicy(description, backend)
