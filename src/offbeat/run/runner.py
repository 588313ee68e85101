"""The one training loop: collect, learn, publish; log, evaluate and checkpoint when due."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import sleep
from typing import Any

from offbeat.collect.collector import Collector, CollectorState, checked
from offbeat.deploy import export_policy
from offbeat.errors import ProcessFault
from offbeat.observe.console import Console
from offbeat.run.agent import Agent
from offbeat.run.callbacks import Callbacks, CheckpointEvent, ChunkEvent, EvaluationEvent, RunHandle, UpdateEvent
from offbeat.run.checkpoint import Checkpoints, Snapshot
from offbeat.run.directory import RunDirectory
from offbeat.run.evaluation import Evaluation
from offbeat.run.evaluators import Evaluator
from offbeat.run.lag import PolicyLag
from offbeat.run.numbers import check_own, metrics, summary, supervision
from offbeat.run.progress import Progress
from offbeat.run.records import Records
from offbeat.run.restore import restore_run
from offbeat.run.training import Training
from offbeat.run.versions import versions
from offbeat.settings import flatten
from offbeat.trace import NO_TRACE, Trace, Tracer
from offbeat.types import Chunk
from offbeat.weights.publication import Publication

UPDATES_BETWEEN_STOP_CHECKS = 16
MOST_PENDING_EVALUATIONS = 2
"""Training may be ahead of this many evaluations: each keeps the learner's state until its result is known."""
POLL_SECONDS = 0.05
"""The loop waits this long for rows, or for an evaluation, before it checks everything else again."""


class Runner:
    """Drives a training and its collector through a run's directory.

    `stop` is asked between two steps of anything that takes time. stop_reason: why a callback ended the run, if one
    did. unlimited: no time limit of the environment is known, and no episode was truncated yet. See `RankedRunner`.
    """

    poll_seconds, records_type = POLL_SECONDS, Records

    def __init__(
        self,
        training: Training,
        collector: Collector,
        evaluator: Evaluator,
        directory: RunDirectory,
        console: Console,
        stop: Callable[[], bool],
        callbacks: Callbacks | None = None,
        trace: Trace = NO_TRACE,
    ) -> None:
        self.training, self.collector, self.evaluator, self.trace = training, collector, evaluator, trace
        self.directory, self.console, self.stop, self.callbacks = directory, console, stop, callbacks
        self.agent = Agent(training)  # for callbacks
        self.run = training.config.run
        self.progress = Progress(training, self._intervals())
        self.checkpoints = Checkpoints(directory.path, keep=self.run.output.keep_checkpoints)
        self.records = self.records_type(directory, console)
        self.hooks = RunHandle(self.agent)
        self.stop_reason: str | None = None
        self.unlimited = False
        self._purge_step: int | None = None
        self._lag, self._learned, self._evaluation_waited = PolicyLag(), False, 0.0
        self._published: Publication | None = None
        self._evaluated: tuple[int, int] | None = None  # step and version of the last evaluation that was submitted
        self._evaluated_states: deque[Snapshot] = deque()  # of evaluations whose result is not known yet
        collector.connect(note=self.records.note, trace=trace, stop=stop)
        evaluator.connect(note=self.records.note, trace=trace, stop=stop)

    def _agreed(self, decide: Callable[[], int]) -> int:
        return decide()  # several ranks exchange what it depends on first

    def _stopping(self) -> bool:
        return self.stop()

    def _ended(self) -> bool:
        return self.stop_reason is not None

    def _intervals(self) -> dict[str, int]:
        """Steps between two of each event; 0 for never."""
        output, evaluation = self.run.output, self.run.evaluation
        return {"log": output.log_every, "eval": evaluation.eval_every, "checkpoint": output.checkpoint_every}

    def resume(self, which: str) -> None:
        """Returns to a checkpoint: every part of the run takes its state from it, and logs lose what came after it."""
        snapshot = self.checkpoints.load(which)
        progress, sentences = restore_run(self.training, self.collector, self.checkpoints, which, snapshot)
        for sentence in sentences:
            self.records.note(sentence)
        self.progress.restore(*progress)
        for event, every in self._intervals().items():
            if snapshot.notes["config"][f"{event}_every"] != every:
                self.progress.settle(event)  # the next one is by the new interval
        self._purge_step = self.progress.step + 1
        self.unlimited = False  # the note about it was given when the run began
        self._rewind(snapshot, which)

    def _rewind(self, snapshot: Snapshot, which: str) -> None:
        """Takes back what the run's files hold of the steps after a checkpoint."""
        self.directory.log(f"resumed from {which} at step {self.progress.step}")  # before anything is changed
        self.records.rewind(snapshot.notes["files"])
        if self.records.history:
            last = self.records.history[-1]
            self._evaluated = last.step, last.version
        if self.checkpoints.remove_best_after(self.progress.step):
            self.progress.best_return = None  # it belonged to steps after the checkpoint

    def train(self) -> str:
        """Runs until the end or a request to stop; returns the status: finished or stopped."""
        begun = self.progress.step
        self.records.open_loggers(
            self.run.output.logger, flatten(self.training.recorded), self._purge_step, self.run.output.quiet
        )
        self._summary("running")
        if not self.checkpoints.names():
            self._checkpoint()  # so that a run killed at any moment has something to resume from
        try:
            self._loop()
            self.collector.allow(-1)
            reason = self.stop_reason
            if self._stopping():
                status = "stopped"
            else:
                if self.training.learner.pending():
                    self._log()
                status = "finished" if self._conclude() else "stopped"
        except ProcessFault:
            self._rescue(begun)
            raise
        self._log_own()
        if self._purge_step is None or self._advanced(begun) or status == "stopped":
            self._checkpoint()
        self._log_own()
        self.stop_reason = reason  # a callback's answer to the final evaluation and checkpoint ends nothing
        self._summary(status)
        self.directory.write_status(status, force=True)
        return status

    def _conclude(self) -> bool:
        return self._evaluate() and self._record_evaluations(0)

    def _rescue(self, begun: int) -> None:
        if self._advanced(begun):
            self._checkpoint()  # what was collected and learned is whole: only those processes are not

    def _loop(self) -> None:
        # What an interrupted run left undone comes first: updates, then a log or an evaluation.
        while self._learn() and self._when_due() and not self._at_end():
            self._publish()
            self._collect()
            self._record_evaluations()
            self._show()

    def _show(self) -> None:
        self.directory.write_status("running", lambda: self.collector.report().processes + self.evaluator.processes())
        self.console.progress(self.progress)

    def _at_end(self) -> bool:
        progress = self.progress
        by_updates = progress.total_updates is not None and progress.updates >= progress.total_updates
        ended = progress.step >= progress.total_steps and not self.training.unfinished
        return self._stopping() or by_updates or (ended and not self.training.due()) or self._ended()

    def _call(self, event: Callable[..., Any], *details: Any) -> None:
        if self.callbacks is not None:
            where = self.directory.path, self.progress.step, self.progress.updates
            answer = self.callbacks.call(event(*where, self.hooks, *details))
            self.stop_reason = self.stop_reason or answer

    def _advanced(self, begun: int) -> bool:
        """Whether anything was done since the checkpoint that this run was resumed from."""
        return self.progress.step > begun or self._learned

    def _publish(self) -> None:
        with self.trace("publish"):
            publication = self.training.publication()
            if publication is not self._published:
                self._lag.published(publication.version)
                self.collector.publish(publication)
                self._published = publication

    def _collect(self) -> None:
        """Takes in what collectors have stored; waits for it only where there is nothing to learn."""
        allowed = min(self.training.ahead(), self.progress.total_steps - 1)
        self.collector.allow(self.training.own_share(allowed))
        idle = self.training.pace.synchronous or self._updates_allowed() == 0
        chunks = checked(self.collector.poll(self.poll_seconds if idle else 0.0), list, "poll")
        with self.trace("take"):
            for chunk in chunks:
                self._take(chunk)

    def _take(self, chunk: Chunk) -> None:
        if not self.training.take(chunk):
            return
        self.progress.after(chunk)
        if len(chunk):
            version = int(chunk.columns["version"][0])
            self._lag.add(self.progress.updates - version, version)
        if self.unlimited and chunk.finished and chunk.columns["truncated"].any():
            self.unlimited = False
        if self.callbacks is not None:
            self._call(ChunkEvent, chunk)

    def _updates_allowed(self) -> int:
        """Updates that are due, while no collector acts with weights that are too old."""
        return self.training.due(self.collector.oldest_version())

    def _learn(self) -> bool:
        """Makes the updates that are due; False when asked to stop in between (the rest is made on resume).

        Only some at a time where collectors run ahead, so that they get new weights, and their rows are taken in. A
        callback that ends the run leaves the rest for a resume, too, and the run ends as at its total.
        """
        while (due := self._agreed(self._updates_allowed)) > 0:
            if self._stopping():
                return False
            count = self.training.learn(min(due, max(UPDATES_BETWEEN_STOP_CHECKS, self.training.pace.group)))
            self._learned = True
            if self.callbacks is not None:
                self._call(UpdateEvent, count, self.agent)
                if self._ended():
                    break
            if not self.training.pace.synchronous:
                break
        return True

    def _when_due(self) -> bool:
        """Logs, evaluates and saves what is due; False when asked to stop during an evaluation (made on resume)."""
        progress, pace = self.progress, self.training.pace
        if progress.due("log"):
            progress.settle("log")
            self._log()
        if self._ended() and pace.synchronous and self.training.due():
            return True  # a callback left updates undone: what comes after them comes on resume
        # The final evaluation comes after the last update.
        at_last = progress.step >= progress.total_steps and self.training.due()
        if progress.due("eval") and not at_last:
            if not self._evaluate():
                return False
            progress.settle("eval")
        if progress.due("checkpoint") or self._asked_for_checkpoint():
            if progress.due("checkpoint"):
                progress.settle("checkpoint")
            if not self._at_end():
                self._checkpoint()
                self._summary("running")
        return True

    def _log(self) -> None:
        self._log_numbers(self._numbers())

    def _numbers(self) -> dict[str, Any]:
        progress = self.progress
        progress.losses = self.training.learner.drain() or progress.losses
        return metrics(self.training, progress, self._lag, self.collector.report())

    def _log_numbers(self, numbers: dict[str, Any]) -> None:
        own = self.training.take_logged()
        check_own(own, numbers)
        for counter, name in (("replay", "replay"), ("ratio", "updates_per_step"), ("lag", "policy_lag")):
            if numbers[name] is not None:
                self.trace.counter(counter, numbers[name])
        with self.trace("log"):
            self.records.log(self.progress, numbers, own)

    def _asked_for_checkpoint(self) -> bool:
        return self.hooks.checkpoint_requested

    def _log_own(self) -> None:
        """Logs what callbacks have logged since the last line, where there will be no other line."""
        if self.training.logged:
            self._log_numbers(Runner._numbers(self))

    def _evaluate(self) -> bool:
        """Submits an evaluation of the weights of this moment, unless they were evaluated already.

        False when asked to stop in between: the evaluation then has not happened.
        """
        publication, progress = self.training.publication(), self.progress
        if not self.run.evaluation.eval_episodes or self._evaluated == (progress.step, publication.version):
            return True
        if not self._record_evaluations(MOST_PENDING_EVALUATIONS - 1):
            return False
        if self.unlimited:
            self.unlimited = False
            self.records.note(
                f"{self.run.environment.env} declares no time limit, and no episode was truncated in {progress.step:,} "
                "steps: an evaluation lasts until its episodes end by themselves; set max_episode_steps if they may not"
            )
        with self.trace("evaluate"):
            if not self.evaluator.submit(progress.step, publication):
                return False
            self._evaluated = progress.step, publication.version
            if self.evaluator.pending:
                self._evaluated_states.append(self._snapshot(CollectorState({}, {})))
            return self._record_evaluations()

    def _record_evaluations(self, most: int = MOST_PENDING_EVALUATIONS) -> bool:
        """Records the evaluations whose results are known, and waits while more than `most` are pending.

        False when asked to stop in between.
        """
        while True:
            for result in self.evaluator.results():
                self._record(result, self._evaluated_states.popleft() if self._evaluated_states else None)
            if self.evaluator.pending <= most:
                return True
            if self.stop():
                return False
            with self.trace("wait"):
                sleep(POLL_SECONDS)
            self._evaluation_waited += POLL_SECONDS
            self._show()

    def _record(self, result: Evaluation, state: Snapshot | None) -> None:
        """state: what was evaluated, where it is not that of this moment."""
        best = self.progress.best_return is None or result.mean_return > self.progress.best_return
        self.records.evaluation(result, best)
        if best:
            self.progress.best_return = result.mean_return
            self.checkpoints.save_best(state or self._snapshot(self._collector_state()), result.step)
        self._call(EvaluationEvent, result)

    def _collector_state(self) -> CollectorState:
        """Where the collector stands; the rows that it had stored up to there are taken in."""
        state = checked(self.collector.snapshot(), CollectorState, "snapshot")
        for chunk in state.chunks:
            self._take(chunk)
        return state

    def _snapshot(self, state: CollectorState) -> Snapshot:
        """The run at this moment, with the state of its collector."""
        snapshot = self.training.snapshot()
        bookkeeping = self.progress.bookkeeping()
        if self.evaluator.pending:
            bookkeeping["next"]["eval"] = self.progress.step  # a crash loses pending results; resume repeats them
        return Snapshot(
            {**snapshot.arrays, **{f"collector/{name}": array for name, array in state.arrays.items()}},
            {**snapshot.values, "collector": state.values, "progress": self.progress.counters()},
            {**snapshot.notes, "files": self.records.sync(), "progress": bookkeeping},
        )

    def _checkpoint(self) -> None:
        self.hooks.checkpoint_requested = False
        with self.trace("checkpoint"):
            name = self._save(self._collector_state())
        self._saved(name)

    def _save(self, state: CollectorState) -> str:
        return self.checkpoints.save(self._snapshot(state), self.training.shards, self.progress.step, state.ends)

    def _saved(self, name: str) -> None:
        with self.trace("checkpoint"):
            step = self.progress.step
            notes = {"algorithm": self.training.config.algorithm, "env": self.run.environment.env, "step": step}
            export_policy(
                self.directory.path / "policy",
                self.training.publication(),
                self.training.policy_description(),
                self.training.spec,
                {**notes, "versions": versions()},
            )
        path = self.directory.path / "checkpoints" / name
        self.records.checkpoint(step, path)
        self._call(CheckpointEvent, path)

    def _summary(self, status: str) -> None:
        self.records.summary({"status": status, "stop_reason": self.stop_reason, **self._totals(status)})

    def _totals(self, status: str) -> dict[str, Any]:
        found = supervision(self.collector.report(), self.evaluator, self._evaluation_waited)
        return {**summary(self.training, self.progress, self._lag), **found}

    def fail(self, trace: str) -> None:
        """Marks the run as failed; its last checkpoint stays as it is."""
        self.records.failed(trace)
        try:
            self._summary("failed")
        except Exception as error:  # a full disk, a logger of the user's: the error that ended the run matters more
            self.console.note(f"the summary could not be written: {type(error).__name__}: {error}")
            self.directory.mark_failed()

    def close(self) -> None:
        for each in (self.collector, self.evaluator):
            try:
                each.close()
            except Exception as error:  # the run itself is over, and its result stands
                self.records.note(f"closing the environments raised {type(error).__name__}: {error}")
        self.records.close()
        self.trace.close()
        if self.run.output.trace:
            Tracer.end(self.directory.path / "trace.json")
