"""Moves a run to the other backend: its networks, optimisers and everything else, as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import flat
from offbeat import settings as settings_module
from offbeat.algorithms.configs import Config
from offbeat.algorithms.configs.groups import NETWORKS
from offbeat.algorithms.registry import Algorithm, find_recorded, key_of
from offbeat.coercion import lost
from offbeat.errors import OffbeatError, UsageError
from offbeat.learn.backends import BACKENDS, check_installed, learner_threads, make_backend
from offbeat.learn.learner import Learner
from offbeat.learn.saved_arrays import arrays_of_backend, shape_differences
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.compatibility import backend_of
from offbeat.run.directory import RunDirectory
from offbeat.run.file_errors import explain_os_errors
from offbeat.run.snapshot import Snapshot
from offbeat.run.versions import versions
from offbeat.types import Array, EnvSpec, select_prefix


@dataclass(frozen=True)
class Conversion:
    """What `convert` did. before: the backend until now, which may be the same. checkpoint: the newest one's name."""

    path: Path
    before: str
    backend: str
    checkpoint: str
    step: int


def convert(path: str | Path, *, backend: str, algorithm: Algorithm | None = None) -> Conversion:
    """Moves a run, or what `Agent.save` wrote, to a backend (torch or jax); `resume` then goes on with that one.

    The newest checkpoint is saved once more, with the same arrays and the other backend's name. Older ones keep theirs.
    algorithm: the record, if the run was trained with an `Algorithm` object of your own.
    """
    if backend not in BACKENDS:
        raise UsageError(f"backend={backend!r} is not one of {', '.join(BACKENDS)}")
    if algorithm is not None:
        key_of(algorithm)  # from now on it is known by its name
    directory = RunDirectory(Path(path))
    if not (directory.path / "checkpoints").is_dir():
        raise UsageError(
            f"{directory.path} is not a run: it has no directory checkpoints/; pass the directory that `offbeat train` "
            "printed, or one that Agent.save wrote"
        )
    with explain_os_errors(directory.path):
        directory.lock()
        try:
            return _convert(directory, backend)
        finally:
            directory.unlock()


def _convert(directory: RunDirectory, backend: str) -> Conversion:
    checkpoints = Checkpoints(directory.path)
    snapshot = checkpoints.load("latest")
    before, step = backend_of(snapshot.notes), int(snapshot.values["steps"])
    recorded = {**snapshot.notes["config"], "backend": backend}
    if before != backend:
        check_installed(backend)
        _check(directory.path, snapshot, recorded)
        notes = {**snapshot.notes, "config": recorded, "versions": versions()}
        # From the moment at which this is the newest checkpoint, the run resumes with the other backend.
        keep = recorded["keep_checkpoints"]
        Checkpoints(directory.path, keep=keep).save_again(Snapshot(snapshot.arrays, snapshot.values, notes))
    if (directory.path / "config.yaml").exists():  # also where a conversion was interrupted after the checkpoint
        directory.write_recorded(recorded, versions())
        if before != backend:
            directory.log(f"converted from {before} to {backend} at step {step}")
    return Conversion(directory.path, before, backend, checkpoints.folder_name(), step)


def _check(path: Path, snapshot: Snapshot, recorded: Mapping[str, Any]) -> None:
    """Raises UsageError where the other backend could not go on exactly from these arrays."""
    backend, spec = recorded["backend"], EnvSpec.from_json(snapshot.notes["spec"])
    saved = arrays_of_backend(select_prefix(snapshot.arrays, "learner/"))
    record = find_recorded(snapshot.notes["algorithm"])
    try:
        record.module(backend, spec)
        _refuse_own_networks(record, recorded)
    except UsageError as error:
        raise UsageError(f"{path} cannot be converted to {backend}: {error}") from error
    try:
        config = _readable(recorded)
        threads = config.run.compute.threads
        with learner_threads(threads, backend) if threads else contextlib.nullcontext():  # an Agent leaves them alone
            found = _through_backend(config, spec, saved)
    except UsageError as error:
        raise UsageError(
            f"{path} cannot be converted to {backend}: {error}. To change a setting first, use `offbeat resume {path} "
            "--SETTING VALUE`, which holds from the next checkpoint on"
        ) from error
    for name, array in saved.items():
        if array.dtype != found[name].dtype or array.tobytes() != found[name].tobytes():
            raise OffbeatError(
                f"{path} cannot be converted to {backend}: {name} would not keep its values. Please report this; the "
                "run is unchanged"
            )


def _readable(recorded: Mapping[str, Any]) -> Config:
    """The settings of a run as far as they concern its learner, on a CPU.

    Code that no file could hold is replaced by a function that does nothing: a learner's arrays do not depend on it.
    """
    known = {name: _known(value) for name, value in recorded.items() if name not in ("algorithm", "device")}
    return settings_module.make_config(recorded["algorithm"], known)


def _known(value: Any) -> Any:
    if isinstance(value, Mapping) and list(value) == ["callable"]:
        return _unknown
    if isinstance(value, Mapping):
        return {name: _known(each) for name, each in value.items() if "kind" in value or lost(each) is None}
    return value


def _unknown(*arguments: Any, **options: Any) -> float:
    """In the place of a user's code. As a schedule it is constant."""
    return 1.0


def _refuse_own_networks(record: Algorithm, recorded: Mapping[str, Any]) -> None:
    own = [leaf.name for leaf in flat.leaves(record.config) if "own_networks" in leaf.path]
    found = [name for name in own if recorded[name] is not None]
    found += ["network"] if recorded.get("network", NETWORKS[0]) not in NETWORKS else []
    for name in found:
        raise UsageError(
            f"{name}={lost(recorded[name]) or recorded[name]} is a network of your own, which is code for one backend. "
            "Write it for the other one and train a new run"
        )


def _through_backend(config: Config, spec: EnvSpec, saved: Mapping[str, Array]) -> dict[str, Array]:
    """A backend's own arrays after it has taken over the saved ones."""
    record, rng = find_recorded(config.algorithm), np.random.default_rng(0)
    backend = make_backend(record, config, spec, rng)
    Learner(config.learner, spec, backend, groups=record.groups, scheduled=record.scheduled)  # makes the schedules
    fixed = [
        {name: array for name, array in each.items() if not name.startswith(backend.growing)}
        for each in (saved, backend.arrays())
    ]
    if differences := shape_differences(*fixed):
        raise UsageError(
            f"its arrays differ between the backends ({'; '.join(differences[:3])}, where `there` is the checkpoint); "
            "go on with the backend that it has"
        )
    backend.restore(saved)
    return backend.arrays()
