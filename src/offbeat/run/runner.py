"""The one training loop: collect, learn, publish; log, evaluate and checkpoint when due."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from offbeat.deploy import export_policy
from offbeat.envs import Vector
from offbeat.errors import OffbeatError
from offbeat.observe.console import Console
from offbeat.observe.jsonl import Jsonl
from offbeat.observe.jsonl import read as read_jsonl
from offbeat.observe.loggers import Logger, open_logger
from offbeat.run.agent import Agent, under
from offbeat.run.callbacks import Callbacks, CheckpointEvent, ChunkEvent, EvaluationEvent, UpdateEvent
from offbeat.run.checkpoint import Checkpoints, Snapshot
from offbeat.run.directory import RunDirectory
from offbeat.run.evaluate import Evaluation, evaluate
from offbeat.run.progress import Progress
from offbeat.run.versions import versions
from offbeat.settings import flatten
from offbeat.types import Array, Chunk, Weights

UPDATES_BETWEEN_LOOKS = 16
"""So many updates run before the loop looks for a wish to stop."""


class Collector(Protocol):
    """Where chunks come from."""

    @property
    def rebuilds(self) -> bool: ...
    def load(self, weights: Weights, version: int) -> None: ...
    def poll(self, timeout: float = 0.0) -> Chunk: ...
    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]: ...
    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> list[str]: ...
    def close(self) -> None: ...


class Runner:
    """Drives an agent through a run's directory, evaluating on `vector`.

    `stop` is asked between two steps of anything that takes time. stop_reason: why a callback ended the run, if one
    did.
    """

    def __init__(
        self,
        agent: Agent,
        collector: Collector,
        vector: Vector,
        directory: RunDirectory,
        console: Console,
        stop: Callable[[], bool],
        callbacks: Callbacks | None = None,
    ) -> None:
        self.agent, self.collector, self.vector = agent, collector, vector
        self.directory, self.console, self.stop, self.callbacks = directory, console, stop, callbacks
        self.run = agent.config.run
        every = {"log": self.run.log_every, "eval": self.run.eval_every, "checkpoint": self.run.checkpoint_every}
        self.progress = Progress(self.run.total_steps, self.run.total_updates, every)
        self.checkpoints = Checkpoints(directory.path)
        self.metrics = Jsonl(directory.path / "metrics.jsonl")
        self.evaluations = Jsonl(directory.path / "evaluations.jsonl")
        self.loggers: list[Logger] = []
        self.stop_reason: str | None = None
        self.history: list[Evaluation] = []
        self._purge_step: int | None = None
        self._lag, self._learned = 0, False
        self._published: Any = None

    def resume(self, which: str) -> None:
        """Goes back to a checkpoint: every part of the run takes its state from it, logs lose what came after it."""
        snapshot = self.checkpoints.load(which)
        self.agent.restore(snapshot)
        self.checkpoints.load_replay(which, {"0": self.agent.shard})
        inexact = self.collector.restore(under(snapshot.arrays, "collector/"), snapshot.values["collector"])
        for sentence in inexact:
            self.note(sentence)
        self.progress.restore(snapshot.values["progress"], snapshot.notes["progress"])
        for name, file in (("metrics", self.metrics), ("evaluations", self.evaluations)):
            if not file.truncate(snapshot.notes["files"][name]):
                self.note(f"{file.path} is shorter than at the checkpoint: earlier lines are missing and stay so")
        self.history = [
            Evaluation(line["step"], line["version"], tuple(line["returns"]), tuple(line["lengths"]))
            for line in read_jsonl(self.evaluations.path)
        ]
        if self.checkpoints.forget_best_after(self.progress.step):
            self.progress.best_return = None  # it belonged to the steps that are taken back
        self._purge_step = self.progress.step + 1
        self.directory.log(f"resumed from {which} at step {self.progress.step}")

    def train(self) -> str:
        """Runs until the end or the wish to stop; returns the status: finished or stopped."""
        progress, begun = self.progress, self.progress.step
        for name in dict.fromkeys(self.run.logger):
            settings = flatten(self.agent.config)
            self.loggers.append(open_logger(name, self.directory.path, settings, self._purge_step, self.run.quiet))
        self._summary("running")
        if not self.checkpoints.names():
            self._checkpoint()  # so that a run killed at any moment has something to resume from
        # What an interrupted run left undone comes first: updates, then a log or an evaluation.
        while self._learn() and self._when_due() and not self._at_end():
            self._publish()
            self._collect()
            self.directory.status("running")
            self.console.progress(progress)
        reason = self.stop_reason
        if self.stop():
            status = "stopped"
        else:
            if self.agent.learner.pending():
                self._log()
            status = "finished" if self._evaluate() else "stopped"
        if self._purge_step is None or self._moved(begun) or status == "stopped":
            self._checkpoint()
        self.stop_reason = reason  # what a callback says of the final evaluation and checkpoint ends nothing
        self._summary(status)
        self.directory.status(status, force=True)
        return status

    def _at_end(self) -> bool:
        progress = self.progress
        by_updates = progress.total_updates is not None and progress.updates >= progress.total_updates
        return self.stop() or by_updates or progress.step >= progress.total_steps or self.stop_reason is not None

    def _tell(self, event: Callable[..., Any], *details: Any) -> None:
        if self.callbacks is not None:
            wish = self.callbacks.tell(event(self.directory.path, self.progress.step, self.progress.updates, *details))
            self.stop_reason = self.stop_reason or wish

    def _moved(self, begun: int) -> bool:
        """Whether anything was done since the checkpoint that this run was resumed from."""
        return self.progress.step > begun or self._learned

    def _publish(self) -> None:
        publication = self.agent.publication()
        if publication is not self._published:
            self.collector.load(publication.weights, publication.version)
            self._published = publication

    def _collect(self) -> None:
        try:
            chunk = self.collector.poll()
        except (KeyboardInterrupt, OffbeatError):
            if self.stop() and not self.collector.rebuilds:
                return  # Ctrl-C went to environments in processes of their own, too: their end is our wish
            raise
        self.agent.add(chunk)
        self.progress.after(chunk)
        if len(chunk):
            self._lag = self.progress.updates - int(chunk.columns["version"][0])
        if self.callbacks is not None:
            self._tell(ChunkEvent, chunk)

    def _learn(self) -> bool:
        """Makes the updates that are due; False when asked to stop in between (the rest is made on resume).

        A callback that ends the run leaves the rest for a resume, too, and the run ends as at its total.
        """
        progress = self.progress
        due = self.agent.pace.updates_due(progress.step, progress.updates)
        if progress.total_updates is not None:
            due = min(due, progress.total_updates - progress.updates)
        while due > 0:
            if self.stop():
                return False
            count = min(due, UPDATES_BETWEEN_LOOKS)
            self.agent.learn(count)
            progress.updates += count
            due -= count
            self._learned = True
            if self.callbacks is not None:
                self._tell(UpdateEvent, count, self.agent)
                if self.stop_reason is not None:
                    break
        return True

    def _when_due(self) -> bool:
        """Logs, evaluates and saves what is due; False when asked to stop during an evaluation (made on resume)."""
        progress = self.progress
        if progress.due("log"):
            progress.settle("log")
            self._log()
        if progress.due("eval"):
            if not self._evaluate():
                return False
            progress.settle("eval")
        if progress.due("checkpoint"):
            progress.settle("checkpoint")
            if not self._at_end():
                self._checkpoint()
                self._summary("running")
        return True

    def _log(self) -> None:
        progress, learner = self.progress, self.agent.learner
        progress.losses = learner.drain() or progress.losses
        numbers: dict[str, Any] = {
            "episodes": progress.episodes,
            "return_100": progress.return_100,
            "length_100": progress.length_100,
            "replay": self.agent.shard.size,
            "updates_per_step": self._ratio(),
            "policy_lag": self._lag,
            "steps_per_second": progress.steps_per_second,
            "updates_per_second": progress.updates_per_second,
            **progress.losses,
            **{f"{group}_rate": rate for group, rate in learner.rates().items()},
        }
        where = {"step": progress.step, "update": progress.updates, "wall": progress.wall_seconds}
        self.metrics.write({**where, **numbers})
        shown = {name: value for name, value in numbers.items() if value is not None}
        self.console.log(progress.step, {"update": progress.updates, **shown})
        for logger in self.loggers:
            logger.write(progress.step, shown)

    def _ratio(self) -> float | None:
        """Updates made per step since the warm-up."""
        steps = self.progress.step - self.run.warmup_steps
        return self.progress.updates / steps if steps > 0 else None

    def _evaluate(self) -> bool:
        """Plays the evaluation episodes with the weights of this moment, unless these have been played already.

        False when asked to stop in between: the evaluation then has not happened.
        """
        publication, progress = self.agent.publication(), self.progress
        if self.history and self.history[-1].step == progress.step and self.history[-1].version == publication.version:
            return True
        policy = self.agent.policy(self.vector.num_envs)
        policy.load(publication.weights)
        try:
            results = evaluate(self.vector, policy, self.run.eval_episodes, self.stop)
        except (KeyboardInterrupt, OffbeatError):
            if self.stop() and not self.vector.rebuilds:
                return False  # as in `_collect`
            raise
        if results is None:
            return False
        result = Evaluation(progress.step, publication.version, *results)
        self.history.append(result)
        self.evaluations.write(result.to_json())
        best = progress.best_return is None or result.mean_return > progress.best_return
        if best:
            progress.best_return = result.mean_return
            self.checkpoints.save_best(self._snapshot(), progress.step)
        self.console.evaluation(progress.step, result.mean_return, result.std_return, result.episodes, best)
        self.directory.log(f"step {progress.step}: evaluation {result.mean_return:.6g} (std {result.std_return:.3g})")
        for logger in self.loggers:
            logger.write(
                progress.step, {"evaluation_return": result.mean_return, "evaluation_return_std": result.std_return}
            )
        self._tell(EvaluationEvent, result)
        return True

    def _snapshot(self) -> Snapshot:
        snapshot = self.agent.snapshot()
        arrays, values = self.collector.snapshot()
        files = {"metrics": self.metrics.sync(), "evaluations": self.evaluations.sync()}
        return Snapshot(
            {**snapshot.arrays, **{f"collector/{name}": array for name, array in arrays.items()}},
            {**snapshot.values, "collector": values, "progress": self.progress.counters()},
            {**snapshot.notes, "files": files, "progress": self.progress.bookkeeping()},
        )

    def _checkpoint(self) -> None:
        step = self.progress.step
        name = self.checkpoints.save(self._snapshot(), {"0": self.agent.shard}, step)
        notes = {"algorithm": self.agent.config.algorithm, "env": self.run.env, "step": step, "versions": versions()}
        learner = self.agent.learner
        export_policy(
            self.directory.path / "policy", self.agent.publication(), learner.policy_description(), learner.spec, notes
        )
        path = self.directory.path / "checkpoints" / name
        if step:
            self.console.checkpoint(step, path)
        self.directory.log(f"step {step}: checkpoint {name}")
        self._tell(CheckpointEvent, path)

    def _summary(self, status: str) -> None:
        progress = self.progress
        scored = {
            name: None
            if each is None
            else {
                "mean_return": each.mean_return,
                "std_return": each.std_return,
                "episodes": each.episodes,
                "env_steps": each.step,
            }
            for name, each in (
                ("evaluation", self.history[-1] if self.history else None),
                ("best_evaluation", max(self.history, key=lambda each: each.mean_return, default=None)),
            )
        }
        summary = {
            "status": status,
            "stop_reason": self.stop_reason,
            "env_steps": progress.step,
            "updates": progress.updates,
            "episodes": progress.episodes,
            "wall_seconds": progress.wall_seconds,
            **scored,
            "train_return_100": progress.return_100,
            "updates_per_step": self._ratio(),
            "policy_lag": {"updates": self._lag},
            "waits": {},
            "restarts": 0,
            "lost": {},
        }
        self.directory.summary(summary)
        for logger in self.loggers:
            logger.summarise(summary)

    def fail(self, trace: str) -> None:
        """Marks the run as failed; its last checkpoint stays as it is.

        On a full disk not even this can be written: then the error that ended the run is what matters, not this one.
        """
        with contextlib.suppress(OSError):
            self._summary("failed")
            self.directory.status("failed", force=True)
            self.directory.log("failed\n" + trace)

    def note(self, text: str) -> None:
        self.console.note(text)
        self.directory.log(text)

    def close(self) -> None:
        for what, parts in (("the environments", (self.collector, self.vector)), ("a logger", self.loggers)):
            for each in parts:
                try:
                    each.close()
                except Exception as error:  # the run itself is over, and its result stands
                    self.note(f"closing {what} raised {type(error).__name__}: {error}")
        self.metrics.close()
        self.evaluations.close()
