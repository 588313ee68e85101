"""From a config and its environments to the parts of a run, before anything is written."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from offbeat import presets
from offbeat.algorithms.configs import Config, Run
from offbeat.collect.collector import Collector, CollectorReport, checked
from offbeat.collect.context import CollectorContext
from offbeat.collect.factories import in_process, processes, ray
from offbeat.collect.ray_cluster import RaySettings
from offbeat.envs import Vector
from offbeat.envs.environment_notes import environment_notes
from offbeat.errors import UsageError
from offbeat.observe.console import Console
from offbeat.observe.loggers import check_loggers
from offbeat.processor import slow_precision
from offbeat.ranks import ALONE, Ranks
from offbeat.references import make_own, resolve
from offbeat.run.callbacks import Callbacks, combine
from offbeat.run.compatibility import check_env_fits
from offbeat.run.directory import RunDirectory
from offbeat.run.environments import Environments
from offbeat.run.evaluation import MAX_EVALUATION_ENVS
from offbeat.run.evaluators import Evaluator, InlineEvaluator, NoEvaluator, ProcessEvaluator
from offbeat.run.experience import collects_elsewhere
from offbeat.run.ranked_runner import RankedRunner
from offbeat.run.runner import Runner
from offbeat.run.training import Training
from offbeat.run.tuning import ahead
from offbeat.trace import NO_TRACE, Tracer
from offbeat.types import EnvSpec

OTHER_EVAL_ENV = "pass an eval_env with the same spaces"


@dataclass(frozen=True)
class Parts:
    """What a runner drives.

    time_limit: of an evaluation episode, where one is known. remarks: on the training environments and the processor.
    """

    training: Training
    collector: Collector
    evaluator: Evaluator
    callbacks: Callbacks | None
    time_limit: int | None
    remarks: tuple[str, ...] = ()

    def close(self) -> None:
        """For a run that does not begin."""
        self.collector.close()
        self.evaluator.close()

    def runner(self, directory: RunDirectory, console: Console, stop: Callable[[], bool]) -> Runner:
        """The runner in a directory, which the parts get to know only now."""
        run, trace = self.training.config.run, NO_TRACE
        if run.output.trace:
            path = directory.path / "trace.json"
            Tracer.begin(path)
            trace = self.training.trace = Tracer(path, "learner", cpu=run.output.trace_cpu)
            self.training.learner.backend.trace_parts(trace)
        kind = Runner if self.training.ranks.size == 1 else RankedRunner
        runner = kind(self.training, self.collector, self.evaluator, directory, console, stop, self.callbacks, trace)
        runner.unlimited = self.time_limit is None
        return runner


def prepare(
    environments: Environments,
    callbacks: Iterable[object] | None,
    ranks: Ranks = ALONE,
    recorded: Config | None = None,
) -> Parts:
    """Everything that a run needs; what does not fit is refused here.

    ranks, recorded: as for `Training`. Only the first rank evaluates and calls callbacks.
    """
    run = environments.config.run
    check_loggers(run.output.logger)
    gathered = combine(callbacks, run.evaluation.stop_return)
    make = _with_collector if collects_elsewhere(run) else _in_one_process
    parts = make(environments, gathered, partial(_training, ranks=ranks, recorded=recorded))
    if ranks.rank:
        parts.evaluator.close()
        return replace(parts, evaluator=NoEvaluator(), callbacks=None, remarks=())
    slow = slow_precision(run.compute.precision, parts.training.learner.backend.device)
    return parts if slow is None else replace(parts, remarks=(*parts.remarks, slow))


def _in_one_process(environments: Environments, callbacks: Callbacks | None, make: Callable[..., Training]) -> Parts:
    config, run = environments.config, environments.config.run
    vector = environments.training()
    training = make(config, vector.spec, vector.num_envs)
    evaluator: Evaluator = NoEvaluator()
    if run.evaluation.eval_episodes:
        evaluator = _inline_evaluator(environments, training, vector)
    collector = in_process(_context(training, lambda first, count: lambda: vector, vector.num_envs))
    limit, noticed = vector.spec.max_episode_steps, tuple(environment_notes(vector))
    if isinstance(evaluator, InlineEvaluator):
        limit = evaluator.vector.spec.max_episode_steps
    return Parts(training, collector, evaluator, callbacks, limit, noticed)


def _inline_evaluator(environments: Environments, training: Training, vector: Vector) -> InlineEvaluator:
    run = training.config.run
    evaluation = environments.evaluation(run.evaluation.eval_episodes, run.start.seed)
    check_env_fits(vector.spec, evaluation.spec, OTHER_EVAL_ENV)
    if any(own is other for own in vector.unwrapped_envs for other in evaluation.unwrapped_envs):
        raise UsageError(
            f"training and evaluation got the same {vector.spec.name} object, and evaluation would reset it in the "
            "middle of training's episodes: make the environment inside the factory, or pass another one as eval_env"
        )
    return InlineEvaluator(evaluation, lambda: training.policy(evaluation.num_envs), run.evaluation.eval_episodes)


def _with_collector(environments: Environments, callbacks: Callbacks | None, make: Callable[..., Training]) -> Parts:
    """Collectors in processes, or one of the user's own; evaluation in a process of its own."""
    config, run = environments.config, environments.config.run
    spec, evaluation, noticed = environments.probe_specs()
    check_env_fits(spec, evaluation, OTHER_EVAL_ENV)
    training = make(config, spec, run.environment.num_envs)
    wants_infos = callbacks is not None and callbacks.handles("on_chunk")
    context = _context(training, environments.collector_maker, run.environment.num_envs, wants_infos)
    collector = _collector(context, run)
    checked(collector.report(), CollectorReport, "report")
    evaluator: Evaluator = NoEvaluator()
    if episodes := run.evaluation.eval_episodes:
        evaluator = ProcessEvaluator(
            environments.evaluation_maker(episodes, run.start.seed),
            training.policy_factory(min(episodes, MAX_EVALUATION_ENVS)),
            episodes,
            max_crashes=run.collection.max_crashes,
            hang_seconds=run.collection.hang_seconds,
        )
    return Parts(training, collector, evaluator, callbacks, evaluation.max_episode_steps, tuple(noticed))


def _collector(context: CollectorContext, run: Run) -> Collector:
    own, place = run.collection.collector, run.ray
    if own == "processes":
        return processes(context)
    if own == "ray":
        return ray(
            context,
            RaySettings(
                place.ray_address, place.ray_cpus, place.ray_resources, place.ray_placement, place.ray_working_dir
            ),
        )
    made: Collector = make_own(own, "collector", Collector, context)
    return made


def _context(
    training: Training,
    make_vector: Callable[[int, int], Callable[[], Vector]],
    num_envs: int,
    wants_infos: bool = False,
) -> CollectorContext:
    run = training.config.run
    slack, collect_ahead = ahead(run)

    def make_policy(first_env: int, count: int) -> Callable[[], Any]:
        return training.policy_factory(count, first_env=first_env, total_envs=num_envs)

    return CollectorContext(
        num_envs=num_envs,
        make_vector=make_vector,
        make_policy=make_policy,
        experience=training.experience,
        rng=training.streams.acting,
        generator=lambda worker, boot: _generator(training, worker, boot),
        random_steps=training.random_steps,
        recurrent=training.recurrent,
        reward_shaping=_shaping(training.config),
        total_steps=run.length.total_steps,
        wants_infos=wants_infos,
        collectors=run.collection.collectors,
        slack=slack,
        collect_ahead=collect_ahead,
        synchronous=training.pace.synchronous,
        hang_seconds=run.collection.hang_seconds,
        max_crashes=run.collection.max_crashes,
        other_rows=lambda: training.steps - training.own_steps,
    )


def _shaping(config: Config) -> Any:
    shaping = config.run.environment.reward_shaping
    return None if shaping is None else resolve(shaping, "reward_shaping")


def _generator(training: Training, worker: int, boot: int) -> dict[str, Any]:
    """The state of a worker's own stream, a new one for each process.

    The first worker's first one continues the stream of a run in one process.
    """
    shard = training.shards.get(str(worker))
    stored = 0 if shard is None else shard.committed
    if worker == boot == stored == training.steps == 0:
        return dict(training.streams.acting.bit_generator.state)
    entropy = [training.config.run.start.seed, zlib.crc32(b"acting"), worker, boot, stored, training.steps]
    return dict(np.random.PCG64(np.random.SeedSequence(entropy)).state)


def _training(config: Config, spec: EnvSpec, num_envs: int, **of_ranks: Any) -> Training:
    training, run = Training(config, spec, num_envs=num_envs, **of_ranks), config.run
    training.experience.plan(0, num_envs, num_envs)  # raises where memory cannot hold it
    if not training.pace.planned(run.length.total_steps):
        why, settled = training.pace.why_none(), presets.kept(config)
        named = any(f"{name}=" in why for name in settled)
        raise UsageError(f"total_steps={run.length.total_steps} {why}" + f"; {presets.sentence(config)}" * named)
    return training
