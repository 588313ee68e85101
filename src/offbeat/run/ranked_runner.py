"""The training loop of one of several ranks: the same loop, with agreed decisions and one checkpoint of all.

Rank 0 logs, evaluates, calls callbacks and commits checkpoints. The others collect and learn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from offbeat.collect.collector import CollectorState
from offbeat.observe.console import Console
from offbeat.run.agreement import Agreement
from offbeat.run.directory import RunDirectory
from offbeat.run.evaluation import Evaluation
from offbeat.run.numbers import merged, merged_totals
from offbeat.run.progress import Progress
from offbeat.run.rank_checkpoint import save_together
from offbeat.run.records import Records
from offbeat.run.runner import Runner
from offbeat.run.snapshot import Snapshot
from offbeat.run.training import Training

RANK_POLL_SECONDS = 0.002
"""An idle rank waits for rows this long before the next meeting, for which the others may be waiting."""


class RankedRunner(Runner):
    """Drives the training of one rank; all ranks pass through the same calls of `_meet`."""

    poll_seconds = RANK_POLL_SECONDS

    @property
    def _agreement(self) -> Agreement:
        assert self.training.agreement is not None
        return self.training.agreement

    @property
    def _rank(self) -> int:
        return self.training.ranks.rank

    def __init__(self, training: Training, *others: Any) -> None:
        if training.ranks.rank:
            self.records_type = FollowerRecords
        super().__init__(training, *others)

    # What all decide together.

    def _meet(self) -> None:
        self._agreement.meet(
            stop=self.stop(),
            ended=self.stop_reason is not None,
            checkpoint=self.hooks.checkpoint_requested,
            oldest=self.collector.oldest_version(),
        )

    def _agreed(self, decide: Callable[[], int]) -> int:
        self._meet()
        return decide()

    def _stopping(self) -> bool:
        return self._agreement.stop

    def _ended(self) -> bool:
        return self._agreement.ended

    def _asked_for_checkpoint(self) -> bool:
        return self._agreement.checkpoint

    def _updates_allowed(self) -> int:
        return 0 if self._agreement.ended else self.training.due(self._agreement.oldest)

    # What rank 0 does while the others wait.

    def _evaluate(self) -> bool:
        return self._agreement.of_first(self._rank > 0 or super()._evaluate())

    def _conclude(self) -> bool:
        return self._agreement.of_first(self._rank > 0 or (super()._evaluate() and self._record_evaluations(0)))

    def _numbers(self) -> dict[str, Any]:
        """The numbers of all ranks: means, and sums of what is counted."""
        found = self.training.ranks.gather_bytes(json.dumps(super()._numbers()).encode())
        numbers = merged([json.loads(each) for each in found])
        self.progress.losses = {name: numbers[name] for name in self.progress.losses}
        return numbers

    def _totals(self, status: str) -> dict[str, Any]:
        """Those of all ranks; after a failure, those of this one, because the others may have ended."""
        own = super()._totals(status)
        if status == "failed":
            return own
        return merged_totals([json.loads(each) for each in self.training.ranks.gather_bytes(json.dumps(own).encode())])

    # Saving.

    def _save(self, state: CollectorState) -> str:
        self._meet()  # rows that came with the collector's state count, too
        self._agreement.checkpoint = False
        training = self.training
        return save_together(
            training.ranks,
            self.checkpoints,
            self._snapshot(state),
            training.shards,
            self.progress.step,
            state.ends,
            training.config.run.start.seed,
        )

    def _saved(self, name: str) -> None:
        if self._rank == 0:
            super()._saved(name)

    def _rescue(self, begun: int) -> None:
        """Nothing: a checkpoint needs all ranks, and this one is ending. The last one stays."""

    def _rewind(self, snapshot: Snapshot, which: str) -> None:
        if self._rank == 0:
            super()._rewind(snapshot, which)


class FollowerDirectory(RunDirectory):
    """The run's directory as seen by a rank that is not the first: it writes nothing there but lines of log.txt."""

    def __init__(self, path: Path, rank: int) -> None:
        super().__init__(path)
        self._rank = rank

    def write_status(
        self, state: str, others: Callable[[], list[dict[str, Any]]] = list, *, force: bool = False
    ) -> None:
        pass

    def write_summary(self, values: dict[str, Any]) -> None:
        pass

    def write_recorded(self, recorded: dict[str, Any], versions: dict[str, str]) -> None:
        pass

    def mark_failed(self) -> None:
        pass

    def lock(self) -> None:
        pass

    def log(self, text: str) -> None:
        super().log(f"rank {self._rank}: {text}")


class FollowerRecords(Records):
    """The outputs of a rank that is not the first: notes alone, on the console and in log.txt."""

    def __init__(self, directory: RunDirectory, console: Console) -> None:
        self.directory, self.console = directory, console
        self.history: list[Evaluation] = []
        self._files, self._loggers = {}, []

    def log(self, progress: Progress, numbers: Mapping[str, Any], user_numbers: Mapping[str, float]) -> None:
        pass
