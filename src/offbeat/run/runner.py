"""The one training loop: collect, learn, publish; log, evaluate and checkpoint when due."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic_ns, sleep
from typing import Any

from offbeat.collect.inline import Inline
from offbeat.collect.processes import Processes
from offbeat.deploy import export_policy
from offbeat.errors import OffbeatError, ProcessFault
from offbeat.observe.console import Console
from offbeat.run.agent import Agent
from offbeat.run.callbacks import Callbacks, CheckpointEvent, ChunkEvent, EvaluationEvent, Hooks, UpdateEvent
from offbeat.run.checkpoint import Checkpoints, Snapshot
from offbeat.run.directory import RunDirectory
from offbeat.run.evaluate import Evaluation
from offbeat.run.evaluators import Evaluator
from offbeat.run.lag import Lag
from offbeat.run.numbers import check_own, metrics, summary, supervision
from offbeat.run.progress import Progress
from offbeat.run.records import Records
from offbeat.run.snapshot import under
from offbeat.run.versions import versions
from offbeat.settings import flatten
from offbeat.trace import NO_TRACE, Trace, Tracer
from offbeat.types import Array, Chunk

UPDATES_BETWEEN_LOOKS = 16
"""So many updates run before the loop looks for a wish to stop."""
MOST_PENDING = 2
"""Evaluations that training may be ahead of: each holds the learner's state until it is known."""
SECONDS_TO_WAIT = 0.05
"""So long the loop waits for rows, or for an evaluation, before it looks around."""


class Runner:
    """Drives an agent through a run's directory.

    A collector in this process takes a step when every update that is due has been made. Collectors in processes of
    their own go on meanwhile, as far as they are allowed to; their rows are in replay when we hear of them. `stop` is
    asked between two steps of anything that takes time. stop_reason: why a callback ended the run, if one did.
    unlimited: no time limit of the environment is known, and no episode was truncated yet.
    """

    def __init__(
        self,
        agent: Agent,
        collector: Inline | Processes,
        evaluator: Evaluator,
        directory: RunDirectory,
        console: Console,
        stop: Callable[[], bool],
        callbacks: Callbacks | None = None,
        trace: Trace = NO_TRACE,
    ) -> None:
        self.agent, self.collector, self.evaluator, self.trace = agent, collector, evaluator, trace
        self.processes = collector if isinstance(collector, Processes) else None
        self.directory, self.console, self.stop, self.callbacks = directory, console, stop, callbacks
        self.run = agent.config.run
        every = {"log": self.run.log_every, "eval": self.run.eval_every, "checkpoint": self.run.checkpoint_every}
        self.progress = Progress(self.run.total_steps, self.run.total_updates, every)
        self.checkpoints = Checkpoints(directory.path, keep=self.run.keep_checkpoints)
        self.records = Records(directory, console)
        self.hooks = Hooks(agent)
        self.stop_reason: str | None = None
        self.unlimited = False
        self._purge_step: int | None = None
        self._lag, self._learned, self._evaluation_waited = Lag(), False, 0.0
        self._published: Any = None
        self._evaluated: tuple[int, int] | None = None  # step and version of the last evaluation that was asked for
        self._held: deque[Snapshot] = deque()  # of evaluations that are not known yet

    def resume(self, which: str) -> None:
        """Goes back to a checkpoint: every part of the run takes its state from it, logs lose what came after it."""
        snapshot = self.checkpoints.load(which)
        self.agent.restore(snapshot)
        self.checkpoints.load_replay(which, self.agent.shards)
        inexact = self.collector.restore(under(snapshot.arrays, "collector/"), snapshot.values["collector"])
        for sentence in inexact:
            self.records.note(sentence)
        self.progress.restore(snapshot.values["progress"], snapshot.notes["progress"])
        self.directory.log(f"resumed from {which} at step {self.progress.step}")  # before anything is changed
        for event in ("log", "eval", "checkpoint"):
            if snapshot.notes["config"][f"{event}_every"] != getattr(self.run, f"{event}_every"):
                self.progress.settle(event)  # the next one is by the new interval
        self.records.go_back(snapshot.notes["files"])
        if self.records.history:
            last = self.records.history[-1]
            self._evaluated = last.step, last.version
        if self.checkpoints.forget_best_after(self.progress.step):
            self.progress.best_return = None  # it belonged to the steps that are taken back
        self._purge_step = self.progress.step + 1
        self.unlimited = False  # what there is to say of it was said when the run began

    def train(self) -> str:
        """Runs until the end or the wish to stop; returns the status: finished or stopped."""
        begun = self.progress.step
        self.records.open_loggers(self.run.logger, flatten(self.agent.config), self._purge_step, self.run.quiet)
        self._summary("running")
        if not self.checkpoints.names():
            self._checkpoint()  # so that a run killed at any moment has something to resume from
        try:
            self._loop()
            if self.processes is not None:
                self.processes.allow(-1)
            reason = self.stop_reason
            if self.stop():
                status = "stopped"
            else:
                if self.agent.learner.pending():
                    self._log()
                status = "finished" if self._evaluate() and self._hear_evaluations(0) else "stopped"
        except ProcessFault:
            if self._moved(begun):
                self._checkpoint()  # what was collected and learned is whole: only those processes are not
            raise
        self._log_own()
        if self._purge_step is None or self._moved(begun) or status == "stopped":
            self._checkpoint()
        self._log_own()
        self.stop_reason = reason  # what a callback says of the final evaluation and checkpoint ends nothing
        self._summary(status)
        self.directory.status(status, force=True)
        return status

    def _loop(self) -> None:
        # What an interrupted run left undone comes first: updates, then a log or an evaluation.
        while self._learn() and self._when_due() and not self._at_end():
            self._publish()
            self._collect()
            self._hear_evaluations()
            self._show()

    def _show(self) -> None:
        self.directory.status("running", self._others)
        self.console.progress(self.progress)

    def _others(self) -> list[dict[str, Any]]:
        """The run's other processes, for status.json."""
        return ([] if self.processes is None else self.processes.processes()) + self.evaluator.processes()

    def _at_end(self) -> bool:
        progress = self.progress
        by_updates = progress.total_updates is not None and progress.updates >= progress.total_updates
        by_steps = progress.step >= progress.total_steps and not self.agent.source.unfinished and not self._due()
        return self.stop() or by_updates or by_steps or self.stop_reason is not None

    def _tell(self, event: Callable[..., Any], *details: Any) -> None:
        if self.callbacks is not None:
            where = self.directory.path, self.progress.step, self.progress.updates
            wish = self.callbacks.tell(event(*where, self.hooks, *details))
            self.stop_reason = self.stop_reason or wish

    def _moved(self, begun: int) -> bool:
        """Whether anything was done since the checkpoint that this run was resumed from."""
        return self.progress.step > begun or self._learned

    def _publish(self) -> None:
        with self.trace("publish"):
            publication = self.agent.publication()
            if publication is not self._published:
                self.collector.load(publication.weights, publication.version)
                self._published = publication

    def _collect(self) -> None:
        """Takes in what there is; in this process that is one step of every environment."""
        if self.processes is not None:
            most = self.agent.source.ahead(self.progress.updates)
            self.processes.allow(min(most, self.progress.total_steps - 1))
            idle = self._updates_allowed() == 0
            with self.trace("wait" if idle else "take"):
                chunks = self.processes.take(SECONDS_TO_WAIT if idle else 0.0)
            with self.trace("take"):
                for chunk in chunks:
                    self.agent.take(chunk)
                    self._took(chunk)
            return
        assert isinstance(self.collector, Inline)
        try:
            chunk = self.collector.poll()
        except (KeyboardInterrupt, OffbeatError):
            if self.stop() and not self.collector.rebuilds:
                return  # Ctrl-C went to environments in processes of their own, too: their end is our wish
            raise
        with self.trace("write"):
            self.agent.add(chunk)
            self._took(chunk)

    def _took(self, chunk: Chunk) -> None:
        self.progress.after(chunk)
        if len(chunk):
            version = int(chunk.columns["version"][0])
            since = None if self.processes is None else self.processes.published_at(version)
            self._lag.add(self.progress.updates - version, None if since is None else (monotonic_ns() - since) / 1e9)
        if self.unlimited and chunk.finished and chunk.columns["truncated"].any():
            self.unlimited = False
        if self.callbacks is not None:
            self._tell(ChunkEvent, chunk)

    def _due(self) -> int:
        """Updates that belong to the steps taken and are not made yet."""
        progress = self.progress
        due = self.agent.source.due(progress.step, progress.updates)
        return due if progress.total_updates is None else min(due, progress.total_updates - progress.updates)

    def _updates_allowed(self) -> int:
        """Updates that may be made now: those that are due, while no collector acts with weights that are too old."""
        due, most = self._due(), self.run.max_policy_lag
        if self.processes is None or most is None:
            return due
        return self.processes.updates_allowed(due, most, self.progress.updates)

    def _learn(self) -> bool:
        """Makes the updates that are due; False when asked to stop in between (the rest is made on resume).

        With collectors beside us only some at a time, so that they hear of new weights, and we of them. A callback that
        ends the run leaves the rest for a resume, too, and the run ends as at its total.
        """
        progress = self.progress
        while (due := self._updates_allowed()) > 0:
            if self.stop():
                return False
            count = self.agent.learn(min(due, max(UPDATES_BETWEEN_LOOKS, self.agent.source.at_once)))
            progress.updates += count
            self._learned = True
            if self.callbacks is not None:
                self._tell(UpdateEvent, count, self.agent)
                if self.stop_reason is not None:
                    break
            if self.processes is not None:
                break
        return True

    def _when_due(self) -> bool:
        """Logs, evaluates and saves what is due; False when asked to stop during an evaluation (made on resume)."""
        progress = self.progress
        if progress.due("log"):
            progress.settle("log")
            self._log()
        if self.stop_reason is not None and self.processes is None and self._due():
            return True  # a callback left updates undone: what comes after them comes on resume
        at_last = progress.step >= progress.total_steps and self._due()  # the final evaluation is after the last update
        if progress.due("eval") and not at_last:
            if not self._evaluate():
                return False
            progress.settle("eval")
        if progress.due("checkpoint") or self.hooks.wants_checkpoint:
            if progress.due("checkpoint"):
                progress.settle("checkpoint")
            if not self._at_end():
                self._checkpoint()
                self._summary("running")
        return True

    def _log(self) -> None:
        progress = self.progress
        progress.losses = self.agent.learner.drain() or progress.losses
        own, numbers = self.agent.take_logged(), metrics(self.agent, progress, self._lag, self.processes)
        check_own(own, numbers)
        for counter, name in (("replay", "replay"), ("ratio", "updates_per_step"), ("lag", "policy_lag")):
            if numbers[name] is not None:
                self.trace.counter(counter, numbers[name])
        with self.trace("log"):
            self.records.log(progress, numbers, own)

    def _log_own(self) -> None:
        """Logs what callbacks have logged since the last line, where there will be no other line."""
        if self.agent.logged:
            self._log()

    def _evaluate(self) -> bool:
        """Has the evaluation episodes played with the weights of this moment, unless these have been already.

        False when asked to stop in between: the evaluation then has not happened.
        """
        publication, progress = self.agent.publication(), self.progress
        if self._evaluated == (progress.step, publication.version):
            return True
        if not self._hear_evaluations(MOST_PENDING - 1):
            return False
        if self.unlimited:
            self.unlimited = False
            self.records.note(
                f"{self.run.env} declares no time limit, and no episode was truncated in {progress.step:,} steps: an "
                "evaluation lasts until its episodes end by themselves; set max_episode_steps if they may not"
            )
        with self.trace("evaluate"):
            if not self.evaluator.submit(progress.step, publication):
                return False
            self._evaluated = progress.step, publication.version
            if self.evaluator.pending:
                self._held.append(self._snapshot({}, {}))
            return self._hear_evaluations()

    def _hear_evaluations(self, most: int = MOST_PENDING) -> bool:
        """Records the evaluations that have become known, and waits while there are more than `most` to come.

        False when asked to stop in between.
        """
        while True:
            for result in self.evaluator.results():
                self._record(result, self._held.popleft() if self._held else None)
            if self.evaluator.pending <= most:
                return True
            if self.stop():
                return False
            with self.trace("wait"):
                sleep(SECONDS_TO_WAIT)
            self._evaluation_waited += SECONDS_TO_WAIT
            self._show()

    def _record(self, result: Evaluation, held: Snapshot | None) -> None:
        """held: the state that was evaluated, where it is not that of this moment."""
        best = self.progress.best_return is None or result.mean_return > self.progress.best_return
        self.records.evaluation(result, best)
        if best:
            self.progress.best_return = result.mean_return
            self.checkpoints.save_best(held or self._snapshot(*self._collector_state()), result.step)
        self._tell(EvaluationEvent, result)

    def _collector_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Where the collectors stand; what they had written up to there is taken in."""
        if self.processes is None:
            assert isinstance(self.collector, Inline)
            return self.collector.snapshot()
        arrays, values, chunks = self.processes.snapshot()
        for chunk in chunks:
            self.agent.take(chunk)
            self._took(chunk)
        return arrays, values

    def _snapshot(self, arrays: dict[str, Array], values: dict[str, Any]) -> Snapshot:
        """The run at this moment, with the collectors' state as it was given."""
        snapshot = self.agent.snapshot()
        bookkeeping = self.progress.bookkeeping()
        if self.evaluator.pending:
            bookkeeping["next"]["eval"] = self.progress.step  # what is not known yet is lost in a crash, and made anew
        return Snapshot(
            {**snapshot.arrays, **{f"collector/{name}": array for name, array in arrays.items()}},
            {**snapshot.values, "collector": values, "progress": self.progress.counters()},
            {**snapshot.notes, "files": self.records.sync(), "progress": bookkeeping},
        )

    def _checkpoint(self) -> None:
        self.hooks.wants_checkpoint = False
        with self.trace("checkpoint"):
            snapshot = self._snapshot(*self._collector_state())
            step = self.progress.step
            ends = None if self.processes is None else self.processes.ends
            name = self.checkpoints.save(snapshot, self.agent.shards, step, ends)
            notes = {"algorithm": self.agent.config.algorithm, "env": self.run.env, "step": step}
            learner = self.agent.learner
            export_policy(
                self.directory.path / "policy",
                self.agent.publication(),
                learner.policy_description(),
                learner.spec,
                {**notes, "versions": versions()},
            )
        path = self.directory.path / "checkpoints" / name
        self.records.checkpoint(step, path)
        self._tell(CheckpointEvent, path)

    def _summary(self, status: str) -> None:
        begun = {"status": status, "stop_reason": self.stop_reason}
        waits = supervision(self.processes, self.evaluator, self._evaluation_waited)
        self.records.summary({**begun, **summary(self.agent, self.progress, self._lag), **waits})

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
        if self.run.trace:
            Tracer.end(self.directory.path / "trace.json")
