"""What an agent learns from, and when: from replay, at a ratio to the steps; or from rollouts, turn by turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from offbeat.algorithms.configs import APPO, PPO, Config, OffPolicy
from offbeat.errors import UsageError
from offbeat.learn.rollouts import Experience, RolloutLearner
from offbeat.learn.torch import Learner, denormals_flushed
from offbeat.memory import check_fits
from offbeat.replay.queue import Rollout, RolloutQueue
from offbeat.replay.shard import Shard
from offbeat.replay.uniform import Uniform
from offbeat.run.pace import Pace
from offbeat.run.tuning import ahead
from offbeat.streams import Streams
from offbeat.trace import Trace
from offbeat.types import Array, Chunk, EnvSpec, Field, Schema


class Source(Protocol):
    """Where rows go and updates come from.

    shards: by name, what a checkpoint keeps of replay. at_once: updates that belong together. random_steps: how many
    first steps act uniformly.
    """

    schema: Schema
    shards: dict[str, Shard]
    at_once: int
    random_steps: int

    def __len__(self) -> int:
        """Rows that can be learned from."""
        ...

    def add(self, chunk: Chunk) -> None:
        """Rows that were made in this process."""
        ...

    def take(self, chunk: Chunk) -> None:
        """Rows that a collector has put where they belong."""
        ...

    def due(self, steps: int, updates: int) -> int:
        """Updates that belong to the steps taken and are not made yet."""
        ...

    def planned(self, steps: int) -> int:
        """Updates that a run of so many steps makes; none where it is too short to learn from."""
        ...

    def whole(self, steps: int) -> int:
        """Steps at which a run of so many ends: what has been begun is finished."""
        ...

    @property
    def unfinished(self) -> bool:
        """Whether something has been begun that can be learned from only when it is whole."""
        ...

    def why_none(self) -> str:
        """What makes no update due, after the number of steps, and the remedies."""
        ...

    def ahead(self, updates: int) -> int:
        """Steps that may be taken before more updates than these are made."""
        ...

    def ratio(self, steps: int, updates: int) -> float | None:
        """Updates made per step, once there are some."""
        ...

    def learn(self, count: int, trace: Trace) -> int:
        """Makes up to `count` updates, and returns how many."""
        ...

    def arrays(self) -> dict[str, Array]:
        """What a checkpoint keeps beside learner and replay."""
        ...

    def restore(self, arrays: Mapping[str, Array]) -> None: ...


ENDLESS = 2**62
"""More steps than any loop takes: as many as an agent has that no run drives."""


def check_ring(schema: Schema, capacity: int, total_steps: int) -> None:
    """Raises UsageError where memory cannot hold a ring, or as much of it as the run fills."""
    whole, filled = (Shard.nbytes(schema, rows) for rows in (capacity, min(capacity, total_steps)))
    check_fits(f"capacity={capacity}", whole, filled=filled if total_steps < ENDLESS else 0)


def check_rollouts(schema: Schema, config: PPO, num_envs: int, slots: int) -> None:
    """Raises UsageError where memory cannot hold the rollouts that are kept at once."""
    what = f"rollout_steps={config.rollout_steps} for num_envs={num_envs}" + (f", {slots} times," if slots > 1 else "")
    check_fits(what, RolloutQueue.nbytes(schema, config.rollout_steps, num_envs, slots))


class FromReplay:
    """Batches from replay, `updates_per_step` of them after the warm-up."""

    at_once = 1

    def __init__(
        self, config: Config, spec: EnvSpec, learner: Learner, streams: Streams, shards: Sequence[Shard]
    ) -> None:
        assert isinstance(config.learner, OffPolicy)
        run, self._batch_size = config.run, config.learner.batch_size
        self.learner, self._streams, self._slack = learner, streams, ahead(run)[0] * run.num_envs
        self._dtype: type[np.floating] = np.float64 if run.precision == "float64" else np.float32
        self.schema, self.random_steps = Schema.transitions(spec), run.random_steps
        self.pace = Pace(run.updates_per_step, run.warmup_steps)
        check_fits(f"batch_size={self._batch_size}", 2 * self._batch_size * self.schema.row.itemsize)
        shards = shards or [self._own_shard(run.capacity, run.total_steps)]
        self.shard, self.shards = shards[0], {str(shard.worker): shard for shard in shards}
        own = config.learner
        self.replay = Uniform(shards, n_step=own.n_step, gamma=own.gamma, dtype=self._dtype)

    def _own_shard(self, capacity: int, total_steps: int) -> Shard:
        check_ring(self.schema, capacity, total_steps)
        try:
            return Shard(self.schema, capacity)
        except (MemoryError, ValueError) as error:
            size = Shard.nbytes(self.schema, capacity) / 2**30
            raise UsageError(f"capacity={capacity} needs {size:,.0f} GiB of memory: {error}; use less") from error

    def __len__(self) -> int:
        return len(self.replay)

    def add(self, chunk: Chunk) -> None:
        self.shard.write(chunk)
        self.take(chunk)

    def take(self, chunk: Chunk) -> None:
        self.learner.observe(chunk)

    def due(self, steps: int, updates: int) -> int:
        return self.pace.updates_due(steps, updates)

    def planned(self, steps: int) -> int:
        return self.pace.planned(steps)

    def whole(self, steps: int) -> int:
        return steps

    @property
    def unfinished(self) -> bool:
        return False

    def why_none(self) -> str:
        ratio, warmup = self.pace.updates_per_step, self.pace.warmup_steps
        return (
            f"with warmup_steps={warmup} and updates_per_step={ratio:g} makes no update: use total_steps >= "
            f"{self.pace.covered(0) + 1}, or fewer warmup_steps"
        )

    def ahead(self, updates: int) -> int:
        return self.pace.covered(updates) + self._slack

    def ratio(self, steps: int, updates: int) -> float | None:
        return updates / (steps - self.pace.warmup_steps) if steps > self.pace.warmup_steps else None

    def learn(self, count: int, trace: Trace) -> int:
        if count and not len(self):
            raise UsageError("there is nothing to learn from yet: observe at least one transition before update")
        sampling, noise = self._streams.sampling, self._streams.noise
        with denormals_flushed():
            for _ in range(count):
                with trace("sample"):
                    batch = self.replay.sample(sampling, self._batch_size)
                    draws = np.asarray(noise.standard_normal(self.learner.noise_shape, self._dtype))
                with trace("update"):
                    self.learner.update(batch, draws)
        return count

    def arrays(self) -> dict[str, Array]:
        return {}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        pass


@dataclass
class Held:
    """A rollout that is being learned from. fresh: before its first turn."""

    experience: Experience
    turns_left: int
    fresh: bool = True

    @property
    def version(self) -> int:
        """Of the oldest weights that acted."""
        return int(self.experience.columns["version"][self.experience.valid].min(initial=np.iinfo(np.int32).max))


class FromRollouts:
    """Turns with rollouts: the one that this process fills step by step, or those of collectors.

    A rollout that has had its turn may have further ones, as many as `sample_reuse` allows, while no newer one waits.
    """

    def __init__(
        self, config: Config, spec: EnvSpec, learner: RolloutLearner, streams: Streams, num_envs: int | None = None
    ) -> None:
        own, run = config.learner, config.run
        assert isinstance(own, PPO)
        self.learner, self._streams, self._config, self._run = learner, streams, own, run
        self.schema = rollout_schema(spec)
        self.shards: dict[str, Shard] = {}
        self.random_steps, self.at_once = 0, own.epochs * own.minibatches
        self._reuse = own.sample_reuse if isinstance(own, APPO) else 1
        self.num_envs = num_envs or run.num_envs
        check_rollouts(self.schema, own, self.num_envs, 1)
        self._queue: RolloutQueue | None = None  # what this process fills
        self._held: Held | None = None
        self._steps = 0

    def __len__(self) -> int:
        filling = 0 if self._queue is None else int(self._queue.filled()[1].sum())
        return filling + (0 if self._held is None else int(self._held.experience.valid.sum()))

    def add(self, chunk: Chunk) -> None:
        queue = self._queue or self._open()
        if not queue.filling:
            queue.begin(self.learner.updates)
        queue.write(chunk, self._valid(chunk))
        self.take(chunk)
        if queue.complete:
            queue.publish()
            rollout = queue.take()
            assert rollout is not None
            self.hold([(queue, rollout)])

    def _open(self) -> RolloutQueue:
        steps = self._config.rollout_steps
        try:
            self._queue = RolloutQueue(self.schema, steps, self.num_envs, slots=1)
        except (MemoryError, ValueError) as error:
            size = RolloutQueue.nbytes(self.schema, steps, self.num_envs, 1) / 2**30
            raise UsageError(f"rollout_steps={steps} needs {size:,.0f} GiB of memory: {error}; use less") from error
        return self._queue

    def _valid(self, chunk: Chunk) -> Array | None:
        if len(chunk) == self.num_envs:
            return None
        valid = np.zeros(self.num_envs, bool)
        valid[chunk.columns["env"]] = True
        return valid

    def take(self, chunk: Chunk) -> None:
        self._steps += len(chunk)

    def hold(self, rollouts: list[tuple[RolloutQueue, Rollout]]) -> Chunk:
        """Takes rollouts over, as one, to be learned from next; their rows. The queues are free for others at once."""
        experience = Experience.copied([(rollout.rows, rollout.valid) for _, rollout in rollouts])
        for queue, rollout in rollouts:
            queue.release(rollout)
        self._held = Held(experience, self._reuse)
        self.learner.observe_rewards_of(experience)
        return experience.chunk()

    def wants(self) -> bool:
        """Whether a newer rollout should be learned from, if there is one."""
        return self._held is None or not self._held.fresh

    def oldest(self) -> int:
        """Rollouts of versions before this one are too old."""
        most = self._run.max_policy_lag
        return 0 if most is None else max(0, self.learner.updates - most)

    def due(self, steps: int, updates: int) -> int:
        if self._held is not None and not self._held.fresh and self._held.version < self.oldest():
            self._held = None  # it has had a turn, and is too old for another
        return 0 if self._held is None else self.at_once

    def planned(self, steps: int) -> int:
        return 0 if steps < self._size else self.whole(steps) // self._size * self.at_once * self._reuse

    def whole(self, steps: int) -> int:
        return -(-steps // self._size) * self._size

    @property
    def unfinished(self) -> bool:
        return self._queue is not None and self._queue.filling

    @property
    def _size(self) -> int:
        """Steps that make a rollout."""
        return self._config.rollout_steps * self._at_once_envs

    @property
    def _at_once_envs(self) -> int:
        """Environments in one rollout: all, or those of the largest share where each collector's has its own turn."""
        collectors = self._run.collectors if isinstance(self._config, APPO) else 0
        return -(-self.num_envs // max(1, collectors))

    def why_none(self) -> str:
        size = f"rollout_steps={self._config.rollout_steps} of {self._at_once_envs} environment(s)"
        return f"does not make one rollout, {size}: use total_steps >= {self._size}, or fewer rollout_steps"

    def ahead(self, updates: int) -> int:
        return 1 << 62

    def ratio(self, steps: int, updates: int) -> float | None:
        return updates / steps if steps else None

    def learn(self, count: int, trace: Trace) -> int:
        held = self._held
        if count == 0 or held is None:
            return 0
        self.learner.share_done = self._share_done(held)
        # Without any statistics observations would be learned from as they are: the very first rollout gives its own.
        seen = self.learner.observations
        first = held.fresh and seen is not None and seen.count == 0
        if first:
            self.learner.observe_observations(held.experience.chunk())
        with denormals_flushed(), trace("update"):
            made = self.learner.turn(held.experience, self._streams.sampling, count)
        if held.fresh and seen is not None and not first:
            self.learner.observe_observations(held.experience.chunk())
        held.fresh, held.turns_left = False, held.turns_left - 1
        if held.turns_left == 0:
            self._held = None
        return made

    def _share_done(self, held: Held) -> float:
        """The share of the run that was over before this rollout: turn k of K, from 0, has k / K, and none has 1."""
        total = self._run.total_updates
        by_steps = (self._steps - int(held.experience.valid.sum())) / self.whole(self._run.total_steps)
        return by_steps if total is None else max(by_steps, self.learner.updates / total)

    def arrays(self) -> dict[str, Array]:
        arrays = {"steps": np.asarray(self._steps), "num_envs": np.asarray(self.num_envs)}
        if self._queue is not None and self._queue.filling:
            rows, arrays["filling/valid"] = self._queue.filled()
            arrays["filling/rows"] = np.frombuffer(rows.tobytes(), np.uint8).reshape(*rows.shape, -1)
        if self._held is not None:
            columns = self._held.experience.columns
            arrays |= {f"held/{name}": np.array(column) for name, column in columns.items()}
            arrays |= {"held_valid": np.array(self._held.experience.valid)}
            arrays |= {"held_turns": np.asarray(self._held.turns_left), "held_fresh": np.asarray(self._held.fresh)}
        return arrays

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self._steps, self.num_envs = int(arrays["steps"]), int(arrays["num_envs"])
        self._queue = self._held = None
        if "held_valid" in arrays:
            columns = {name.removeprefix("held/"): arrays[name] for name in _under(arrays, "held/")}
            experience = Experience(columns, np.array(arrays["held_valid"]))
            self._held = Held(experience, int(arrays["held_turns"]), bool(arrays["held_fresh"]))
        if "filling/rows" in arrays:
            rows = np.ascontiguousarray(arrays["filling/rows"]).view(self.schema.row).squeeze(-1)
            queue = self._open()
            queue.begin(self.learner.updates)
            queue.refill(rows, arrays["filling/valid"])


def rollout_schema(spec: EnvSpec) -> Schema:
    """Transitions, and how likely each action was to whoever acted."""
    return Schema.transitions(spec, (Field("log_prob", (), "float32"),))


def _under(names: Iterable[str], prefix: str) -> list[str]:
    return [name for name in names if name.startswith(prefix)]


def make_source(
    config: Config,
    spec: EnvSpec,
    learner: Learner,
    streams: Streams,
    shards: Sequence[Shard],
    num_envs: int | None = None,
) -> Source:
    if isinstance(learner, RolloutLearner):
        return FromRollouts(config, spec, learner, streams, num_envs)
    return FromReplay(config, spec, learner, streams, shards)
