"""Notes on an environment that a user should read before training starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offbeat.envs.vector import Vector
from offbeat.types import EnvSpec

LARGEST_TABLE = 256
"""Largest size of a Box with two or three dimensions that is not taken for an image."""


def environment_notes(vector: Vector) -> list[str]:
    """Notes on normalising wrappers, which keep their own statistics, and on images that are flattened."""
    wrappers = dict.fromkeys(_normalisers(vector.outermost_env))
    return [*(_normaliser_note(name) for name in wrappers), *_flattened_image_notes(vector.spec)]


def _normaliser_note(name: str) -> str:
    observations = name != "NormalizeReward"
    setting = "normalise_observations" if observations else "normalise_rewards"
    problem = (
        "checkpoints, evaluation environments and the exported policy do not include them"
        if observations
        else "checkpoints do not include them, and evaluation returns are not in the environment's units"
    )
    return (
        f"the wrapper {name} keeps its own statistics: {problem}; remove it and use {setting}, whose statistics are "
        "saved with the run"
    )


def _normalisers(env: Any) -> Iterator[str]:
    """Names of normalising wrappers, outermost first, also of the first environment inside a vector environment."""
    depth = 0
    while env is not None and depth < 100:  # a wrapper may name itself as the wrapped environment
        if type(env).__name__ in ("NormalizeObservation", "NormalizeReward", "VecNormalize"):
            yield type(env).__name__
        for inner in (getattr(env, "envs", None) or ())[:1]:
            yield from _normalisers(inner)
        env, depth = vars(env).get("env", vars(env).get("venv")) if hasattr(env, "__dict__") else None, depth + 1


def _flattened_image_notes(spec: EnvSpec) -> list[str]:
    return [
        f"the observation{f' {leaf.name!r}' if leaf.name else ''} is {leaf.dtype} of shape {leaf.shape}, flattened to "
        f"{leaf.size:,} numbers, because this version has no pixel encoder; if it is an image, encode or shrink it in "
        "an env_wrapper, or reshape it in your own actor and critic"
        for leaf in spec.layout.vectors
        if leaf.kind == "box" and len(leaf.shape) in (2, 3) and leaf.size > LARGEST_TABLE
    ]
