"""What a person should know of an environment before it is trained on, and would otherwise learn too late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offbeat.envs.vector import Vector
from offbeat.types import EnvSpec

LARGEST_TABLE = 256
"""Numbers in a Box of two or three dimensions that pass for a table; more are likely an image."""


def remarks(vector: Vector) -> list[str]:
    """Sentences on wrappers that keep statistics of their own, and on images that are flattened."""
    named = dict.fromkeys(_normalisers(vector.wrapped))
    return [*(_about(name) for name in named), *_flattened(vector.spec)]


def _about(name: str) -> str:
    observations = name != "NormalizeReward"
    ours = "normalise_observations" if observations else "normalise_rewards"
    lost = (
        "checkpoints, evaluation environments and the exported policy do not have them"
        if observations
        else ("checkpoints do not have them, and evaluations are in other units than the environment's own")
    )
    return (
        f"the wrapper {name} keeps statistics of its own: {lost}; leave it out and use {ours}, which travels with them"
    )


def _normalisers(env: Any) -> Iterator[str]:
    """Wrappers, outermost first, that normalise by what they have seen; also those inside of a vector environment."""
    seen = 0
    while env is not None and seen < 100:  # a wrapper that gives itself as what it wraps has no end
        if type(env).__name__ in ("NormalizeObservation", "NormalizeReward", "VecNormalize"):
            yield type(env).__name__
        for inner in (getattr(env, "envs", None) or ())[:1]:
            yield from _normalisers(inner)
        env, seen = vars(env).get("env", vars(env).get("venv")) if hasattr(env, "__dict__") else None, seen + 1


def _flattened(spec: EnvSpec) -> list[str]:
    return [
        f"the observation{f' {leaf.name!r}' if leaf.name else ''} is {leaf.dtype} of shape {leaf.shape}, flattened to "
        f"{leaf.size:,} numbers: there is no pixel encoder in this version; if it is an image, encode or shrink it in "
        "an env_wrapper, or reshape it at the start of an actor and a critic of your own"
        for leaf in spec.layout.vectors
        if leaf.kind == "box" and len(leaf.shape) in (2, 3) and leaf.size > LARGEST_TABLE
    ]
