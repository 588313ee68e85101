"""Policies: weights and observations in, actions out. No learner is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from offbeat.errors import UsageError
from offbeat.policies.protocol import Policy
from offbeat.references import make_own
from offbeat.types import EnvSpec

__all__ = ["NUMPY_BELOW", "Policy", "choose_backend", "make_policy", "widths"]


NUMPY_BELOW = 32_000_000
"""On one thread, NumPy is at least as fast as torch while the largest layer needs fewer multiplications than this for
all environments; above it, torch's matrix products are faster on some processors."""


NUMPY_THREADS_FROM = 32
"""From this number of environments on, NumPy's matrix products use more than one thread, if allowed."""


def choose_backend(acting: str, num_envs: int, hidden: Sequence[int], *, one_thread: bool = True) -> str:
    """The backend of the policy: `acting`, or for "auto" numpy or torch by the size of the hidden layers.

    one_thread: whether NumPy is limited to one thread, as in a run. If not, torch acts for many environments, because
    NumPy's idle threads would spin for milliseconds on the cores that torch needs for the next update.
    """
    if acting != "auto":
        return acting
    if not one_thread and num_envs >= NUMPY_THREADS_FROM:
        return "torch"
    largest = max((first * second for first, second in pairwise((*hidden, 1))), default=1)
    return "numpy" if num_envs * largest < NUMPY_BELOW else "torch"


def widths(description: Mapping[str, Any], hidden: Sequence[int]) -> tuple[int, ...]:
    """The sizes of a policy's hidden layers for `choose_backend`, those of a built-in recurrent trunk included."""
    recurrent = description.get("recurrent", {})
    if "size" not in recurrent:
        return tuple(hidden)
    from offbeat.policies.recurrent import CELLS

    return CELLS[recurrent["kind"]].gates * recurrent["size"], recurrent["size"], *hidden


def make_policy(
    description: Mapping[str, Any],
    *,
    num_envs: int = 1,
    first_env: int = 0,
    total_envs: int | None = None,
    acting: str = "auto",
    spec: EnvSpec | None = None,
    actor: Callable[[EnvSpec], Any] | None = None,
    explore: Callable[[Policy, EnvSpec], Policy] | None = None,
    preprocessor: Callable[[EnvSpec], Any] | None = None,
) -> Policy:
    """Creates the policy of a `description` (as in policy.json). A user's module needs `spec` and `actor`, its factory.

    It acts for the environments first_env to first_env + num_envs - 1 of `total_envs` (default num_envs). Noise scales
    are spread over total_envs. acting: numpy or torch; auto means numpy. explore: the user's own exploration; without
    it, a policy that has one acts without. preprocessor: makes the user's own observation preprocessor.
    """
    total = num_envs if total_envs is None else total_envs
    if first_env < 0 or first_env + num_envs > total:
        raise UsageError(
            f"first_env={first_env}, num_envs={num_envs}, total_envs={total_envs}: first_env must be at least 0, and "
            "total_envs at least first_env + num_envs"
        )
    policy = _preprocessed(_acting(description, acting, spec, actor), description, spec, preprocessor)
    exploration = description.get("exploration")
    if exploration is None or spec is None:
        return policy
    if exploration["kind"] == "own":
        made: Policy = policy if explore is None else make_own(explore, "exploration", Policy, policy, spec)
        return made
    from offbeat.policies.exploration import Exploring

    return Exploring(policy, exploration, spec, first_env, total_envs)


def _preprocessed(
    policy: Policy, description: Mapping[str, Any], spec: EnvSpec | None, make: Callable[[EnvSpec], Any] | None
) -> Policy:
    if "preprocessor" not in description:
        return policy
    if spec is None or make is None:
        named = description["preprocessor"] or "the callable that made it"
        raise UsageError(f"this policy has an observation preprocessor of your own: pass preprocessor= ({named})")
    from offbeat.policies.preprocess import Preprocessed

    return Preprocessed(policy, make(spec))


def _acting(
    description: Mapping[str, Any],
    acting: str,
    spec: EnvSpec | None,
    actor: Callable[[EnvSpec], Any] | None,
) -> Policy:
    if description["kind"] == "module":
        if spec is None or actor is None:
            named = description.get("actor") or "the callable that created it"
            raise UsageError(f"this policy is a user's module, so it needs its code: pass actor= ({named})")
        if description.get("backend") == "jax":
            from offbeat.policies.jax_module import JaxModulePolicy

            return JaxModulePolicy(description, spec, actor)
        from offbeat.policies.module import ModulePolicy

        return ModulePolicy(description, spec, actor)
    if description.get("recurrent", {}).get("kind") == "own":
        return _with_own_trunk(description, spec, actor)
    from offbeat.policies.heads import HEADS
    from offbeat.policies.mlp import MLPPolicy
    from offbeat.policies.recurrent import RecurrentPolicy

    if description["kind"] not in HEADS:
        raise UsageError(
            f"the policy kind {description['kind']!r} is unknown to this version of Offbeat, which has: "
            f"{', '.join(HEADS)}"
        )
    if acting not in ("auto", "numpy", "torch"):
        raise UsageError(f"acting={acting!r} must be auto, numpy or torch")
    if "recurrent" not in description:
        return MLPPolicy(description, "torch" if acting == "torch" else "numpy")
    return RecurrentPolicy(description, "torch" if acting == "torch" else "numpy")


def _with_own_trunk(
    description: Mapping[str, Any], spec: EnvSpec | None, actor: Callable[[EnvSpec], Any] | None
) -> Policy:
    """A policy with a user's recurrent module, which `actor` makes."""
    if spec is None or actor is None:
        named = description["recurrent"].get("make") or "the callable that created it"
        raise UsageError(f"this policy has a recurrent module of your own, so it needs its code: pass actor= ({named})")
    from offbeat.policies.recurrent import RecurrentPolicy

    if description["recurrent"].get("backend") == "jax":
        from offbeat.policies.jax_trunk import JaxTrunk

        return RecurrentPolicy(description, "numpy", JaxTrunk(actor(spec), spec))
    from offbeat.policies.own_trunk import OwnTrunk

    return RecurrentPolicy(description, "torch", OwnTrunk(actor(spec)))
