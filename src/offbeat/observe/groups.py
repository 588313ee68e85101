"""The groups of metrics in TensorBoard and W&B; metrics.jsonl has the names without groups."""

from __future__ import annotations

from collections.abc import Mapping

ROLLOUT = (
    *("episodes", "return_100", "length_100", "success_100"),
    *("restarts", "dropped_rollouts", "stale_rollouts", "abandoned_rollouts"),
)
TIME = ("steps_per_second", "updates_per_second", "learner_waited", "collectors_waited")
_GROUPS = {**dict.fromkeys(ROLLOUT, "rollout"), **dict.fromkeys(TIME, "time")}


def grouped(numbers: Mapping[str, float], group: str = "train") -> dict[str, float]:
    """Metrics by `group/name`. group: of names without a known group; a name with a slash already has one."""
    return {name if "/" in name else f"{_GROUPS.get(name, group)}/{name}": value for name, value in numbers.items()}
