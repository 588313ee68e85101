"""Loads the policy of a run, a checkpoint or a saved agent, with NumPy only and without a learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from offbeat import deploy
from offbeat.algorithms.registry import find_recorded
from offbeat.deploy import LoadedPolicy, Reference
from offbeat.errors import CheckpointError
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.snapshot import Snapshot
from offbeat.types import Array, select_prefix
from offbeat.weights.publication import Publication


def load_policy(
    path: str | Path,
    checkpoint: str = "latest",
    *,
    actor: Reference | None = None,
    acting: str = "numpy",
    preprocessor: Reference | None = None,
) -> LoadedPolicy:
    """Loads a policy from a run's directory, from what `Agent.save` wrote, or from an exported policy's directory.

    checkpoint: latest, best, or a name under the run's checkpoints/. actor: the factory of your own actor module, or
    of your own recurrent module, if the run used one. preprocessor: likewise. acting: "numpy" or "torch".
    """
    directory = Path(path)
    exported = any((directory / where / "policy.json").exists() for where in ("policy", "policy.old", "."))
    if checkpoint == "latest" and (exported or not (directory / "checkpoints").is_dir()):
        return deploy.load_policy(directory, actor=actor, acting=acting, preprocessor=preprocessor)
    if not (directory / "checkpoints").is_dir():
        raise CheckpointError(
            f"{directory} holds no checkpoints, so there is no {checkpoint!r}; pass a run's directory"
        )
    snapshot = Checkpoints(directory).load(checkpoint)
    notes = snapshot.notes
    try:
        document = {
            "policy": notes["policy"],
            "spec": notes["spec"],
            "notes": {
                "algorithm": notes["algorithm"],
                "env": notes["config"]["env"],
                "step": int(snapshot.values["steps"]),
                "versions": notes["versions"],
            },
        }
        publication = Publication(version_of(snapshot), acting_weights(snapshot))
        return LoadedPolicy(document, publication, actor, acting, preprocessor)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{directory}: the checkpoint {checkpoint!r} holds no policy: {error!r}") from error


def version_of(snapshot: Snapshot) -> int:
    """The version of a snapshot's weights: the number of updates that made them."""
    return int(snapshot.arrays["learner/updates"])


def acting_weights(snapshot: Snapshot) -> dict[str, Array]:
    """The weights that a policy needs to act, in the form that `Learner.weights` returns."""
    learner, config = select_prefix(snapshot.arrays, "learner/"), snapshot.notes["config"]
    acts_with = find_recorded(snapshot.notes["algorithm"]).acts_with
    weights: dict[str, Any] = {
        f"actor/{name}": array.astype(np.float32) if np.issubdtype(array.dtype, np.floating) else array
        for name, array in select_prefix(learner, f"{acts_with}/").items()
    }
    if "preprocessor" in snapshot.notes["policy"]:
        own = select_prefix(learner, "observations/")
        weights |= {f"preprocessor/{name}": array for name, array in own.items()}
    elif "observations/mean" in learner:
        from offbeat.learn.statistics import Normaliser

        normaliser = Normaliser(len(learner["observations/mean"]), config["observation_clip"])
        normaliser.restore(select_prefix(learner, "observations/"))
        weights |= normaliser.acting_arrays()
    return weights
