"""From a config and its environments to the parts of a run, before anything is written."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from offbeat import presets
from offbeat.algorithms.configs import APPO, PPO, Config
from offbeat.collect.inline import Inline, Shaping
from offbeat.collect.process import Job
from offbeat.collect.processes import Place, Processes
from offbeat.collect.rollouts import QueuePlace, RolloutProcesses, make_queue_places
from offbeat.collect.shards import ShardPlace, ShardProcesses, make_places
from offbeat.envs.remarks import remarks
from offbeat.errors import UsageError
from offbeat.memory import Memory
from offbeat.observe.console import Console
from offbeat.observe.loggers import check_loggers
from offbeat.references import resolve
from offbeat.replay.shard import Shard
from offbeat.run import evaluator_process
from offbeat.run.agent import Agent
from offbeat.run.callbacks import Callbacks, gather
from offbeat.run.directory import RunDirectory
from offbeat.run.environments import Environments
from offbeat.run.evaluate import MOST_ENVIRONMENTS
from offbeat.run.evaluators import InlineEvaluator, ProcessEvaluator
from offbeat.run.runner import Runner
from offbeat.run.same import spaces_of
from offbeat.run.sources import FromRollouts, check_ring, check_rollouts, rollout_schema
from offbeat.run.tuning import ahead
from offbeat.trace import NO_TRACE, Tracer
from offbeat.types import EnvSpec, Schema
from offbeat.weights.shared import Layout


class Recording:
    """Where processes write their trace, once the run has a directory; None where it has none."""

    def __init__(self) -> None:
        self.trace: tuple[Path, bool] | None = None


@dataclass(frozen=True)
class Parts:
    """What a runner drives.

    time_limit: of an evaluation episode, where there is one that we know of. remarks: on the training environments.
    """

    agent: Agent
    collector: Inline | Processes
    evaluator: InlineEvaluator | ProcessEvaluator
    callbacks: Callbacks | None
    time_limit: int | None
    recording: Recording
    remarks: tuple[str, ...] = ()

    def close(self) -> None:
        """For a run that does not begin."""
        self.collector.close()
        self.evaluator.close()

    def runner(self, directory: RunDirectory, console: Console, stop: Callable[[], bool]) -> Runner:
        """The runner in a directory, of which the parts hear only now."""
        run, trace = self.agent.config.run, NO_TRACE
        if run.trace:
            path = directory.path / "trace.json"
            Tracer.begin(path)
            trace = self.agent.trace = Tracer(path, "learner", cpu=run.trace_cpu)
            self.agent.learner.trace_halves(trace)
            self.recording.trace = path, run.trace_cpu
        runner = Runner(self.agent, self.collector, self.evaluator, directory, console, stop, self.callbacks, trace)
        runner.unlimited = self.time_limit is None
        if isinstance(self.collector, Inline):
            self.collector.trace, self.collector.note = trace, runner.records.note
        else:
            self.collector.note = runner.records.note
        if isinstance(self.evaluator, InlineEvaluator):
            self.evaluator.stop = stop
        else:
            self.evaluator.note = runner.records.note
        return runner


def build(environments: Environments, callbacks: Iterable[object] | None) -> Parts:
    """Everything that a run needs: whatever does not fit is refused here."""
    run = environments.config.run
    check_loggers(run.logger)
    told = gather(callbacks, run.stop_return)
    shaping = None if run.reward_shaping is None else resolve(run.reward_shaping, "reward_shaping")
    return _beside(environments, told, shaping) if run.collectors else _in_one(environments, told, shaping)


def _in_one(environments: Environments, callbacks: Callbacks | None, shaping: Shaping | None) -> Parts:
    """Collection and evaluation in this process."""
    config, run = environments.config, environments.config.run
    vector = environments.training()
    agent = _agent(config, vector.spec, num_envs=vector.num_envs)
    evaluation = environments.evaluation(run.eval_episodes, run.seed)
    _check_same_spaces(vector.spec, evaluation.spec)
    if any(own is other for own in vector.owned for other in evaluation.owned):
        raise UsageError(
            f"training and evaluation got the same {vector.spec.name} object, and evaluation would reset it in the "
            "middle of training's episodes: make the environment inside the factory, or pass another one as eval_env"
        )
    collector = Inline(
        vector,
        agent.policy(vector.num_envs),
        agent.schema,
        agent.streams.acting,
        random_steps=agent.source.random_steps,
        reward_shaping=shaping,
        total_steps=run.total_steps,
    )
    evaluator = InlineEvaluator(evaluation, lambda: agent.policy(evaluation.num_envs), run.eval_episodes)
    return Parts(
        agent, collector, evaluator, callbacks, evaluation.spec.max_episode_steps, Recording(), tuple(remarks(vector))
    )


def _beside(environments: Environments, callbacks: Callbacks | None, shaping: Shaping | None) -> Parts:
    """Collectors and evaluation in processes of their own."""
    config, run = environments.config, environments.config.run
    spec, evaluation, noticed = environments.looked_at()
    _check_same_spaces(spec, evaluation)
    recording = Recording()
    places = _places(config, spec)
    try:
        agent = _agent(config, spec, [place.shard for place in places if isinstance(place, ShardPlace)])
        for place in places:
            _check_travels(environments.part(place.first_env, place.num_envs), agent.policy_factory(1), shaping)
    except BaseException:
        for place in places:
            place.close()
        raise

    def collect(place: Place, weights: Memory, layout: Layout) -> Job:
        return Job(
            worker=place.worker,
            make_vector=environments.part(place.first_env, place.num_envs),
            make_policy=agent.policy_factory(place.num_envs, first_env=place.first_env, total_envs=run.num_envs),
            schema=agent.schema,
            first_env=place.first_env,
            num_envs=place.num_envs,
            plan=place.plan,
            store=place.store,
            control=place.control_memory,
            weights=weights,
            layout=layout,
            generator=_generator(agent, place),
            state=place.state,
            random_steps=agent.source.random_steps,
            reward_shaping=shaping,
            total_steps=run.total_steps,
            trace=recording.trace,
            infos=callbacks is not None and callbacks.see("on_chunk"),
        )

    def evaluate(weights: Memory, control: Memory, layout: Layout) -> evaluator_process.Job:
        num_envs = min(run.eval_episodes, MOST_ENVIRONMENTS)
        return evaluator_process.Job(
            environments.evaluation_maker(run.eval_episodes, run.seed),
            agent.policy_factory(num_envs),
            run.eval_episodes,
            weights,
            control,
            layout,
            recording.trace,
        )

    collector = _processes(agent, places, collect)
    evaluator = ProcessEvaluator(evaluate, run.max_crashes, run.hang_seconds)
    return Parts(agent, collector, evaluator, callbacks, evaluation.max_episode_steps, recording, tuple(noticed))


def _processes(
    agent: Agent, places: Sequence[Place], collect: Callable[[Place, Memory, Layout], Job]
) -> Processes[Any]:
    """Whoever keeps the collectors in these places alive and hears of what they write."""
    run, source = agent.config.run, agent.source
    care: dict[str, Any] = {"hang_seconds": run.hang_seconds, "most_deaths": run.max_crashes}
    if isinstance(source, FromRollouts):
        queues = [place for place in places if isinstance(place, QueuePlace)]
        asks: dict[str, Any] = {"wants": source.wants, "oldest": source.oldest, "hold": source.hold}
        return RolloutProcesses(queues, collect, synchronous=not isinstance(agent.config.learner, APPO), **asks, **care)
    shards = [place for place in places if isinstance(place, ShardPlace)]
    slack, collect_ahead = ahead(run)
    return ShardProcesses(shards, collect, collect_ahead=collect_ahead, synchronous=slack == 0, **care)


def _places(config: Config, spec: EnvSpec) -> Sequence[Place]:
    """Shared memory for what collectors write: shards of replay, or queues of rollouts."""
    run, own = config.run, config.learner
    if not isinstance(own, PPO):
        schema = Schema.transitions(spec)
        check_ring(schema, run.capacity, run.total_steps)
        return make_places(schema, run.num_envs, run.collectors, run.capacity)
    slots, when_full = (own.queue, own.when_full) if isinstance(own, APPO) else (1, "block")
    if when_full == "drop-oldest":
        slots += 1  # what is being filled has a slot of its own, or it would take the only one from what waits
    check_rollouts(rollout_schema(spec), own, run.num_envs, slots)
    return make_queue_places(rollout_schema(spec), run.num_envs, run.collectors, own.rollout_steps, slots, when_full)


def _check_travels(*parts: Any) -> None:
    """Refuses what cannot be sent to another process."""
    for part in parts:
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            raise UsageError(
                f"{part} cannot be sent to a collector process: {type(error).__name__}: {error}; make what it holds "
                "(files, locks, connections) inside the factory, or use collectors=0"
            ) from error


def _generator(agent: Agent, place: Place) -> dict[str, Any]:
    """The state of a collector's own stream: where it stood, or a new one for each process.

    The first collector's first is that of a run in one process.
    """
    if place.state is not None:
        state: dict[str, Any] = place.state[1]["generator"]
        return state
    if place.worker == place.child.boots == place.began == agent.steps == 0:
        return dict(agent.streams.acting.bit_generator.state)
    entropy = [agent.config.run.seed, zlib.crc32(b"acting"), place.worker, place.child.boots, place.began, agent.steps]
    return dict(np.random.PCG64(np.random.SeedSequence(entropy)).state)


def _agent(config: Config, spec: EnvSpec, shards: Sequence[Shard] = (), num_envs: int | None = None) -> Agent:
    agent, run = Agent.from_config(config, spec, shards, num_envs), config.run
    if agent.learner.planned_updates == 0:
        why, held = agent.source.why_none(), presets.kept(config)
        named = any(f"{name}=" in why for name in held)
        raise UsageError(f"total_steps={run.total_steps} {why}" + f"; {presets.sentence(config)}" * named)
    return agent


def _check_same_spaces(mine: EnvSpec, theirs: EnvSpec) -> None:
    if spaces_of(mine) != spaces_of(theirs):
        raise UsageError(
            f"the evaluation environment {theirs.name} does not have the observation and action spaces of {mine.name}: "
            "pass an eval_env with the same spaces"
        )
