"""Rollouts as experience: each is learned from as a whole, some turns long, and then gives way to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from offbeat.memory import check_fits
from offbeat.replay.queue import Rollout, RolloutQueue, WhenFull
from offbeat.replay.sequences import carry_field
from offbeat.replay.shard import Shard
from offbeat.replay.stores import QueuePlan, Store
from offbeat.types import Array, Chunk, EnvSpec, Field, RolloutBatch, Schema, select_prefix


@dataclass(frozen=True)
class RolloutSettings:
    """steps: T of a rollout. reuse: turns that a rollout may have. slots, when_full: of each collector's queue.

    max_policy_lag: rollouts that are more updates old are not learned from; None sets no limit.
    """

    steps: int
    reuse: int = 1
    slots: int = 1
    when_full: WhenFull = "block"
    max_policy_lag: int | None = None


@dataclass
class PendingRollout:
    """A rollout that is being learned from. fresh: before its first turn."""

    rollout: RolloutBatch
    turns_left: int
    fresh: bool = True

    @property
    def version(self) -> int:
        """The oldest version of the weights that acted in it."""
        return int(self.rollout.columns["version"][self.rollout.valid].min(initial=np.iinfo(np.int32).max))


class Rollouts:
    """The rollout that this process fills step by step, or those of collector processes.

    A rollout that has had its turn may have further ones, as many as `reuse` allows, while no newer one waits. updates:
    how many the learner has made.
    """

    wants_td_errors = False

    def __init__(self, schema: Schema, settings: RolloutSettings, updates: Callable[[], int]) -> None:
        self.schema, self.settings, self._updates = schema, settings, updates
        self.shards: dict[str, Shard] = {}
        self.pending: PendingRollout | None = None
        self.local: RolloutQueue | None = None  # the queue that this process fills, if it does

    def __len__(self) -> int:
        filling = 0 if self.local is None else int(self.local.filled()[1].sum())
        return filling + (0 if self.pending is None else int(self.pending.rollout.valid.sum()))

    def plan(self, worker: int, num_envs: int, total_envs: int) -> QueuePlan:
        own = self.settings
        what = f"rollout_steps={own.steps} for num_envs={total_envs}" + f", {own.slots} times," * (own.slots > 1)
        check_fits(what, RolloutQueue.nbytes(self.schema, own.steps, total_envs, own.slots))
        return QueuePlan(self.schema, own.steps, num_envs, own.slots, own.when_full)

    def attach(self, store: Store) -> None:
        assert isinstance(store, RolloutQueue)
        if not store.shared:
            self.local = store

    @property
    def unfinished(self) -> bool:
        """Whether a rollout was begun in this process that can be learned from only when it is complete."""
        return self.local is not None and self.local.filling

    def ready(self) -> bool:
        """Whether there is a rollout to learn from."""
        if self.local is not None and (rollout := self.local.take()) is not None:
            self.hold_batch(side_by_side([rollout]))
        if self.pending is not None and not self.pending.fresh and self.pending.version < self.oldest():
            self.pending = None  # it has had a turn, and is too old for another
        return self.pending is not None

    def wants(self) -> bool:
        """Whether a newer rollout should be learned from, if there is one."""
        return self.pending is None or not self.pending.fresh

    def oldest(self) -> int:
        """Rollouts of versions before this one are too old."""
        most = self.settings.max_policy_lag
        return 0 if most is None else max(0, self._updates() - most)

    def hold(self, rollouts: Sequence[Rollout]) -> Chunk:
        """Keeps rollouts, side by side as one, to be learned from next; returns their rows."""
        merged = side_by_side(rollouts)
        self.hold_batch(merged)
        return merged.chunk()

    def hold_batch(self, rollout: RolloutBatch) -> None:
        """Keeps a rollout, to be learned from next."""
        self.pending = PendingRollout(rollout, self.settings.reuse)

    def draw(self, rng: np.random.Generator, count: int) -> RolloutBatch:
        """The pending rollout; `finish_turn` follows when it has been learned from."""
        if self.pending is None:
            raise ValueError("no rollout is complete yet; collect before learning")
        return self.pending.rollout

    def finish_turn(self) -> None:
        assert self.pending is not None
        self.pending.fresh, self.pending.turns_left = False, self.pending.turns_left - 1
        if self.pending.turns_left == 0:
            self.pending = None

    def feedback(self, rows: Array, td_errors: Array) -> None:
        """Rollouts do not use TD errors."""

    def arrays(self) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        if self.local is not None:
            arrays["num_envs"] = np.asarray(self.local.num_envs)
        if self.local is not None and self.local.filling:
            rows, arrays["filling/valid"] = self.local.filled()
            arrays["filling/rows"] = np.frombuffer(rows.tobytes(), np.uint8).reshape(*rows.shape, -1)
        if self.pending is not None:
            columns = self.pending.rollout.columns
            arrays |= {f"pending/columns/{name}": np.array(column) for name, column in columns.items()}
            arrays |= {"pending/valid": np.array(self.pending.rollout.valid)}
            arrays |= {"pending/turns": np.asarray(self.pending.turns_left)}
            arrays |= {"pending/fresh": np.asarray(self.pending.fresh)}
        return arrays

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self.pending = None
        if "pending/valid" in arrays:
            rollout = RolloutBatch(select_prefix(arrays, "pending/columns/"), np.array(arrays["pending/valid"]))
            self.pending = PendingRollout(rollout, int(arrays["pending/turns"]), bool(arrays["pending/fresh"]))
        count = int(arrays.get("num_envs", 0))
        if count and (self.local is None or self.local.num_envs != count):
            self.attach(self.plan(0, count, count).open())
        if self.local is not None:
            self.local.abandon()
        if "filling/rows" in arrays and self.local is not None:
            rows = np.ascontiguousarray(arrays["filling/rows"]).view(self.schema.row).squeeze(-1)
            self.local.begin(self._updates())
            self.local.refill(rows, arrays["filling/valid"])


def side_by_side(rollouts: Sequence[Rollout]) -> RolloutBatch:
    """Rollouts of several collectors as one, their environments side by side."""
    rows, valid = rollouts[0].rows, rollouts[0].valid
    if len(rollouts) > 1:
        # As bytes: NumPy would join them field by field, and without the padding that keeps numbers aligned.
        whole = np.dtype((np.void, rows.dtype.itemsize))
        rows = np.concatenate([each.rows.view(whole) for each in rollouts], 1).view(rows.dtype)
        valid = np.concatenate([each.valid for each in rollouts], 1)
    return RolloutBatch({name: rows[name] for name in rows.dtype.names or ()}, valid)


def rollout_schema(spec: EnvSpec, state_size: int = 0) -> Schema:
    """Transitions, the log-probability of each action under the policy that acted, and its state before, if any."""
    state = (carry_field(state_size),) if state_size else ()
    return Schema.transitions(spec, (Field("log_prob", (), "float32"), *state))
