"""Whether a checkpoint belongs to the algorithm and the environment at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offbeat.errors import CheckpointError
from offbeat.types import EnvSpec


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


def _means_the_same_elsewhere(name: str) -> bool:
    """Whether an environment's name is an id or module:callable, rather than what a function happens to be called."""
    import gymnasium

    return ":" in name or name in gymnasium.registry
