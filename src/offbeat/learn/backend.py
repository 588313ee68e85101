"""The protocol between the learner and what computes its updates: torch, JAX, ..."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from offbeat.errors import OffbeatError, UsageError
from offbeat.trace import Trace
from offbeat.types import Array, Batches, EnvSpec, RolloutBatch

Scalar = Any
"""A number that may still be on its device; `float` waits for it."""


@dataclass(frozen=True)
class UpdateResult:
    """What K updates gave.

    metrics: the values of each, in the order of the updates; an update that does not have a metric (a delayed actor)
    has no value of it. td_errors (K, B): absolute TD error per row, averaged over critics; None unless asked for.
    """

    metrics: Mapping[str, Sequence[Scalar]]
    td_errors: Array | None = None


@dataclass(frozen=True)
class RolloutResult:
    """What a turn with one rollout gave. updates: how many were made. rate: the learning rate after an adaptive one."""

    updates: int
    rate: float
    metrics: Mapping[str, Sequence[Scalar]] = field(default_factory=dict)


class Backend(Protocol):
    """The state of one algorithm on one device, and the updates that change it.

    name: torch, jax. noise_shape: standard normal draws that one update takes. networks: the parts of the state that
    are networks, by their prefix in `arrays`. growing: prefixes of arrays whose shape may differ from a saved one.
    updates_per_call: it should make at least so many in one call, where they are due, however large the batches are.
    One with recurrent networks also has state_size: the numbers in the state of the network that acts. One that counts
    anything has counters(): numbers for the log, by name.
    """

    name: str
    device: str
    noise_shape: tuple[int, ...]
    networks: tuple[str, ...]
    growing: tuple[str, ...]
    updates_per_call: int

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
        """K updates, in order. Observations are normalised and rewards scaled already.

        noise: (K, *noise_shape). rates: learning rate of each group, for each of the K updates. updates: how many were
        made before. seed: update i seeds the networks' own randomness (dropout) with seed + i.
        """
        ...

    def learn_rollout(
        self, config: Any, rollout: RolloutBatch, orders: Array, rate: float, *, count: int, updates: int, seed: int
    ) -> RolloutResult:
        """Up to `count` updates with one rollout: its advantages, then all minibatches of all epochs.

        config: the algorithm's settings, with scheduled ones as they are now. orders (epochs, R): the rows' order in
        each epoch. `truncated` in the rollout's columns is also set where an episode was broken off.
        """
        ...

    def weights(self) -> dict[str, Array]:
        """A copy of the network that acts, as `actor/...`."""
        ...

    def policy_description(self) -> dict[str, Any]:
        """What `policies.make_policy` needs beside the weights."""
        ...

    def arrays(self) -> dict[str, Array]:
        """The whole state by name; derived from the state value, so that nothing can be forgotten."""
        ...

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Sets the state to saved arrays, whose names and shapes fit."""
        ...

    def scheduler(self, kind: Any, options: Mapping[str, Any]) -> Callable[[int], float]:
        """The factor that a scheduler class or a factory of this backend's library gives after a number of updates."""
        ...

    def trace_parts(self, trace: Trace) -> None:
        """Records each part (`update_...`) of an update from now on."""
        ...


# What a user's algorithm may get wrong, on any backend.


class Rates(dict[str, Any]):
    """Learning rates by name, for a user's update, which may ask for one that is not there."""

    def __missing__(self, name: Any) -> Any:
        raise OffbeatError(
            f"update reads rates[{name!r}], but groups of the Algorithm has only {', '.join(self) or 'none'}; add it "
            "there, with its settings, or correct the name"
        )


def make_state(module: Any, config: Any, spec: EnvSpec, *others: Any) -> Any:
    """The state that an algorithm's `init` makes. others: its further arguments."""
    try:
        state = module.init(config, spec, *others)
    except AttributeError as error:
        if error.obj is not config:
            raise
        raise UsageError(
            f"init reads config.{error.name}, but {type(config).__name__} has no such group or setting; "
            "add it, for example optimisation: groups.Optimisation = group(groups.Optimisation)"
        ) from error
    if state is None:
        raise UsageError("init of the algorithm returned None; return the state")
    return state


def check_noise_shape(shape: Any) -> None:
    if not isinstance(shape, tuple) or not all(isinstance(size, int) for size in shape):
        raise UsageError(
            f"noise_shape returned {shape!r}; return a tuple of whole numbers, the whole shape of the "
            "noise of an update, for example (config.replay.batch_size, spec.action_size)"
        )


def check_acts_with(acts_with: str, networks: Collection[str]) -> None:
    if acts_with not in networks:
        raise UsageError(
            f"the state that init returned has no network {acts_with!r} to act with, but {sorted(networks)}; name "
            "one so, or set acts_with in the Algorithm"
        )
