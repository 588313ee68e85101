"""The policy of a run, of any of its checkpoints, or of what an agent has saved; NumPy alone, no learner is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from offbeat import deploy
from offbeat.algorithms.configs import ALGORITHMS
from offbeat.deploy import LoadedPolicy, Reference
from offbeat.errors import CheckpointError
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.snapshot import Snapshot, under
from offbeat.types import Array
from offbeat.weights.publication import Publication


def load_policy(
    path: str | Path, checkpoint: str = "latest", *, actor: Reference | None = None, acting: str = "numpy"
) -> LoadedPolicy:
    """The policy of a run's directory, of what `Agent.save` wrote, or of an exported policy's own directory.

    checkpoint: latest, best, or a name under the run's checkpoints/. actor: what made your own module, if you did.
    """
    directory = Path(path)
    exported = any((directory / where / "policy.json").exists() for where in ("policy", "policy.old", "."))
    if checkpoint == "latest" and (exported or not (directory / "checkpoints").is_dir()):
        return deploy.load_policy(directory, actor=actor, acting=acting)
    if not (directory / "checkpoints").is_dir():
        raise CheckpointError(
            f"{directory} holds no checkpoints, so there is no {checkpoint!r}; give a run's directory"
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
        return LoadedPolicy(document, publication, actor, acting)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{directory}: the checkpoint {checkpoint!r} holds no policy: {error!r}") from error


def version_of(snapshot: Snapshot) -> int:
    """The updates that made its weights."""
    return int(snapshot.arrays["learner/updates"])


def acting_weights(snapshot: Snapshot) -> dict[str, Array]:
    """The weights that a policy needs to act, as `Learner.weights` gives them."""
    learner, config = under(snapshot.arrays, "learner/"), snapshot.notes["config"]
    acts_with = ALGORITHMS[snapshot.notes["algorithm"]].acts_with
    weights: dict[str, Any] = {
        f"actor/{name}": array.astype(np.float32) if np.issubdtype(array.dtype, np.floating) else array
        for name, array in under(learner, f"{acts_with}/").items()
    }
    if "observations/mean" in learner:
        from offbeat.learn.statistics import RunningMoments

        moments = RunningMoments(len(learner["observations/mean"]))
        moments.restore(under(learner, "observations/"))
        weights["normaliser/mean"] = moments.mean.astype(np.float32)
        weights["normaliser/scale"] = moments.scale.astype(np.float32)
        weights["normaliser/clip"] = np.asarray(config["observation_clip"], np.float32)
    return weights
