"""Export of a trained policy to a directory, and loading it again; NumPy is enough to run it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import durable, masks
from offbeat.deploy.document import DOCUMENT, WEIGHTS, encode, read
from offbeat.errors import CheckpointError, UsageError
from offbeat.policies import make_policy
from offbeat.references import resolve
from offbeat.types import Array, EnvSpec
from offbeat.weights.publication import Publication

Reference = str | Callable[..., Any]


def export_policy(
    directory: Path, publication: Publication, description: Mapping[str, Any], spec: EnvSpec, notes: Mapping[str, Any]
) -> None:
    """Writes weights.safetensors and policy.json atomically: a reader sees the old pair or the new pair."""
    from safetensors.numpy import save

    temporary, old = (directory.with_name(f"{directory.name}.{suffix}") for suffix in ("new", "old"))
    durable.remove(temporary)
    temporary.mkdir(parents=True)
    content = {
        "policy": dict(description),
        "spec": spec.to_json(),
        "version": publication.version,
        "notes": dict(notes),
    }
    weights = save({name: np.array(array, order="C") for name, array in publication.weights.items()})
    durable.write_file(temporary / WEIGHTS, weights)
    durable.write_file(temporary / DOCUMENT, encode(content, weights))
    if os.path.lexists(directory):
        durable.remove(old)
        directory.rename(old)
    temporary.rename(directory)
    durable.remove(old)


class LoadedPolicy:
    """An exported policy and its environment's `spec`. Needs no learner, and torch only for a user's module.

    A recurrent policy keeps its state from one call of `act` to the next: call `reset` where an episode begins.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        publication: Publication,
        actor: Any,
        acting: str,
        preprocessor: Any = None,
    ) -> None:
        self.spec = EnvSpec.from_json(document["spec"])
        self.version, self.notes = publication.version, document["notes"]
        # A policy file may name the actor's code, but code named in a file is never imported.
        own = None if actor is None else resolve(actor, "actor")
        pre = None if preprocessor is None else resolve(preprocessor, "preprocessor")
        self.policy = make_policy(document["policy"], acting=acting, spec=self.spec, actor=own, preprocessor=pre)
        try:
            self.policy.load(publication.weights)
        except RuntimeError as error:  # what torch raises if the arrays do not match the user's module
            raise CheckpointError(
                f"the weights do not match the module that actor= creates; pass the actor that was trained: {error}"
            ) from error
        self._rng = np.random.default_rng()
        self._recurrent = "recurrent" in document["policy"]
        self._carry: Array | None = None

    def act(
        self, obs: Any, deterministic: bool = True, rng: np.random.Generator | None = None, *, mask: Any = None
    ) -> Array:
        """The action in the environment's units, for one observation from the environment, or for a stack of them.

        mask: 1 for each allowed action and 0 for the others. Required if the policy was trained with masks from info;
        a mask in a Dict observation is found without it.
        deterministic: False explores as at the end of training, without memory of the noise between calls
        unless the policy is recurrent.
        A recurrent policy continues the states of the call before, one for each observation of a stack, in its order.
        """
        rows, stack = self.spec.layout.read(obs)
        carry = self._begin(len(rows))
        generator, step = None if deterministic else rng or self._rng, int(self.notes.get("step", 0))
        allowed = masks.read_masks(mask, obs, len(rows), self.spec, "mask")
        action, carry, _ = self.policy.act(rows, carry, generator, step, allowed)
        if self._recurrent:
            self._carry = carry
        action = self.spec.to_environment(action)
        return action if stack else action[0]

    def _begin(self, rows: int) -> Array:
        """The states that a call with so many observations begins with."""
        if self._carry is None:
            return self.policy.initial_carry(rows)
        if len(self._carry) != rows:
            raise UsageError(
                f"act got {rows} observations, but this recurrent policy keeps the states of {len(self._carry)}; pass "
                "as many in each call, or call reset() to begin anew with another number"
            )
        return self._carry

    def reset(self, which: Any = None) -> None:
        """Begins new episodes: for all observations of a stack, or for some.

        which: their numbers, or a mask (N,) bool such as terminated | truncated; None for all. Without effect for a
        policy that is not recurrent.
        """
        if which is None or self._carry is None:
            self._carry = None
            return
        chosen, count = np.asarray(which), len(self._carry)
        mask = chosen.dtype == bool
        fits = chosen.shape == (count,) if mask else (chosen.size == 0 or chosen.dtype.kind in "iu")
        if not fits or (not mask and chosen.size and not 0 <= chosen.min() <= chosen.max() < count):
            raise UsageError(
                f"reset({which!r:.60}): pass the numbers of observations, 0 to {count - 1}, a mask of shape ({count},) "
                "of bool, or nothing to begin anew with all"
            )
        self._carry = self._carry.copy()
        rows = chosen if mask else chosen.astype(np.int64)
        self._carry[rows] = self.policy.initial_carry(count)[rows]


def load_policy(
    path: str | Path,
    *,
    actor: Reference | None = None,
    acting: str = "numpy",
    preprocessor: Reference | None = None,
) -> LoadedPolicy:
    """Loads the policy of a run, or of an exported directory.

    actor, preprocessor: the callables that create your own actor (or recurrent) module and preprocessor, if the policy
    has such.
    """
    directory = Path(path)
    for candidate in (directory / "policy", directory / "policy.old", directory):
        if (candidate / DOCUMENT).exists():
            break
    else:
        raise CheckpointError(
            f"{directory} has no policy.json and no policy/ directory; pass the directory of a run with a checkpoint, "
            "or of an exported policy"
        )
    document, weights = read(candidate)
    return LoadedPolicy(document, Publication(document["version"], weights), actor, acting, preprocessor)
