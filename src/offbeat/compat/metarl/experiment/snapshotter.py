"""When a runner saves, and where."""

from __future__ import annotations

from typing import Any, NamedTuple

from offbeat.errors import UsageError

MODES = ("all", "last", "gap", "gap_and_last", "none")


class SnapshotConfig(NamedTuple):
    """snapshot_dir: of the checkpoints. snapshot_mode: all, last (keeps the newest), gap, gap_and_last, none."""

    snapshot_dir: str
    snapshot_mode: str
    snapshot_gap: int


def check_snapshot_config(config: Any) -> None:
    for name in SnapshotConfig._fields:
        if not hasattr(config, name):
            raise UsageError(
                f"snapshot_config is a {type(config).__name__} without {name}; pass a SnapshotConfig(snapshot_dir, "
                "snapshot_mode, snapshot_gap)"
            )
    if config.snapshot_mode not in MODES:
        raise UsageError(f"snapshot_mode={config.snapshot_mode!r} is none of {', '.join(MODES)}")
    if config.snapshot_gap < 1:
        raise UsageError(f"snapshot_gap={config.snapshot_gap} is out of range: it must be at least 1")


def is_due(config: Any, epoch: int) -> bool:
    """Whether an epoch is saved."""
    if config.snapshot_mode == "gap":
        return bool(epoch % config.snapshot_gap == 0)
    return bool(config.snapshot_mode != "none")
