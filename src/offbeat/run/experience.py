"""What a run learns from, and at which pace, from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from offbeat.algorithms.configs import Config, Run
from offbeat.algorithms.configs.groups import Recurrence, recurrence_of
from offbeat.algorithms.configs.on_policy import QueueUse
from offbeat.algorithms.registry import Algorithm
from offbeat.coercion import suggestion
from offbeat.errors import OffbeatError, UsageError
from offbeat.references import make_own
from offbeat.replay.experience import Experience
from offbeat.replay.rollouts import Rollouts, RolloutSettings, rollout_schema
from offbeat.replay.sequences import SequenceReplay, carry_field
from offbeat.replay.settings import ReplaySettings, Sequences
from offbeat.replay.uniform import UniformReplay
from offbeat.run.pace import ENDLESS, Pace, RatioPace, RolloutPace
from offbeat.run.tuning import ahead
from offbeat.types import Array, Batches, EnvSpec, Schema


def from_replay(config: Config, spec: EnvSpec, has_end: bool, state_size: int) -> tuple[Experience, Pace]:
    """state_size: of the recurrent state that acts, 0 for none."""
    run, recurrence = config.run, recurrence_of(config.learner)
    _check_sequences(recurrence, spec)
    slack, num_envs = ahead(run)[0] if collects_elsewhere(run) else 0, run.environment.num_envs * run.compute.learners
    pace = RatioPace(
        run.pace.updates_per_step,
        run.pace.warmup_steps,
        run.pace.pace,
        slack=slack * num_envs,
        total_steps=run.length.total_steps if has_end else ENDLESS,
        max_policy_lag=run.collection.max_policy_lag,
        synchronous=slack == 0 and run.pace.pace == "held",
        every=1 if run.pace.update_every == 1 else run.pace.update_every * num_envs,
    )
    stored = recurrence.recurrent and recurrence.start_state == "stored"
    schema = Schema.transitions(spec, (carry_field(state_size),) if stored else ())
    return _replay(config, schema, replay_settings(config, has_end)), pace


def _check_sequences(recurrence: Recurrence, spec: EnvSpec) -> None:
    """Raises UsageError for sequences that no episode could fill."""
    steps, limit = recurrence.burn_in + recurrence.sequence_length, spec.max_episode_steps
    if recurrence.recurrent and limit is not None and steps > limit:
        named = f"sequence_length={recurrence.sequence_length}" + f" after burn_in={recurrence.burn_in}" * (
            recurrence.burn_in > 0
        )
        raise UsageError(
            f"{named} makes sequences of {steps} steps, but an episode of {spec.name} has at most {limit}: use at most "
            f"{limit} for both together, or raise max_episode_steps"
        )


def replay_settings(config: Config, has_end: bool = True) -> ReplaySettings:
    run, own, recurrence = config.run, cast(Any, config.learner), recurrence_of(config.learner)
    return ReplaySettings(
        capacity=run.storage.capacity,
        batch_size=own.replay.batch_size,
        n_step=own.returns.n_step,
        gamma=own.returns.gamma,
        total_steps=run.length.total_steps if has_end else None,
        dtype=dtype_of(config),
        sequences=Sequences(recurrence.sequence_length, recurrence.burn_in) if recurrence.recurrent else None,
    )


def _replay(config: Config, schema: Schema, settings: ReplaySettings) -> Experience:
    storage = config.run.storage
    if storage.replay == "uniform":
        return UniformReplay(schema, settings) if settings.sequences is None else SequenceReplay(schema, settings)
    if isinstance(storage.replay, str) and ":" not in storage.replay:
        remedy = suggestion(storage.replay, ["uniform"])
        raise UsageError(f"replay={storage.replay!r} is neither uniform nor module:callable{remedy}")
    made: Experience = make_own(storage.replay, "replay", Experience, schema, settings, **storage.replay_kwargs)
    if isinstance(made, UniformReplay):
        _check_overrides(made)
    return made


def _check_overrides(made: UniformReplay) -> None:
    """Raises UsageError for a method that would not be called, or a state that would not come back."""
    kind, name = type(made), type(made).__name__
    feedback, arrays, restore = (
        getattr(kind, each) is not getattr(UniformReplay, each) for each in ("feedback", "arrays", "restore")
    )
    if feedback != bool(made.wants_td_errors):
        raise UsageError(
            f"replay: {name} has {'a' if feedback else 'no'} feedback of its own, but wants_td_errors="
            f"{made.wants_td_errors!r}: feedback is called only where it is True; set it to {feedback}"
        )
    if arrays != restore:
        has, lacks = ("arrays", "restore") if arrays else ("restore", "arrays")
        raise UsageError(f"replay: {name} has {has} without {lacks}, so a resume would lose its state; define both")


def own_arrays(experience: Experience) -> dict[str, Array]:
    """What a checkpoint keeps of the replay; OffbeatError where a user's replay returns something else."""
    arrays: Any = experience.arrays()
    if not isinstance(arrays, Mapping) or not all(isinstance(array, np.ndarray) for array in arrays.values()):
        found = (
            {name: type(array).__name__ for name, array in arrays.items()} if isinstance(arrays, Mapping) else arrays
        )
        raise OffbeatError(f"arrays of your replay returned {found!r:.200}; return a dict of names to NumPy arrays")
    return dict(arrays)


def check_weight(weight: Any) -> None:
    """Raises OffbeatError for weights of rows from which every network would become NaN."""
    if isinstance(weight, np.ndarray) and not np.isfinite(weight).all():
        raise OffbeatError(
            "draw of your replay returned a weight that is not finite; return finite numbers: look for a division by 0 "
            "or a power of a negative number"
        )


def check_batches(batches: Any, count: int, settings: ReplaySettings) -> None:
    """Raises OffbeatError for batches of a user's replay from which `count` updates cannot learn."""
    if not isinstance(batches, Batches):
        raise OffbeatError(f"draw of your replay returned a {type(batches).__name__}; return offbeat.types.Batches")
    parts = {**batches.columns, "rows": batches.rows, "weight": batches.weight}
    needed = ("obs", "action", "reward", "discount", "next_obs", "rows")
    if missing := [name for name in needed if parts.get(name) is None]:
        raise OffbeatError(f"draw of your replay returned batches without {', '.join(missing)}; add them to columns")
    sequences, size = settings.sequences, settings.batch_size
    letters, rule = "(K, B)", "for K updates with batches of batch_size"
    shapes: dict[str, tuple[int, ...]] = {}
    if sequences is not None:
        letters, rule = "(K, L * B)", "for K updates with batch_size sequences of sequence_length steps"
        shapes = {"obs": (count, sequences.steps, size), "next_obs": (count, settings.run_length, size)}
    for name, part in parts.items():
        shape = shapes.get(name, (count, settings.batch_rows))
        if part is not None and np.shape(part)[: len(shape)] != shape:
            begin = "its steps and sequences" if name in shapes else letters
            raise OffbeatError(
                f"draw of your replay returned {name} with the shape {np.shape(part)}; it must begin with {begin} = "
                f"{shape}, {rule}"
            )


def collects_elsewhere(run: Run) -> bool:
    """Whether environments are stepped while the learner works: in processes, or by a collector of the user's own."""
    return run.collection.collectors > 0 or run.collection.collector != "processes"


def from_rollouts(
    algorithm: Algorithm, config: Config, spec: EnvSpec, updates: Callable[[], int], num_envs: int, state_size: int
) -> tuple[Experience, Pace]:
    """state_size: of the recurrent state that acts, 0 for none."""
    run, own = config.run, cast(Any, config.learner)
    asynchronous = algorithm.own_rollouts and run.collection.collectors > 0
    queue = getattr(own, "rollout_queue", QueueUse())
    slots, when_full, reuse = queue.queue, queue.when_full, queue.sample_reuse
    if when_full == "drop-oldest":
        slots += 1  # the rollout being filled has a slot of its own, or it would take the only one from what waits
    settings = RolloutSettings(own.rollouts.rollout_steps, reuse, slots, when_full, run.collection.max_policy_lag)
    # Each collector's rollout has a turn of its own, or all together have one.
    envs = -(-num_envs // run.collection.collectors) if asynchronous else num_envs
    pace = RolloutPace(
        own.rollouts.rollout_steps,
        envs * run.compute.learners,
        own.rollouts.epochs * own.rollouts.minibatches,
        reuse,
        synchronous=not asynchronous,
    )
    return Rollouts(rollout_schema(spec, state_size), settings, updates), pace


def dtype_of(config: Config) -> type[np.floating]:
    return np.float64 if config.run.compute.precision == "float64" else np.float32
