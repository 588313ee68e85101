"""A rollout as JAX arrays, and the compiled turns that learn from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from offbeat import flat
from offbeat.algorithms.jax.division import whole
from offbeat.algorithms.jax.rollout import RolloutArrays
from offbeat.learn.jax_compile import compiled
from offbeat.types import Array, EnvSpec, RolloutBatch

_OF_STEPS = {each.name for each in dataclasses.fields(RolloutArrays)}


class Turns:
    """The compiled program of an algorithm's `learn_rollout`: one for each shape (T, N) of rollouts.

    scheduled: settings that may change from turn to turn, which are arguments of the program.
    """

    def __init__(self, module: Any, spec: EnvSpec, scheduled: Sequence[str], dtype: np.dtype[Any]) -> None:
        self._module, self._spec, self._scheduled, self._dtype = module, spec, tuple(scheduled), dtype
        self._config: Any = None
        self._program: Callable[..., Any] | None = None

    def learn(
        self,
        state: Any,
        config: Any,
        rollout: RolloutBatch,
        orders: Array,
        rate: float,
        *,
        count: int,
        updates: int,
        key: Array,
    ) -> tuple[Any, int, float, dict[str, Any]]:
        """The state after a turn, how many updates were made, the rate after them, and metrics."""
        now = {name: self._dtype.type(flat.value(config, name)) for name in self._scheduled}
        fixed = flat.overlay(config, dict.fromkeys(self._scheduled))
        if self._program is None or fixed != self._config:
            self._config, self._program = fixed, self._compiled(fixed)
        steps, order = arrays_of(rollout, orders, config.rollouts.rollout_steps, self._dtype, key)
        given = self._dtype.type(rate)
        state, made, found, metrics = self._program(state, now, steps, order, given, min(count, order.size), updates)
        # The rate itself, not its nearest number in the learner's precision, where it did not change.
        return state, int(made), rate if float(found) == float(given) else float(found), metrics

    def _compiled(self, config: Any) -> Callable[..., Any]:
        def turn(state: Any, now: dict[str, Any], *given: Any) -> Any:
            steps, orders, rate, count, updates = given
            steps = dataclasses.replace(steps, key=jax.random.wrap_key_data(steps.key, impl="threefry2x32"))
            current = flat.overlay(config, now)
            found = self._module.learn_rollout(state, current, self._spec, steps, orders, rate, count, updates)
            return whole(found[0]), *found[1:]

        return compiled(turn, 0)


def arrays_of(
    rollout: RolloutBatch, orders: Array, steps: int, dtype: np.dtype[Any], key: Array
) -> tuple[RolloutArrays, Array]:
    """The rollout with at least `steps` steps, of which those after its own are not valid, and the orders that fit it.

    orders (epochs, R): of the valid rows among themselves. Returned as (epochs, T * N): of all rows, and any valid ones
    where an epoch has ended.
    """
    columns = {name: _kind(column, dtype) for name, column in rollout.columns.items() if name in _OF_STEPS}
    valid = np.asarray(rollout.valid)
    terminated, truncated = columns["terminated"], columns["truncated"].copy()
    truncated[-1] |= ~terminated[-1]  # after the last row, the next value is that of its own next_obs
    columns |= {"truncated": truncated, "valid": valid}
    columns = {name: _lengthened(column, steps) for name, column in columns.items()}
    valid = columns["valid"]
    shape, count = valid.shape, valid.size
    empty = {name: np.zeros((*shape, 0), dtype) for name in ("state", "next_state")}
    rows, ends = (
        np.flatnonzero(each).astype(np.int32) for each in (valid, columns["terminated"] | columns["truncated"])
    )
    order = np.full((len(orders), count), rows[0])
    order[:, : len(rows)] = rows[np.asarray(orders)]
    made: dict[str, Any] = {"mask": np.zeros((*shape, 0), bool), **empty, **columns}
    made |= {"ends": np.append(ends, np.full(count - len(ends), ends[-1])), "end_count": np.int32(len(ends))}
    return RolloutArrays(**made, rows=np.int32(len(rows)), key=key), order  # type: ignore[arg-type]


def _kind(column: Array, dtype: np.dtype[Any]) -> Array:
    column = np.asarray(column)
    return column.astype(dtype, copy=False) if column.dtype.kind == "f" else column


def _lengthened(column: Array, steps: int) -> Array:
    """With rows of zeros at its end, where it has fewer than so many."""
    missing = steps - len(column)
    return column if missing <= 0 else np.concatenate((column, np.zeros((missing, *column.shape[1:]), column.dtype)))
