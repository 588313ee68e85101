"""The devices of a JAX learner: its state is on each of them, and every batch is divided among them by rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from offbeat.algorithms.jax.division import rows_divided_by
from offbeat.errors import UsageError

AXIS = "rows"


class Devices:
    """One device, or several of one kind. `first` is where batches arrive.

    Each device computes with its rows of a batch; XLA adds the sums over rows (losses, gradients) across devices, so
    that the state is the same on all of them.
    """

    def __init__(self, name: str, count: int = 1) -> None:
        found = choose_devices(name, count)
        self.first, self.name = found[0], ", ".join(map(str, found))
        self._mesh = Mesh(np.array(found), (AXIS,)) if count > 1 else None
        self._everywhere: Any = self.first if self._mesh is None else NamedSharding(self._mesh, PartitionSpec())

    def put(self, array: Any) -> Any:
        """An array of the state, on every device."""
        return jax.device_put(array, self._everywhere)

    def divide(self, arrays: Mapping[str, Any], by_rows: Collection[str]) -> dict[str, Any]:
        """Arrays of K batches; the rows (K, B, ...) of those in `by_rows` divided, the others on every device."""
        if self._mesh is None:
            return dict(arrays)
        rows = NamedSharding(self._mesh, PartitionSpec(None, AXIS))
        return jax.device_put(dict(arrays), {name: rows if name in by_rows else self._everywhere for name in arrays})

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Around the compilation of updates, in which `divided` and `whole` then refer to these devices."""
        with rows_divided_by(None if self._mesh is None else NamedSharding(self._mesh, PartitionSpec(AXIS))):
            yield


def choose_devices(name: str, count: int) -> list[Any]:
    """The device of a name, and those after it. `auto` is JAX's first one."""
    kind, _, number = name.partition(":")
    try:
        found = jax.devices() if kind == "auto" else jax.devices(kind)
        first = found[int(number or 0)]
    except (RuntimeError, IndexError, ValueError) as error:
        there = ", ".join(sorted({each.platform for each in jax.devices()}))
        raise UsageError(f"device={name!r}, but JAX sees only {there} here; use one of these, or auto") from error
    chosen = found[found.index(first) :][:count]
    if len(chosen) < count:
        raise UsageError(
            f"devices={count}, but JAX sees only {len(chosen)} from device={name} on; use devices={len(chosen)}. For a "
            f"test, XLA_FLAGS=--xla_force_host_platform_device_count={count} divides a CPU into so many devices"
        )
    return chosen
