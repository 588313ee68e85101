"""Where, how long and how a run trains: the settings that are the same for every algorithm."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from offbeat.algorithms.configs.learning import Reference
from offbeat.errors import UsageError
from offbeat.ranges import check_ranges, setting


@dataclass(frozen=True)
class Run:
    """Where, how long and how a run trains; the same for every algorithm that does not say otherwise."""

    env: str = setting("", "Gymnasium id, or module:factory.")
    env_kwargs: Mapping[str, Any] = setting({}, "Arguments for the environment, as key=value.")
    env_wrapper: Reference | None = setting(None, "module:callable that wraps each environment.")
    max_episode_steps: int | None = setting(
        None, "Truncate episodes here; none keeps the environment's own limit.", at_least=1
    )
    state_key: str | None = setting(
        None, "Privileged state for the critic only: a key of a Dict observation, or of info."
    )
    mask_key: str | None = setting(
        None, "Mask of the actions that are allowed, for Discrete actions: a key of a Dict observation, or of info."
    )
    preset: str | None = setting(
        "auto",
        "Settings from the literature, below flags and files and above the defaults: auto is the environment's own "
        "preset, if it has one; or the id of another environment; or none.",
    )
    num_envs: int = setting(1, "Environments stepped side by side.", at_least=1, at_most=2**16)
    total_steps: int = setting(100_000, "Environment steps, over all environments.", at_least=1)
    total_updates: int | None = setting(None, "Stop after this many updates instead, if that comes first.", at_least=1)
    init_from: str | None = setting(
        None,
        "Begin with the networks and normalisers of another run, on an environment with the same spaces: RUN, or "
        "RUN:CHECKPOINT (latest, best, or its name). Optimisers and counters are new; random_steps is 0 unless set.",
    )
    seed: int = setting(0, "Seed of every random stream.", at_least=0, below=2**63)
    out: str = setting("runs", "Directory for runs.")
    name: str | None = setting(
        None, "The run is exactly OUT/NAME; none makes a name from algorithm, environment, seed and time."
    )
    updates_per_step: float = setting(1.0, "Updates per environment step after warm-up; may be a fraction.", above=0)
    random_steps: int = setting(1_000, "Uniform random actions for this many first steps.", at_least=0)
    warmup_steps: int = setting(1_000, "No updates before this many steps.", at_least=1)
    capacity: int = setting(1_000_000, "Transitions that replay keeps.", at_least=1)
    reward_shaping: Reference | None = setting(
        None, "module:callable (reward, step, total_steps) -> reward, applied before replay."
    )
    collectors: int = setting(
        0, "Collector processes, each with its share of the environments; 0 collects in the learner's own.", at_least=0
    )
    slack: int | None = setting(
        None,
        "With collectors: vector steps (a step of every environment) that may be taken before the updates that belong "
        "to the earlier ones are made; 0 is synchronous, with the numbers of one process; none holds about 32 updates.",
        at_least=0,
        needs="collectors",
    )
    collect_ahead: int | None = setting(
        None,
        "With collectors: vector steps that each may take before the learner looks again; none is as slack.",
        at_least=1,
        needs="collectors",
    )
    max_policy_lag: int | None = setting(
        None,
        "With collectors: updates by which the weights that act may be behind; none sets no limit.",
        at_least=1,
        needs="collectors",
    )
    hang_seconds: float = setting(
        60.0,
        "With collectors: an environment whose step takes longer is interrupted and restarted; after twice as long its "
        "collector is replaced.",
        above=0,
        needs="collectors",
    )
    max_crashes: int = setting(
        5,
        "With collectors: the run stops when one ends so often in a row without a row collected.",
        at_least=1,
        needs="collectors",
    )
    acting: Literal["auto", "numpy", "torch"] = setting(
        "auto", "What the policy acts with; auto is NumPy, and torch where environments and layers are many and wide."
    )
    eval_every: int = setting(5_000, "Evaluate every this many steps; 0 only at the end.", at_least=0)
    eval_episodes: int = setting(10, "Episodes per evaluation.", at_least=1)
    stop_return: float | None = setting(None, "Stop when an evaluation's mean return reaches this.")
    checkpoint_every: int = setting(10_000, "Checkpoint every this many steps; 0 only at the end.", at_least=0)
    keep_checkpoints: int | None = setting(
        2,
        "So many of the newest checkpoints stay, with the replay that each needs, and the best one; none keeps all.",
        at_least=1,
    )
    log_every: int = setting(1_000, "Log metrics every this many steps.", at_least=1)
    logger: tuple[Literal["tensorboard", "wandb"], ...] = setting(
        ("tensorboard",), "Loggers beside metrics.jsonl, separated by commas; 'none' for no other."
    )
    device: str = setting("cpu", "Torch device of the learner: cpu, cuda, cuda:1, or auto.")
    threads: int = setting(
        0,
        "Torch threads of the learner; 0 chooses by the size of an update, on the cores that collectors leave.",
        at_least=0,
        at_most=1024,
    )
    precision: Literal["float32", "float64"] = setting("float32", "The learner's floating-point type.")
    trace: bool = setting(False, "Write trace.json: what each process did when (`offbeat trace` adds it up).")
    trace_cpu: bool = setting(False, "With trace: processor time of each span, too.", needs="trace")
    quiet: bool = setting(False, "Print nothing but errors, notes and the run's path.")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.num_envs > self.capacity:
            raise UsageError(
                f"capacity={self.capacity} is less than num_envs={self.num_envs}: one step of all would not fit"
            )
        self._check_collectors()
        if self.stop_return is not None and not self.eval_every:
            raise UsageError(
                f"stop_return={self.stop_return:g} looks at evaluations, and eval_every=0 makes none before the end: "
                "use eval_every >= 1, or leave stop_return out"
            )
        if self.warmup_steps > self.capacity:
            raise UsageError(
                f"warmup_steps={self.warmup_steps} is more than capacity={self.capacity}: replay could never hold the "
                f"warm-up, so learning would never start; use warmup_steps <= {self.capacity} or a larger capacity"
            )

    def _check_collectors(self) -> None:
        if self.collectors > self.num_envs:
            raise UsageError(
                f"collectors={self.collectors} is more than num_envs={self.num_envs}: each collector needs an "
                f"environment; use num_envs >= {self.collectors}"
            )
        slack, ahead = self.slack or 0, self.collect_ahead or self.slack or 1
        least = (self.collectors * slack + 2 * ahead) * self.num_envs
        if self.collectors and least > self.capacity:
            raise UsageError(
                f"capacity={self.capacity} leaves a collector less than it may be ahead by, slack={slack} and "
                f"collect_ahead={ahead} vector steps of {self.num_envs} environments; use capacity >= {least}"
            )
        check_needs(self, self)


def check_needs(settings: Any, run: Run) -> None:
    """Raises UsageError for a setting that has nothing to act on, because the run lacks what it needs."""
    for each in dataclasses.fields(settings):
        value, needed = getattr(settings, each.name), each.metadata["needs"]
        if needed is not None and not getattr(run, needed) and value != each.default:
            raise UsageError(
                f"{each.name}={value} is about {needed}, and {needed}={getattr(run, needed)} has none: set {needed}, "
                "or leave it out"
            )
