"""Runners and experiments."""

from offbeat.compat.metarl.experiment.experiment import wrap_experiment
from offbeat.compat.metarl.experiment.local_runner import LocalRunner
from offbeat.compat.metarl.experiment.snapshotter import SnapshotConfig

__all__ = ["LocalRunner", "SnapshotConfig", "wrap_experiment"]
