"""A trained policy on its own: export to a directory, load it again with NumPy and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import durable, masks
from offbeat.deploy.document import DOCUMENT, WEIGHTS, encode, read
from offbeat.errors import CheckpointError
from offbeat.policies import make_policy
from offbeat.references import resolve
from offbeat.types import Array, EnvSpec
from offbeat.weights.publication import Publication

Reference = str | Callable[..., Any]


def export_policy(
    directory: Path, publication: Publication, description: Mapping[str, Any], spec: EnvSpec, notes: Mapping[str, Any]
) -> None:
    """Writes weights.safetensors and policy.json: a reader finds the old pair or the new one, never a mixture."""
    from safetensors.numpy import save

    aside, old = (directory.with_name(f"{directory.name}.{suffix}") for suffix in ("new", "old"))
    durable.remove(aside)
    aside.mkdir(parents=True)
    content = {
        "policy": dict(description),
        "spec": spec.to_json(),
        "version": publication.version,
        "notes": dict(notes),
    }
    weights = save({name: np.array(array, order="C") for name, array in publication.weights.items()})
    durable.write_file(aside / WEIGHTS, weights)
    durable.write_file(aside / DOCUMENT, encode(content, weights))
    if os.path.lexists(directory):
        durable.remove(old)
        directory.rename(old)
    aside.rename(directory)
    durable.remove(old)


class LoadedPolicy:
    """A policy that acts, and what it was trained on (`spec`). No learner; no torch unless the actor is a module."""

    def __init__(self, document: Mapping[str, Any], publication: Publication, actor: Any, acting: str) -> None:
        self.spec = EnvSpec.from_json(document["spec"])
        self.version, self.notes = publication.version, document["notes"]
        # A file may name the actor's code, but nothing that a file names is imported here.
        own = None if actor is None else resolve(actor, "actor")
        self.policy = make_policy(document["policy"], acting=acting, spec=self.spec, actor=own)
        try:
            self.policy.load(publication.weights)
        except RuntimeError as error:  # torch's word for arrays that a module of the user's does not have
            raise CheckpointError(f"the weights do not fit the module that actor= makes: {error}") from error
        self._rng = np.random.default_rng()

    def act(
        self, obs: Any, deterministic: bool = True, rng: np.random.Generator | None = None, *, mask: Any = None
    ) -> Array:
        """The action in the environment's units, for one observation as the environment gives it, or for a stack.

        mask: the actions that are allowed, 1 or 0 for each; of a policy that was trained with masks in info it must be
        given, and in a Dict observation it is found.
        Not deterministic, it explores as training did in the end; noise that drifts is not remembered between calls.
        """
        rows, stack = self.spec.layout.read(obs)
        carry = self.policy.initial_carry(len(rows))
        chance, step = None if deterministic else rng or self._rng, int(self.notes.get("step", 0))
        allowed = masks.given(mask, obs, len(rows), self.spec, "mask")
        action, _, _ = self.policy.act(rows, carry, chance, step, allowed)
        action = self.spec.to_environment(action)
        return action if stack else action[0]


def load_policy(path: str | Path, *, actor: Reference | None = None, acting: str = "numpy") -> LoadedPolicy:
    """The policy of a run's directory, or of an exported policy's own. actor: what made your own module, if you did."""
    directory = Path(path)
    for candidate in (directory / "policy", directory / "policy.old", directory):
        if (candidate / DOCUMENT).exists():
            break
    else:
        raise CheckpointError(f"{directory} holds no policy.json and no policy/ directory: is it a run that has begun?")
    document, weights = read(candidate)
    return LoadedPolicy(document, Publication(document["version"], weights), actor, acting)
