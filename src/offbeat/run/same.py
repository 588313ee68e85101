"""Whether a checkpoint belongs to the algorithm and the environment at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offbeat.errors import CheckpointError, UsageError
from offbeat.types import EnvSpec, Layout


def check_same(notes: Mapping[str, Any], algorithm: str, spec: EnvSpec) -> None:
    """Says what differs between a checkpoint's algorithm and environment and the ones at hand."""
    there, here = notes["spec"], EnvSpec.from_json(spec.to_json()).to_json()
    differences = [f"algorithm {notes['algorithm']} there, {algorithm} here"] if notes["algorithm"] != algorithm else []
    there = EnvSpec.from_json(there).to_json()
    if not (_means_the_same_elsewhere(there["name"]) and _means_the_same_elsewhere(here["name"])):
        here["name"] = there["name"]
    differences += [f"{key}: {there[key]} there, {here[key]} here" for key in here if there[key] != here[key]]
    if differences:
        raise CheckpointError(
            f"the checkpoint was made with another algorithm or environment: {'; '.join(differences)}. "
            "Resume with the environment that the run was made with, or start a new run"
        )


def spaces_of(spec: EnvSpec) -> dict[str, Any]:
    """What has to be the same for a policy to act: what it sees, and what its actions mean."""
    names = ("layout", "action_low", "action_high", "choices", "branches")
    return {name: getattr(spec, name) for name in names}


def check_spaces(policy: EnvSpec, env: EnvSpec) -> None:
    """Refuses an environment that a policy cannot act in, whatever either is called."""
    there, here = spaces_of(policy), spaces_of(env)
    differences = [
        f"{name} {_words(there[name])} there, {_words(here[name])} here" for name in there if there[name] != here[name]
    ]
    if differences:
        raise UsageError(
            f"{env.name} does not have the observation and action spaces of {policy.name}, on which the policy was "
            f"trained: {'; '.join(differences)}; give an environment with the same spaces"
        )


def _words(value: Any) -> str:
    if not isinstance(value, Layout):
        return str(value)
    return ", ".join(f"{leaf.name} {leaf.kind} {leaf.shape}".strip() for leaf in value.leaves)


def _means_the_same_elsewhere(name: str) -> bool:
    """Whether an environment's name is an id or module:callable, rather than what a function happens to be called."""
    import gymnasium

    return ":" in name or name in gymnasium.registry
