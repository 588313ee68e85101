"""The numbers that a run tells of itself: those of each log line, and those of summary.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from offbeat.collect.collector import CollectorReport
from offbeat.errors import UsageError
from offbeat.run.evaluators import Evaluator
from offbeat.run.lag import PolicyLag
from offbeat.run.progress import Progress
from offbeat.run.training import Training

COUNTED = (
    *("episodes", "replay", "restarts", "dropped_rollouts", "stale_rollouts", "abandoned_rollouts"),
    *("learner_waited", "collectors_waited", "restarted_environments"),
)
OWN_TOTALS = ("episodes", "restarts", "restarted_environments", "train_return_100", "success_100")
OF_ALL_RANKS = ("steps_per_second", "updates_per_second", "updates_per_step")
"""What ranks count for themselves, and what is that of all already."""
WHERE = ("step", "update", "wall")
"""What every line of metrics.jsonl begins with."""


def metrics(training: Training, progress: Progress, lag: PolicyLag, report: CollectorReport) -> dict[str, Any]:
    return {
        "episodes": progress.episodes,
        "return_100": progress.return_100,
        "length_100": progress.length_100,
        **_success(progress),
        "replay": len(training.experience),
        "updates_per_step": training.pace.ratio(progress.step, progress.updates),
        "policy_lag": lag.latest,
        "policy_lag_seconds": lag.latest_seconds,
        **report.numbers,
        "steps_per_second": progress.steps_per_second,
        "updates_per_second": progress.updates_per_second,
        **progress.losses,
        **training.learner.counters(),
        **{f"{group}_rate": rate for group, rate in training.learner.rates().items()},
    }


def merged(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers of several ranks as one: sums of what each counts for itself, means of all others."""
    found = dict(each[0])
    for name in found:
        values = [value for numbers in each if (value := numbers.get(name)) is not None]
        if values and name not in OF_ALL_RANKS:
            total = sum(values)
            found[name] = total if name in COUNTED else total / len(values)
    return found


def merged_totals(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers of summary.json of several ranks as one; the policy lag is that of the first."""
    found = merged([{name: numbers.get(name) for name in OWN_TOTALS if name in each[0]} for numbers in each])
    for name in ("waits", "lost"):
        keys = dict.fromkeys(key for numbers in each for key in numbers[name])
        found[name] = {key: sum(numbers[name].get(key, 0) for numbers in each) for key in keys}
    return {**each[0], **found}


def check_own(own: Mapping[str, float], numbers: Mapping[str, Any]) -> None:
    """Refuses a number of the user's under a name that the run logs itself."""
    for name in own:
        if name in numbers or name in WHERE:
            raise UsageError(f"log: {name!r} is a number that the run logs itself; use another name, like 'own/{name}'")


def summary(training: Training, progress: Progress, lag: PolicyLag) -> dict[str, Any]:
    return {
        "env_steps": progress.step,
        "updates": progress.updates,
        "episodes": progress.episodes,
        "wall_seconds": progress.wall_seconds,
        "train_return_100": progress.return_100,
        **_success(progress),
        "updates_per_step": training.pace.ratio(progress.step, progress.updates),
        "policy_lag": lag.summary(),
        **training.learner.counters(),
    }


def supervision(report: CollectorReport, evaluator: Evaluator, evaluation_waited: float) -> dict[str, Any]:
    """Who waited for whom, in seconds, what was restarted, and which data was lost."""
    waits = dict(report.waits)
    if waits or evaluation_waited:
        waits["evaluation"] = evaluation_waited
    return {
        "waits": waits,
        "restarts": report.restarts + evaluator.restarts,
        "restarted_environments": report.restarted_environments,
        "lost": dict(report.lost),
    }


def _success(progress: Progress) -> dict[str, float]:
    return {} if progress.success_100 is None else {"success_100": progress.success_100}
