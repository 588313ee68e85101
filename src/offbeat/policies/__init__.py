"""Acting only: no learner is needed to act. Each policy consumes `Weights` and nothing else of the learner's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from offbeat.errors import UsageError
from offbeat.policies.protocol import Policy
from offbeat.types import EnvSpec

__all__ = ["NUMPY_BELOW", "Policy", "acts_in", "make_policy"]


NUMPY_BELOW = 32_000_000
"""NumPy acts at least as fast as torch on one thread while the largest layer takes fewer multiplications than this for
all environments; beyond that torch's products are faster on some processors."""


FEW = 32
"""Environments from which NumPy's products take more than one thread, if they may."""


def acts_in(acting: str, num_envs: int, hidden: Sequence[int], *, one_thread: bool = True) -> str:
    """NumPy or torch, where `acting` is auto: by the size of the work for layers of these widths.

    one_thread: whether NumPy is held to one thread, as it is in a run. Otherwise torch acts for many environments:
    NumPy's idle threads would spin for milliseconds, on the cores that torch's need for the next update.
    """
    if acting != "auto":
        return acting
    if not one_thread and num_envs >= FEW:
        return "torch"
    largest = max((first * second for first, second in pairwise((*hidden, 1))), default=1)
    return "numpy" if num_envs * largest < NUMPY_BELOW else "torch"


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
    spread; without total_envs, over those that it acts for. acting: numpy or torch; auto is numpy.
    """
    total = num_envs if total_envs is None else total_envs
    if first_env < 0 or first_env + num_envs > total:
        raise UsageError(
            f"first_env={first_env}, num_envs={num_envs}, total_envs={total_envs}: first_env must be at least 0, and "
            "total_envs at least first_env + num_envs"
        )
    policy = _acting(description, acting, spec, actor)
    exploration = description.get("exploration")
    if exploration is None or spec is None:
        return policy
    from offbeat.policies.exploration import Exploring

    return Exploring(policy, exploration, spec, first_env, total_envs)


def _acting(
    description: Mapping[str, Any],
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
    return MLPPolicy(description, "torch" if acting == "torch" else "numpy")
