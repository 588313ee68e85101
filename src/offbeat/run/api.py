"""From Python: train and resume. The commands call these."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offbeat import presets
from offbeat import settings as settings_module
from offbeat.algorithms.configs import Config, Run
from offbeat.algorithms.registry import Algorithm, find_recorded, key_of
from offbeat.deploy import LoadedPolicy
from offbeat.descriptors import occupy_standard
from offbeat.errors import RunInterrupted, UsageError
from offbeat.learn.backends import learner_threads
from offbeat.observe.console import Console
from offbeat.ranks import Ranks, place
from offbeat.references import name_of
from offbeat.run import ranked, tuning
from offbeat.run.build import Parts, prepare
from offbeat.run.changes import changed, check_env_kept
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.compatibility import check_compatible
from offbeat.run.directory import RunDirectory
from offbeat.run.environments import Environments, display_name
from offbeat.run.evaluation import Evaluation
from offbeat.run.file_errors import explain_os_errors
from offbeat.run.init_from import initialise_from
from offbeat.run.load_policy import load_policy
from offbeat.run.rank_checkpoint import saved_seed
from offbeat.run.ranked_runner import FollowerDirectory
from offbeat.run.runner import Runner
from offbeat.run.stop import Stop
from offbeat.run.versions import versions


@dataclass(frozen=True)
class RunResult:
    """A run that has ended. evaluation: the final one (None when stopped before any). history: all, in order.

    stop_reason: why a callback or `stop_return` ended it, where one did.
    """

    path: Path
    status: str
    evaluation: Evaluation | None
    history: list[Evaluation] = field(default_factory=list)
    stop_reason: str | None = None

    def policy(self, checkpoint: str = "latest", **options: Any) -> LoadedPolicy:
        """The final policy, the best one (`policy("best")`), or that of a checkpoint; options: as for `load_policy`."""
        return load_policy(self.path, checkpoint, **options)


def train(
    algorithm: str | Algorithm,
    env: Any,
    *,
    eval_env: Any = None,
    callbacks: Iterable[object] | None = None,
    **settings: Any,
) -> RunResult:
    """Trains `algorithm` on `env`: a Gymnasium id, module:factory, a factory, or a vector environment.

    settings: any of docs/settings.md, by name, over the preset of the environment (docs/presets.md). eval_env: where to
    evaluate, by default another environment like `env`. callbacks: objects with methods of `offbeat.Callback`.
    Ctrl-C and SIGTERM save the run and then raise `offbeat.RunInterrupted`, a KeyboardInterrupt that has the result.
    """
    name = env if isinstance(env, str) else (name_of(env) if callable(env) else None) or f"<{display_name(env)}>"
    key = key_of(algorithm)
    given = settings_module.read(settings_module.train_settings(key), {**settings, "env": name})
    config = presets.assemble(key, given)
    return train_config(config, env=env, eval_env=eval_env, callbacks=callbacks)


def train_config(
    config: Config, *, env: Any = None, eval_env: Any = None, callbacks: Iterable[object] | None = None
) -> RunResult:
    """Trains what a config says; `env` stands in where the config can only name a Python object."""
    occupy_standard()
    config, ranks = ranked.join(config)
    config = tuning.settled(config)
    own = ranked.own_config(config, ranks)
    threads = learner_threads(config.run.compute.threads, config.run.compute.backend)
    with explain_os_errors(), threads, ranked.leaving_on_error(ranks):
        parts = prepare(Environments(own, env, eval_env), callbacks, ranks, config)
        with Stop() as stop:  # from here on there is something to lose
            try:
                told = [presets.sentence(config), presets.short_run(config)]
                if config.run.start.init_from is not None:
                    source, taken = initialise_from(parts.training, config.run.start.init_from)
                    config = settings_module.with_changes(config, init_from=source)  # the checkpoint of this moment
                    told.append(taken)
                directory = _new_directory(config, ranks)
            except BaseException:
                parts.close()
                raise
            try:
                with explain_os_errors(directory.path):
                    return _train(parts, directory, None, stop, [each for each in told if each is not None])
            except BaseException:
                if ranks.rank == 0 and not Checkpoints(directory.path).names():
                    shutil.rmtree(directory.path, ignore_errors=True)  # nothing that could be resumed or looked at
                raise
            finally:
                directory.unlock()


def _new_directory(config: Config, ranks: Ranks) -> RunDirectory:
    """The directory of a new run, locked; the first rank makes it, and the others are told where it is."""
    if ranks.rank == 0:
        directory = RunDirectory.create(config, versions())
        directory.lock()
        ranks.gather_bytes(str(directory.path.resolve()).encode())
        return directory
    return FollowerDirectory(Path(ranks.gather_bytes(b"")[0].decode()), ranks.rank)


def resume(
    path: str | Path,
    *,
    checkpoint: str = "latest",
    env: Any = None,
    eval_env: Any = None,
    callbacks: Iterable[object] | None = None,
    algorithm: Algorithm | None = None,
    **changes: Any,
) -> RunResult:
    """Goes on with a run from a checkpoint. changes: settings that are to be others from now on, by name.

    total_steps and total_updates are totals, not additions. A setting that cannot change is refused with the reason.
    `quiet` is not remembered. callbacks: as for `train`; those that the run began with are not kept. Ctrl-C is as for
    `train`. env, eval_env, and callables among the changes (actor, reward_shaping, ...) replace what a file could not
    hold. algorithm: the record, if the run was trained with an `Algorithm` object of your own.
    """
    if algorithm is not None:
        key_of(algorithm)  # from now on it is known by its name
    occupy_standard()
    directory = RunDirectory.open(path)
    with explain_os_errors(directory.path):
        return _resume(directory, checkpoint, env, eval_env, callbacks, changes)


def _resume(
    directory: RunDirectory,
    checkpoint: str,
    env: Any,
    eval_env: Any,
    callbacks: Iterable[object] | None,
    changes: Mapping[str, Any],
) -> RunResult:
    if (rank := place().rank) > 0:
        directory = FollowerDirectory(directory.path, rank)
    directory.lock()
    try:
        snapshot = Checkpoints(directory.path).load(checkpoint)
        notes, done = snapshot.notes, snapshot.values["progress"]
        find_recorded(notes["algorithm"])
        config, told = changed(notes["algorithm"], notes["config"], changes)
        if env is not None:
            check_env_kept(env, config.run.environment.env)
            config = settings_module.with_changes(
                config, env=env if isinstance(env, str) else config.run.environment.env
            )
        _check_totals(config.run, done, changes, directory.path)
        config, ranks = ranked.join(config, changes)
        config = tuning.settled(config)
        own = ranked.own_config(config, ranks, saved_seed(snapshot, config, ranks))
        threads = learner_threads(config.run.compute.threads, config.run.compute.backend)
        with threads, ranked.leaving_on_error(ranks):
            parts = prepare(Environments(own, env, eval_env), callbacks, ranks, config)
            check_compatible(notes, config.algorithm, parts.training.spec)
            with Stop() as stop:
                return _train(parts, directory, checkpoint, stop, [*told, *_finished_already(config.run, done)])
    finally:
        directory.unlock()


def _check_totals(run: Run, done: Mapping[str, int], changes: Mapping[str, Any], path: str | Path) -> None:
    for key, total, count in (
        ("steps", run.length.total_steps, done["step"]),
        ("updates", run.length.total_updates, done["updates"]),
    ):
        if f"total_{key}" in changes and total is not None and total < count:
            raise UsageError(
                f"total_{key}={total} is a total, and {path} has made {count} {key} already; give a larger one"
            )
    if (
        run.length.total_updates is not None
        and "total_steps" in changes
        and done["updates"] >= run.length.total_updates
    ):
        raise UsageError(
            f"{path} ended at total_updates={run.length.total_updates}, which still holds: give a larger one too"
        )


def _finished_already(run: Run, done: Mapping[str, int]) -> list[str]:
    """What a run that has reached its end says when it is resumed."""
    by_updates = run.length.total_updates is not None and done["updates"] >= run.length.total_updates
    if not by_updates and done["step"] < run.length.total_steps:
        return []
    key, count = ("updates", done["updates"]) if by_updates else ("steps", done["step"])
    return [
        f"this run is finished: it has made its {count:,} {key}, and nothing is left to train; to go on, give a larger "
        f"total, such as --total-{key} {2 * count}"
    ]


def _train(parts: Parts, directory: RunDirectory, checkpoint: str | None, stop: Stop, told: Sequence[str]) -> RunResult:
    """Trains in a directory that this process has locked, from its checkpoint if one is named. told: first lines."""
    config, run = parts.training.recorded, parts.training.config.run
    with (
        Console(
            directory.path, parts.training.pace.end(run.length.total_steps), run.length.total_updates, run.output.quiet
        ) as console,
        closing(parts.runner(directory, console, stop)) as runner,
    ):
        console.start([*_introduction(config, parts, directory), *told])
        if checkpoint is not None:
            runner.resume(checkpoint)  # what does not fit is refused here, and leaves the run as it was
            directory.write_config(config, versions())
        for remark in parts.remarks:
            runner.records.note(remark)
        try:
            for each in told if parts.training.ranks.rank == 0 else ():
                directory.log(each)
            status = runner.train()
        except BaseException:
            runner.fail(traceback.format_exc())
            raise
        last = runner.records.history[-1] if runner.records.history else None
        result = RunResult(directory.path, status, last, runner.records.history, runner.stop_reason)
        console.finish(_conclusion(result, runner))
    if status == "stopped":
        raise RunInterrupted(f"the run was stopped and saved; go on with: offbeat resume {directory.path}", result)
    return result


def _introduction(config: Config, parts: Parts, directory: RunDirectory) -> list[str]:
    run, count = config.run, parts.collector.num_envs
    count *= run.compute.learners
    steps, whole = f"{run.length.total_steps:,} steps", parts.training.pace.end(run.length.total_steps)
    if whole != run.length.total_steps:
        steps += f" ({whole:,}, to finish the last rollout)"
    acting = parts.training.acts_in(-(-parts.collector.num_envs // max(1, run.collection.collectors)))
    return [
        f"{config.algorithm} on {run.environment.env}: {count} environment{'s' * (count > 1)}, {steps}, "
        f"seed {run.start.seed}, {parts.training.learner.backend.device}",
        tuning.sentence(config, acting),
        f"files: {directory.path}",
    ]


def _conclusion(result: RunResult, runner: Runner) -> list[str]:
    progress, lines = runner.progress, []
    lines.append(
        f"{result.status} at step {progress.step:,} after {progress.updates:,} updates, {progress.wall_seconds:.0f} s"
    )
    if result.stop_reason is not None:
        lines.append(f"ended early: {result.stop_reason}")
    if result.evaluation is not None:
        last = result.evaluation
        lines.append(
            f"evaluation at step {last.step:,}: {last.mean_return:.1f} (std {last.std_return:.1f})"
            + ("" if last.success_rate is None else f", success {last.success_rate:.2f}")
            + f" over {last.episodes} episodes"
        )
    report = runner.collector.report()
    if report.waits:
        lines.append(
            "waits: "
            + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.waits.items())
            + (f"; collectors replaced: {report.restarts}" if report.restarts else "")
        )
    if result.status == "stopped":
        lines.append(f"go on with: offbeat resume {result.path}")
    return lines
