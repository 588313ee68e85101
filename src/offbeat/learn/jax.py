"""The JAX backend: an algorithm's state as arrays on a device, and its updates in compiled loops."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offbeat import flat
from offbeat.algorithms.jax.batch import MOST_UPDATES, Batch
from offbeat.algorithms.jax.division import whole
from offbeat.algorithms.jax.memory import first_observations, state_size
from offbeat.errors import OffbeatError
from offbeat.learn.backend import Rates, RolloutResult, UpdateResult, check_acts_with, check_noise_shape, make_state
from offbeat.learn.jax_compile import compiled
from offbeat.learn.jax_devices import Devices
from offbeat.learn.jax_rollouts import Turns
from offbeat.learn.jax_schedules import schedule_factor
from offbeat.learn.jax_staging import Staging
from offbeat.learn.jax_state import checked_result, restored, state_arrays, state_networks
from offbeat.trace import Trace
from offbeat.types import Array, Batches, EnvSpec, RolloutBatch

ROWS_PER_CALL = 4_096
"""A compiled loop makes as many updates as have about this many rows, or fewer: how many is an argument of it."""
UPDATES_PER_CALL = 16
"""It makes so many at least, where they are due: each call takes new memory for its results, and its pages cost as much
as a third of an update with 8,192 rows. With recurrent networks, which take longer than that, 1 is enough."""


class JaxBackend:
    """`Backend` in JAX: an algorithm's module and its state. devices: how many, among which batches are divided.

    All updates of a call are one compiled loop, whose length is an argument: however many are made at a time, the
    same program makes them, so that a resumed run repeats every digit. The state is donated to it. A turn with a
    rollout is one program too. scheduled: settings that may change from turn to turn.
    """

    name = "jax"
    growing: tuple[str, ...] = ()

    def __init__(
        self,
        module: Any,
        config: Any,
        spec: EnvSpec,
        *,
        rng: np.random.Generator,
        device: str = "cpu",
        devices: int = 1,
        precision: str = "float32",
        acts_with: str = "actor",
        scheduled: Sequence[str] = (),
    ) -> None:
        self.module, self.config, self.spec = module, config, spec
        self._devices, self.dtype = Devices(device, devices), np.dtype(precision)
        self.device = self._devices.name
        with self._precision():
            made = make_state(module, config, spec, rng, self._devices.first, self.dtype)
            self.networks = tuple(state_networks(made))  # also checks the other parts
            # A copy of each: the target's arrays may be those of another network, and each is donated.
            self.state = jax.tree.map(lambda each: self._devices.put(np.array(each)), made)
        self.noise_shape: tuple[int, ...] = module.noise_shape(config, spec) if hasattr(module, "noise_shape") else ()
        check_noise_shape(self.noise_shape)
        check_acts_with(acts_with, self.networks)
        self._acting, self._critics = acts_with, flat.values(config).get("critics")
        self.state_size = state_size(state_networks(made)[acts_with])
        self.updates_per_call = 1 if self.state_size else UPDATES_PER_CALL
        self._staging: Staging | None = None
        self._loops: dict[bool, Callable[..., Any]] = {}
        self._turns = Turns(module, spec, scheduled, self.dtype)

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        """64-bit numbers are off in JAX unless they are asked for; minibatches are divided among the devices."""
        with jax.enable_x64(self.dtype == np.float64), self._devices.in_use():
            yield

    def use_config(self, config: Any) -> None:
        """Learns with other settings from now on, which are compiled anew."""
        self.config = config
        self._loops.clear()

    def update(
        self,
        batches: Batches,
        noise: Array,
        rates: Sequence[Mapping[str, float]],
        *,
        updates: int,
        seed: int,
        td_errors: bool,
    ) -> UpdateResult:
        if batches.valid is not None:
            raise ValueError("batches.valid is set, but the JAX algorithms learn from single transitions: pass None")
        _check_count(updates + len(batches))
        columns = dict(batches.columns)
        if batches.weight is not None:
            columns[_WEIGHT] = batches.weight
        most = max(self.updates_per_call, ROWS_PER_CALL // columns["reward"].shape[1])
        found = []
        with self._precision():
            for start in range(0, len(batches), most):
                part = slice(start, min(start + most, len(batches)))
                keys = [_key(seed + index) for index in range(part.start, part.stop)]
                given = {name: column[part] for name, column in columns.items()}
                given |= {_NOISE: noise[part], _KEYS: np.array(keys)}
                given |= {f"{_RATE}{name}": np.array([each[name] for each in rates[part]]) for name in rates[0]}
                found.append(self._learn(given, most, part.stop - part.start, updates + part.start, td_errors))
        metrics = {name: _Values([each[0][name] for each in found]) for name in found[0][0]}
        return UpdateResult(metrics, np.concatenate([each[1]() for each in found]) if td_errors else None)

    def _learn(
        self, given: Mapping[str, Array], most: int, count: int, updates: int, td_errors: bool
    ) -> tuple[dict[str, Callable[[], Array]], Callable[[], Array]]:
        """Up to `most` updates. Returns functions that wait for the values of each metric, and for the TD errors."""
        if self._staging is None or not self._staging.fits(given, most):
            self._staging = Staging(given, most, self.dtype, self._devices.first)
        if td_errors not in self._loops:
            self._loops[td_errors] = compiled(partial(self._loop, td_errors=td_errors), given["reward"].shape[1])
        rows = [name for name in given if name not in (_NOISE, _KEYS) and not name.startswith(_RATE)]
        arrays = self._devices.divide(self._staging.put(given), rows)
        self.state, metrics, errors = self._loops[td_errors](self.state, arrays, count, updates)
        self._staging.used_by(errors)
        waits: dict[str, Callable[[], Array]] = {
            name: partial(_values, value, count) for name, value in metrics.items()
        }
        return waits, lambda: np.asarray(errors)[:count]  # sliced by NumPy: JAX would compile each length

    def _loop(
        self, state: Any, arrays: dict[str, Any], count: Any, updates: Any, *, td_errors: bool
    ) -> tuple[Any, dict[str, Any], Any]:
        """The compiled part: `count` updates. arrays: (most, ...) each, of which the first `count` are used."""
        most = len(arrays[_KEYS])

        def one(index: Any, state: Any) -> tuple[Any, dict[str, Any], Any]:
            row = {name: jax.lax.dynamic_index_in_dim(each, index, keepdims=False) for name, each in arrays.items()}
            rates = {name.removeprefix(_RATE): row.pop(name) for name in list(row) if name.startswith(_RATE)}
            noise, batch = row.pop(_NOISE), _batch(row)
            given = Rates(rates)
            result = self.module.update(state, self.config, self.spec, batch, noise, given, updates + index)
            state, metrics, error = checked_result(result, state, len(batch), self._critics)
            error = jnp.abs(error) if error.ndim == 1 else jnp.abs(error).mean(0)
            return whole(state), metrics, error if td_errors else error[:1]

        def body(index: Any, carry: Any) -> Any:
            state, *collected = carry
            state, *found = one(index, state)
            return state, *jax.tree.map(lambda all_, each: all_.at[index].set(each), collected, found)

        shapes = jax.eval_shape(one, 0, state)[1:]
        empty = jax.tree.map(lambda each: jnp.zeros((most, *each.shape), each.dtype), shapes)
        state, metrics, errors = jax.lax.fori_loop(0, count, body, (state, *empty))
        return state, metrics, errors

    def learn_rollout(
        self, config: Any, rollout: RolloutBatch, orders: Array, rate: float, *, count: int, updates: int, seed: int
    ) -> RolloutResult:
        _check_count(updates + min(count, orders.size))
        with self._precision():
            self.state, made, rate, metrics = self._turns.learn(
                self.state, config, rollout, orders, rate, count=count, updates=updates, key=_key(seed)
            )
        read = {name: _Values([partial(_values, value, None)]) for name, value in metrics.items()}
        return RolloutResult(made, rate, read)

    def weights(self) -> dict[str, Array]:
        """Floating-point numbers as float32."""
        network = state_networks(self.state)[self._acting]
        pieces = network.layout.split(np.asarray(network.flat))
        return {f"actor/{name}": array.astype(np.float32) for name, array in pieces.items()}

    def acting_outputs(self, obs: Array) -> Array:
        """What the network that acts gives for observations (N, O), which are preprocessed already."""
        acting = state_networks(self.state)[self._acting]
        with self._precision():
            return np.asarray(acting(first_observations(acting, jnp.asarray(obs, self.dtype))))

    def policy_description(self) -> Any:
        description: Any = self.module.policy_description(self.config, self.spec)
        if not isinstance(description, dict):
            return description
        trunk = description.get("recurrent")
        if trunk is not None and trunk["kind"] == "own":
            return description | {"recurrent": {**trunk, "backend": "jax"}}
        return description | {"backend": "jax"} if description.get("kind") == "module" else description

    def arrays(self) -> dict[str, Array]:
        return {name: np.array(array) for name, array in state_arrays(self.state)}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        with self._precision():
            self.state = restored(self.state, arrays, self._devices.put)

    def scheduler(self, kind: Any, options: Mapping[str, Any]) -> Callable[[int], float]:
        return schedule_factor(kind, options)

    def trace_parts(self, trace: Trace) -> None:
        """A compiled update has no parts."""


_NOISE, _KEYS, _WEIGHT, _RATE = "noise ", "keys ", "weight ", "rate "
"""Beside the columns, whose names have no spaces."""


class _Values(Sequence[Any]):
    """The values of one metric, which are waited for when they are read."""

    def __init__(self, parts: Sequence[Callable[[], Array]]) -> None:
        self._parts: Sequence[Callable[[], Array]] = parts
        self._found: Array | None = None

    def _read(self) -> Array:
        if self._found is None:
            self._found, self._parts = np.concatenate([part() for part in self._parts]), ()
        return self._found

    def __len__(self) -> int:
        return len(self._read())

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]


def _values(value: Any, count: int | None) -> Array:
    """The first `count` values; of a pair with whether there was one, those that were."""
    if isinstance(value, tuple):
        values, there = (np.asarray(each)[:count] for each in value)
        return values[there]
    return np.asarray(value)[:count]


def _check_count(updates: int) -> None:
    if updates > MOST_UPDATES:
        raise OffbeatError(
            f"this run has made almost {MOST_UPDATES:,} updates, and JAX can count no more: go on with torch (offbeat "
            "convert RUN --backend torch)"
        )


def _key(seed: int) -> Array:
    """The data of a JAX random key."""
    return np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)


def _batch(row: dict[str, Any]) -> Batch:
    reward = row["reward"]
    nothing, no_mask = jnp.zeros((len(reward), 0), reward.dtype), jnp.ones((1, 0), bool)
    empty = {"state": nothing, "next_state": nothing, "mask": no_mask, "next_mask": no_mask}
    own = {each.name for each in dataclasses.fields(Batch)} & row.keys()
    key = jax.random.wrap_key_data(row.pop(_KEYS), impl="threefry2x32")
    weight = row.pop(_WEIGHT, None)
    found = {name: row.pop(name) for name in own}
    return Batch(**{**empty, **found}, weight=weight, extras=row, key=key)
