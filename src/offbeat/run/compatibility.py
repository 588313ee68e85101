"""Checks that a checkpoint or policy fits the current algorithm and environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offbeat.algorithms.registry import find
from offbeat.errors import CheckpointError, UsageError
from offbeat.types import EnvSpec, Layout


def check_compatible(notes: Mapping[str, Any], algorithm: str, spec: EnvSpec) -> None:
    """Raises CheckpointError with the differences if a checkpoint has another algorithm or environment."""
    there, here = notes["spec"], EnvSpec.from_json(spec.to_json()).to_json()
    same = notes["algorithm"] in (algorithm, find(algorithm).name)  # a record of a script is saved by its own name
    differences = [] if same else [f"algorithm {notes['algorithm']} there, {algorithm} here"]
    there = EnvSpec.from_json(there).to_json()
    if not (_is_global_name(there["name"]) and _is_global_name(here["name"])):
        here["name"] = there["name"]
    differences += [f"{key}: {there[key]} there, {here[key]} here" for key in here if there[key] != here[key]]
    if differences:
        raise CheckpointError(
            f"the checkpoint was made with another algorithm or environment: {'; '.join(differences)}. "
            "Resume with the original environment, or start a new run"
        )


def backend_of(notes: Mapping[str, Any]) -> str:
    """The backend that made a checkpoint."""
    return str(notes["config"].get("backend", "torch"))


def check_backend(notes: Mapping[str, Any], backend: str) -> None:
    """Raises CheckpointError if another backend made the checkpoint."""
    if backend_of(notes) != backend:
        raise CheckpointError(
            f"backend={backend}, but the checkpoint was made with backend={backend_of(notes)}: convert it first, with "
            f"`offbeat convert RUN --backend {backend}`, or use backend={backend_of(notes)}"
        )


def check_env_fits(policy: EnvSpec, env: EnvSpec, remedy: str = "use an environment with the same spaces") -> None:
    """Raises UsageError if the environment's spaces are not those that the policy is trained on; names may differ."""
    differences = []
    for name in ("layout", "action_low", "action_high", "choices", "branches"):
        there, here = getattr(policy, name), getattr(env, name)
        if there != here:
            differences.append(f"{name} {_describe(there)} there, {_describe(here)} here")
    if differences:
        raise UsageError(
            f"{env.name} does not have the observation and action spaces of {policy.name}, on which the policy is "
            f"trained: {'; '.join(differences)}; {remedy}"
        )


def _describe(value: Any) -> str:
    if not isinstance(value, Layout):
        return str(value)
    return ", ".join(f"{leaf.name} {leaf.kind} {leaf.shape}".strip() for leaf in value.leaves)


def _is_global_name(name: str) -> bool:
    """Whether an environment's name is a Gymnasium id or module:callable, and not just a local function's name."""
    import gymnasium

    return ":" in name or name in gymnasium.registry
