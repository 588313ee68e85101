"""The collectors of Offbeat, each made from a `CollectorContext`."""

from __future__ import annotations

from offbeat.collect.collector import Collector
from offbeat.collect.context import CollectorContext
from offbeat.collect.hosts import ChildProcesses, Host
from offbeat.collect.in_process import InProcess
from offbeat.collect.ray_actors import RayActors, bytes_on_the_way
from offbeat.collect.ray_cluster import RaySettings, connect
from offbeat.collect.rollout_processes import RolloutConsumer, RolloutProcesses
from offbeat.collect.shard_processes import ShardProcesses
from offbeat.errors import UsageError
from offbeat.replay.stores import QueuePlan


def in_process(context: CollectorContext) -> Collector:
    """Steps all environments in the learner's process: one vector step per poll."""
    return InProcess(context.stepper(), context.other_rows)


def processes(context: CollectorContext) -> Collector:
    """Steps environments in `context.collectors` processes, which write shards or queues, as the experience plans."""
    return workers(context, ChildProcesses())


def ray(context: CollectorContext, settings: RaySettings | None = None) -> Collector:
    """The same in `context.collectors` actors of a Ray cluster."""
    cluster = connect(settings or RaySettings(), context.collectors, bytes_on_the_way(context))
    try:
        return workers(context, RayActors(context, cluster))
    except BaseException:
        cluster.close()
        raise


def workers(context: CollectorContext, host: Host) -> Collector:
    """Workers on a host of any kind, which write shards or queues, as the experience plans."""
    experience = context.experience
    if not isinstance(experience.plan(0, 1, context.num_envs), QueuePlan):
        return ShardProcesses(context, host)
    if not isinstance(experience, RolloutConsumer):
        raise UsageError(
            f"{type(experience).__name__} plans queues of rollouts, but has no wants, oldest and hold: add them "
            "(RolloutConsumer), or plan shards"
        )
    return RolloutProcesses(context, experience, host)
