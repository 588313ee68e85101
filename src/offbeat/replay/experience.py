"""The protocol of what an update learns from: replay or rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from offbeat.errors import UsageError
from offbeat.replay.shard import Shard
from offbeat.replay.stores import Store, StorePlan
from offbeat.types import Array, Batches, RolloutBatch, Schema


class Experience(Protocol):
    """Stores that collectors fill, and batches drawn from them.

    shards: by name, the stores that a checkpoint keeps in segments. wants_td_errors: whether to call `feedback`.
    """

    schema: Schema
    shards: dict[str, Shard]
    wants_td_errors: bool

    def __len__(self) -> int:
        """Rows that can be learned from."""
        ...

    def ready(self) -> bool:
        """Whether there is something to learn from."""
        ...

    @property
    def unfinished(self) -> bool:
        """Whether something was begun that can be learned from only when it is complete."""
        ...

    def plan(self, worker: int, num_envs: int, total_envs: int) -> StorePlan:
        """The store of a collector that steps `num_envs` of all environments."""
        ...

    def attach(self, store: Store) -> None:
        """Adds the store of a collector, at any time during a run."""
        ...

    def draw(self, rng: np.random.Generator, count: int) -> Batches | RolloutBatch:
        """Batches for `count` updates; or the rollout to learn from next, with its own number of updates."""
        ...

    def feedback(self, rows: Array, td_errors: Array) -> None:
        """Absolute TD errors (K, B) of the rows (K, B) that were drawn last."""
        ...

    def arrays(self) -> dict[str, Array]:
        """What a checkpoint keeps beside the shards."""
        ...

    def restore(self, arrays: Mapping[str, Any]) -> None: ...


def attach(experience: Experience, store: Store) -> None:
    """Attaches a store; UsageError if a user's replay did not keep it: there would be no updates, and no error."""
    experience.attach(store)
    if isinstance(store, Shard) and not any(each is store for each in experience.shards.values()):
        raise UsageError(
            f"attach of {type(experience).__name__} did not keep the store in shards; call super().attach(store), or "
            "set self.shards[str(store.worker)] = store"
        )
