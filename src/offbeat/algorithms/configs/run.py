"""Settings of a run, which are the same for every algorithm, in groups by the part that they serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from offbeat.algorithms.configs.checks import refuse_idle
from offbeat.algorithms.configs.groups import Reference
from offbeat.coercion import suggestion
from offbeat.errors import UsageError
from offbeat.ranges import check_ranges, group, setting

COLLECTORS = ("processes", "ray")


@dataclass(frozen=True)
class Environment:
    """What is trained on."""

    title: ClassVar[str] = "environment"

    env: str = setting("", "Gymnasium id, or module:factory.")
    env_kwargs: Mapping[str, Any] = setting({}, "Arguments for the environment, as key=value.")
    env_wrapper: Reference | None = setting(None, "module:callable that wraps each environment.")
    max_episode_steps: int | None = setting(
        None, "Truncate episodes after this many steps; none keeps the environment's own limit.", at_least=1
    )
    state_key: str | None = setting(
        None, "Privileged state, which only the critic sees: a key of a Dict observation, or of info."
    )
    mask_key: str | None = setting(
        None, "Mask of the allowed actions, for Discrete actions: a key of a Dict observation, or of info."
    )
    num_envs: int = setting(1, "Number of environments, over all collectors together.", at_least=1, at_most=2**16)
    reward_shaping: Reference | None = setting(
        None, "module:callable (reward, step, total_steps) -> reward, applied before rewards are stored."
    )


@dataclass(frozen=True)
class Start:
    """What a run begins with."""

    preset: str | None = setting(
        "auto",
        "Settings from the literature; flags and files override them. auto uses the preset of the environment if there "
        "is one. Or give the id of another environment, or none.",
    )
    seed: int = setting(0, "Seed of every random stream.", at_least=0, below=2**63)
    init_from: str | None = setting(
        None,
        "Begin with the networks and normalisers of another run on an environment with the same spaces: RUN, or "
        "RUN:CHECKPOINT (latest, best, or its name). Optimisers and counters are new; random_steps is 0 unless set.",
    )


@dataclass(frozen=True)
class Length:
    """How long a run is."""

    total_steps: int = setting(100_000, "Environment steps, over all environments.", at_least=1)
    total_updates: int | None = setting(
        None, "Stop after this many updates, if that is before total_steps; none sets no limit.", at_least=1
    )


@dataclass(frozen=True)
class Pacing:
    """How many updates belong to how many steps."""

    updates_per_step: float = setting(
        1.0, "Update ratio: updates per environment step after the warm-up. May be a fraction.", above=0
    )
    random_steps: int = setting(
        1_000, "Environment steps at the start with uniform random actions.", at_least=0, title="exploration"
    )
    warmup_steps: int = setting(1_000, "Environment steps before the first update.", at_least=0)
    update_every: int = setting(
        1,
        "Vector steps (one step of every environment) after which the updates that they bring are made, all together.",
        at_least=1,
    )
    pace: Literal["held", "ceiling", "free"] = setting(
        "held",
        "With collectors: held keeps the update ratio, and both sides wait for each other. ceiling pauses the learner "
        "above the ratio and never the collectors, for robots. free lets neither wait, whatever the ratio becomes.",
        needs="collectors",
    )


@dataclass(frozen=True)
class Storage:
    """What replay holds."""

    capacity: int = setting(1_000_000, "Transitions that replay holds.", at_least=1)
    replay: Reference = setting(
        "uniform", "uniform, or your own replay: module:callable (schema, settings, **replay_kwargs) -> Experience."
    )
    replay_kwargs: Mapping[str, Any] = setting({}, "Keyword arguments for your own replay, as key=value.")


@dataclass(frozen=True)
class Collection:
    """Who steps the environments, and how far ahead of the learner."""

    title: ClassVar[str] = "collectors"

    collectors: int = setting(
        0,
        "Collector processes, each with a share of the environments; 0 collects in the learner's process.",
        at_least=0,
    )
    collector: Reference = setting(
        "processes",
        "processes on this machine; ray for actors of a Ray cluster (`pip install offbeat[ray]`); or your own "
        "collector: module:callable (context) -> Collector.",
    )
    slack: int | None = setting(
        None,
        "With collectors: vector steps (one step of every environment) that may be taken before the updates of the "
        "earlier steps are made. 0 is synchronous and gives the numbers of one process; none allows about 32 updates.",
        at_least=0,
        needs="collectors",
    )
    collect_ahead: int | None = setting(
        None,
        "With collectors: vector steps that each collector may take without a new permit; none uses slack.",
        at_least=1,
        needs="collectors",
    )
    max_policy_lag: int | None = setting(
        None,
        "With collectors: largest policy lag, in updates between the acting weights and the newest; none sets no "
        "limit.",
        at_least=1,
        needs="collectors",
    )
    hang_seconds: float = setting(
        60.0,
        "With collectors: seconds after which an environment that does not return from a step is interrupted and "
        "restarted. After twice as long its collector is replaced.",
        above=0,
        needs="collectors",
    )
    max_crashes: int = setting(
        5,
        "With collectors: the run stops if a collector crashes this many times in a row without collecting anything.",
        at_least=1,
        needs="collectors",
    )
    acting: Literal["auto", "numpy", "torch"] = setting(
        "auto", "Library that the policy acts with; auto is NumPy, and torch for many environments and wide layers."
    )


@dataclass(frozen=True)
class RayUse:
    """Where collectors run if they are Ray actors."""

    title: ClassVar[str] = "collectors"

    ray_address: str | None = setting(
        None,
        "With collector ray: address of an existing cluster, host:port of its head or auto; none starts Ray on this "
        "machine and ends it with the run.",
    )
    ray_cpus: float = setting(1.0, "With collector ray: CPUs that each collector reserves.", at_least=0)
    ray_resources: Mapping[str, Any] = setting(
        {}, "With collector ray: other resources that each collector reserves, as name=amount."
    )
    ray_placement: Literal["spread", "pack"] = setting(
        "spread", "With collector ray: spread divides collectors over the nodes; pack fills one after the other."
    )
    ray_working_dir: str | None = setting(
        None,
        "With collector ray: directory that is sent to every node, with your modules in it, together with Offbeat; "
        "none expects both to be installed there.",
    )


@dataclass(frozen=True)
class Evaluations:
    """When a run is evaluated."""

    title: ClassVar[str] = "evaluation"

    eval_every: int = setting(5_000, "Environment steps between evaluations; 0 evaluates only at the end.", at_least=0)
    eval_episodes: int = setting(10, "Episodes per evaluation; 0 makes no evaluation at all.", at_least=0)
    stop_return: float | None = setting(
        None, "Stop the run if the mean return of an evaluation reaches this; none never stops early."
    )


@dataclass(frozen=True)
class Output:
    """What a run writes, where, and how often."""

    title: ClassVar[str] = "logging"

    out: str = setting("runs", "Directory for runs.")
    name: str | None = setting(
        None, "The run's directory is OUT/NAME; none makes a name from algorithm, environment, seed and time."
    )
    checkpoint_every: int = setting(
        10_000, "Environment steps between checkpoints; 0 saves only at the end.", at_least=0
    )
    keep_checkpoints: int | None = setting(
        2,
        "Number of newest checkpoints to keep, with the replay that they need; the best one is kept too. none keeps "
        "all.",
        at_least=1,
    )
    log_every: int = setting(1_000, "Environment steps between log lines.", at_least=1)
    logger: tuple[Literal["tensorboard", "wandb"], ...] = setting(
        ("tensorboard",), "Loggers beside metrics.jsonl, separated by commas; 'none' for no other."
    )
    trace: bool = setting(
        False, "Write trace.json, with the time spans of each process (`offbeat trace` summarises it)."
    )
    trace_cpu: bool = setting(False, "With trace: also record the processor time of each span.", needs="trace")
    quiet: bool = setting(False, "Print only errors, notes and the run's path.")


@dataclass(frozen=True)
class Compute:
    """What the learner computes with."""

    backend: Literal["torch", "jax"] = setting(
        "torch",
        "What the learner computes with: torch, or jax (`pip install offbeat[jax]`).",
    )
    device: str = setting("cpu", "Device of the learner: cpu, cuda, cuda:1, or auto.")
    devices: int = setting(
        1,
        "Devices of the learner from `device` on, among which the rows of each batch are divided. For jax.",
        at_least=1,
        at_most=4096,
    )
    threads: int = setting(
        0,
        "Threads of the learner; 0 chooses by the size of an update, among the cores that collectors leave free.",
        at_least=0,
        at_most=1024,
    )
    learners: int = setting(
        1,
        "Learner processes, each with collectors and a replay of its own, which make every update together: each "
        "contributes an equal part of batch_size. For torch.",
        at_least=1,
        at_most=1024,
    )
    precision: Literal["float64", "float32", "bfloat16", "float16"] = setting(
        "float32",
        "Floating-point type of the learner. bfloat16 and float16 are mixed precision: networks compute in them, and "
        "weights, optimisers and losses are float32.",
    )
    tf32: bool = setting(False, "Compute float32 products in TF32, with 10 bits after the point. For a CUDA device.")


@dataclass(frozen=True)
class Run:
    """Environment, length, pace, collection, evaluation and output of a run; the same for every algorithm."""

    environment: Environment = group(Environment)
    start: Start = group(Start)
    length: Length = group(Length)
    pace: Pacing = group(Pacing)
    storage: Storage = group(Storage)
    collection: Collection = group(Collection)
    ray: RayUse = group(RayUse)
    evaluation: Evaluations = group(Evaluations)
    output: Output = group(Output)
    compute: Compute = group(Compute)

    def __post_init__(self) -> None:
        check_ranges(self)
        num_envs, capacity = self.environment.num_envs, self.storage.capacity
        if num_envs > capacity:
            raise UsageError(
                f"capacity={capacity} is less than num_envs={num_envs}: one step of every environment would not fit; "
                f"use capacity >= {num_envs}"
            )
        self._check_collectors()
        if self.compute.learners > 1 and self.compute.backend != "torch":
            raise UsageError(
                f"learners={self.compute.learners} needs backend=torch: {self.compute.backend} divides each batch among"
                f" the devices of one process; use devices={self.compute.learners} with learners=1"
            )
        if self.storage.replay == "uniform" and self.storage.replay_kwargs:
            raise UsageError(
                f"replay_kwargs={dict(self.storage.replay_kwargs)} has no effect, because replay is uniform: set "
                "replay, or leave replay_kwargs out"
            )
        evaluation, warmup = self.evaluation, self.pace.warmup_steps
        if evaluation.stop_return is not None and not evaluation.eval_every:
            raise UsageError(
                f"stop_return={evaluation.stop_return:g} is compared with evaluations, but eval_every=0 makes none "
                "before the end: use eval_every >= 1, or leave stop_return out"
            )
        if evaluation.stop_return is not None and not evaluation.eval_episodes:
            raise UsageError(
                f"stop_return={evaluation.stop_return:g} is compared with evaluations, but eval_episodes=0 makes none: "
                "use eval_episodes >= 1, or leave stop_return out"
            )
        if warmup > capacity:
            raise UsageError(
                f"warmup_steps={warmup} is more than capacity={capacity}: replay could never hold the warm-up, so "
                f"learning would never start; use warmup_steps <= {capacity} or a larger capacity"
            )

    def _check_collectors(self) -> None:
        collectors, num_envs = self.collection.collectors, self.environment.num_envs
        own = self.collection.collector
        if isinstance(own, str) and own not in COLLECTORS and ":" not in own:
            raise UsageError(
                f"collector={own!r} is neither {' nor '.join(COLLECTORS)} nor module:callable"
                f"{suggestion(own, COLLECTORS)}"
            )
        if own == "ray" and not collectors:
            raise UsageError("collector=ray needs collectors >= 1, the number of its actors, but collectors is 0")
        for name, amount in self.ray.ray_resources.items():
            if isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0:
                raise UsageError(f"ray_resources: {name}={amount!r} is no amount; use a number, at least 0")
        if collectors > num_envs:
            raise UsageError(
                f"collectors={collectors} is more than num_envs={num_envs}: each collector needs an environment; use "
                f"num_envs >= {collectors}"
            )
        slack = self.collection.slack or 0
        ahead = self.collection.collect_ahead or self.collection.slack or 1
        least = (collectors * slack + 2 * ahead) * num_envs
        if collectors and least > self.storage.capacity:
            raise UsageError(
                f"capacity={self.storage.capacity} is too small for collectors that may be slack={slack} and "
                f"collect_ahead={ahead} vector steps of {num_envs} environments ahead; use capacity >= {least}"
            )
        refuse_idle(self, {})
