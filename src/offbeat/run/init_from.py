"""init_from: starts a new run with the weights and normalisers of another run (fine-tuning)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offbeat.errors import CheckpointError, UsageError
from offbeat.learn.transfer import transfer
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.training import Training
from offbeat.types import EnvSpec, select_prefix


def initialise_from(training: Training, source: str) -> tuple[str, str]:
    """Gives a new agent the networks and normalisers of a checkpoint; its optimisers and counters stay new.

    source: RUN or RUN:CHECKPOINT; RUN may be a directory that `Agent.save` wrote. Returns RUN:CHECKPOINT with the
    checkpoint's folder, and a description of what was copied.
    """
    path, which = _parse(source)
    checkpoints = Checkpoints(path)
    folder = checkpoints.folder_name(which)
    snapshot = checkpoints.load(folder)
    notes = snapshot.notes
    _check_spaces(source, EnvSpec.from_json(notes["spec"]), training.spec)
    origin = f"{notes['algorithm']} on {notes['spec']['name']}, {snapshot.values['steps']:,} steps"
    try:
        taken, left = transfer(
            select_prefix(snapshot.arrays, "learner/"), training.learner, training.algorithm.acts_with
        )
    except CheckpointError as error:
        raise CheckpointError(
            f"init_from={source} ({origin}) does not fit {training.config.algorithm}: {error}"
        ) from error
    new = f"; new, because they do not fit: {', '.join(left)}" if left else ""
    return f"{path}:{folder}", f"init_from: {path}:{folder} ({origin}): {', '.join(taken)}{new}"


def _parse(source: str) -> tuple[Path, str]:
    for path, which in ((source, "latest"), (source.rpartition(":")[0], source.rpartition(":")[2])):
        if path and (Path(path) / "checkpoints").is_dir():
            return Path(path), which
    raise UsageError(
        f"init_from={source!r} is not a run: it has no directory checkpoints/; use the PATH that a run prints as "
        "`run: PATH`, or RUN:CHECKPOINT, where CHECKPOINT is latest, best or a name under checkpoints/"
    )


def _check_spaces(source: str, there: EnvSpec, here: EnvSpec) -> None:
    differences = [
        f"{name}: {one} there, {other} here"
        for name, one, other in (
            ("observations", _leaves(there.layout), _leaves(here.layout)),
            ("privileged state", _leaves(there.state), _leaves(here.state)),
            ("actions", _actions(there), _actions(here)),
        )
        if one != other
    ]
    if differences:
        raise CheckpointError(
            f"init_from={source} was trained on {there.name}, which has other spaces than {here.name}: "
            f"{'; '.join(differences)}. Use an environment with the same spaces, or omit init_from"
        )


def _leaves(layout: Any) -> list[tuple[Any, ...]]:
    return [] if layout is None else [(*leaf.path, leaf.kind, *leaf.shape) for leaf in layout.leaves]


def _actions(spec: EnvSpec) -> tuple[Any, ...]:
    if spec.choices is not None:
        return "discrete", spec.choices
    return ("branches", *spec.branches) if spec.branches else ("box", list(spec.action_low), list(spec.action_high))
