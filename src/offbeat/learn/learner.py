"""The learner: normalisers, schedules, metrics and counting around the updates of a backend; imports none."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offbeat import flat
from offbeat.algorithms.configs.groups import Normalisation, Optimisation, recurrence_of, schedules_of
from offbeat.errors import CheckpointError, OffbeatError, UsageError
from offbeat.learn.backend import Backend, Scalar
from offbeat.learn.rollout_columns import count_sequences, learnable
from offbeat.learn.saved_arrays import below, shape_differences
from offbeat.learn.schedules import make_schedule
from offbeat.learn.shared_statistics import GatheredPreprocessor, SharedStatistics
from offbeat.learn.statistics import Normaliser, Preprocessor, ReturnScale
from offbeat.ranks import Ranks
from offbeat.types import Array, Batches, Chunk, EnvSpec, Metrics, RolloutBatch

RESERVED = frozenset(
    (
        *("step", "update", "wall", "episodes", "return_100", "length_100", "success_100", "replay"),
        *("updates_per_step", "policy_lag", "policy_lag_seconds", "steps_per_second", "updates_per_second"),
        *("restarts", "dropped_rollouts", "stale_rollouts", "abandoned_rollouts"),
        *("learner_waited", "collectors_waited", "skipped_updates", "gradient_scale"),
    )
)
"""Metrics that a run logs itself."""
MOST_UNREAD = 16
"""Calls whose metrics are not read yet: a backend may still compute them, and reading would wait for it."""


class Learner:
    """One algorithm's updates, whatever computes them.

    groups: each group of parameters with a learning rate, and the prefix of its settings. scheduled: other settings
    that follow a schedule, and the setting that names it. planned_updates: how many updates the run will make, over
    which schedules run; `progress` overrides the share that is done, for a run whose updates cannot be planned.
    """

    def __init__(
        self,
        config: Any,
        spec: EnvSpec,
        backend: Backend,
        *,
        groups: Mapping[str, str],
        scheduled: Mapping[str, str] | None = None,
        seed: int = 0,
        dtype: type[np.floating] = np.float32,
        preprocessor: Preprocessor | None = None,
    ) -> None:
        self.config, self.spec, self.backend = config, spec, backend
        self.updates = 0
        self.planned_updates: int | None = None
        self.progress: float | None = None
        self.rate_factor = 1.0  # of an adaptive learning rate
        self._seed, self._dtype = seed, dtype
        normalisation = getattr(config, "normalisation", Normalisation())
        self._own_scale = float(normalisation.reward_scale)
        self.observations: Preprocessor | None = preprocessor
        if preprocessor is None and normalisation.normalise_observations:
            self.observations = Normaliser(spec.observation_size, normalisation.observation_clip, dtype)
        self.states: Normaliser | None = None
        if normalisation.normalise_observations and spec.state_size:
            self.states = Normaliser(spec.state_size, normalisation.observation_clip, dtype)
        self.returns = ReturnScale(config.returns.gamma) if normalisation.normalise_rewards else None
        self._observed = 0
        self.shared: SharedStatistics | None = None  # with several ranks
        self._scheduled = dict(scheduled or {})
        self._schedules = {name: self._schedule(name) for name in self._scheduled.values()}
        self._rate_schedules = {group: self._schedule(f"{prefix}schedule") for group, prefix in groups.items()}
        self._configured = {
            group: float(flat.value(config, f"{prefix}learning_rate")) for group, prefix in groups.items()
        }
        self._rates = dict(self._configured)
        self._reserved = RESERVED | {f"{group}_rate" for group in groups}
        self._sums: dict[str, Scalar] = {}
        self._counts: dict[str, int] = {}
        self._unread: deque[Mapping[str, Sequence[Scalar]]] = deque()  # metrics that may still be computed

    def _schedule(self, name: str) -> Any:
        optimisation = getattr(self.config, "optimisation", Optimisation())
        return make_schedule(name, flat.value(self.config, name), optimisation.schedule_kwargs, self.backend)

    def check_schedules(self) -> None:
        """Raises UsageError for a schedule over a run that has no end."""
        for name, value in schedules_of(flat.values(self.config)).items():
            if value != "constant" and self.planned_updates is None:
                raise UsageError(f"{name}={value!r} needs the length of the run: set total_steps or total_updates")

    @property
    def revision(self) -> tuple[int, int]:
        """Changes whenever the weights to act with may have changed."""
        return self.updates, self._observed

    # Learning rates.

    def _progress_at(self, updates: int) -> float:
        if self.progress is not None:
            return min(1.0, self.progress)
        return min(1.0, updates / self.planned_updates) if self.planned_updates else 0.0

    def _factors(self, updates: int) -> dict[str, float]:
        progress = self._progress_at(updates)
        return {
            group: float(schedule(progress, updates)) * self.rate_factor
            for group, schedule in self._rate_schedules.items()
        }

    def rates(self, ahead: int = 0) -> dict[str, float]:
        """The learning rate of each group for the next update, or for one `ahead` of it."""
        return {group: self._rates[group] * factor for group, factor in self._factors(self.updates + ahead).items()}

    def set_rate(self, rate: float, group: str | None = None) -> None:
        """Sets the rate of a group, or of all, from now on; the schedule continues from there.

        Where the schedule's factor is 0, as before a warm-up, `rate` is what the schedule multiplies.
        """
        if group is not None and group not in self._rates:
            raise UsageError(f"set_learning_rate: group={group!r} is none of {', '.join(self._rates)}")
        if not 0.0 <= rate < math.inf:
            raise UsageError(f"set_learning_rate: rate={rate!r} is out of range: it must be at least 0 and finite")
        for each, factor in self._factors(self.updates).items():
            if group in (None, each):
                self._rates[each] = rate / factor if factor else rate

    def own_rates(self) -> dict[str, float]:
        """What the schedule of each group multiplies."""
        return dict(self._rates)

    def take_rates(self, rates: Array) -> None:
        """Takes the `own_rates` of rank 0, in their order."""
        self._rates = {group: float(rate) for group, rate in zip(self._rates, rates, strict=True)}

    def changed_rates(self) -> dict[str, tuple[float, float]]:
        """The groups whose rate was set: the rate in the settings, and the one that the schedule multiplies instead."""
        return {
            group: (own, self._rates[group]) for group, own in self._configured.items() if self._rates[group] != own
        }

    def restore_rates(self, changed: Mapping[str, Sequence[float]]) -> None:
        """Restores rates that were set, except where the run resumes with another rate in its settings."""
        for group, (configured, rate) in changed.items():
            if self._configured.get(group) == configured:
                self._rates[group] = float(rate)

    # Statistics, once per fresh row.

    def observe(self, chunk: Chunk) -> None:
        """Updates the normalisers with new rows."""
        if self.returns is not None:
            self.returns.update(chunk)
        self.observe_observations(chunk)

    def observe_observations(self, chunk: Chunk) -> None:
        """Each row's observation, and the last of each episode."""
        if self.observations is None and self.states is None:
            return
        columns = chunk.columns
        ended = (columns["terminated"] + columns["truncated"]) > 0
        if self.observations is not None:
            self.observations.update(np.concatenate((columns["obs"], columns["next_obs"][ended])))
        if self.states is not None:
            self.states.update(np.concatenate((columns["state"], columns["next_state"][ended])))
        if self.shared is None:
            self._observed += len(chunk)
        else:
            self.shared.rows += len(chunk)

    def join(self, ranks: Ranks) -> None:
        """From now on this is one of several ranks: it takes the state of rank 0, and all update together."""
        join = getattr(self.backend, "join", None)
        if join is None:
            raise UsageError(f"several learners need a backend that can join them, which {self.backend.name} cannot")
        join(ranks)
        if self.observations is not None and not isinstance(self.observations, Normaliser):
            self.observations = GatheredPreprocessor(self.observations)
        self.shared = SharedStatistics(self.statistics(), ranks)

    def merge(self, found: Array) -> None:
        """Merges the fresh statistics of all ranks, (K, n), each as `shared.take_fresh` gave it."""
        assert self.shared is not None
        self._observed += self.shared.merge(found)

    def merge_all(self) -> None:
        """Gathers and merges them at once; nothing for a learner without others."""
        if self.shared is not None and not self.shared.empty:
            self.merge(self.shared.gather())

    def observe_rewards(self, rollout: RolloutBatch) -> None:
        """The rewards of a rollout, step by step."""
        if self.returns is not None:
            columns = rollout.columns
            ended = columns["terminated"] | columns["truncated"]
            self.returns.update_steps(columns["env"], columns["episode"], columns["reward"], ended, rollout.valid)

    @property
    def has_statistics(self) -> bool:
        """Whether observations were normalised by earlier ones so far."""
        return self._observed > 0

    @property
    def reward_scale(self) -> float:
        return self._own_scale * (1.0 if self.returns is None else self.returns.scale)

    def _preprocessed(self, name: str, column: Array) -> Array:
        part = self.states if name.endswith("state") else self.observations
        if part is None or not column.shape[-1]:
            return column
        found = part(column)
        if np.shape(found) != column.shape:
            raise OffbeatError(
                f"your preprocessor returned the shape {np.shape(found)} for {name} {column.shape}; keep the shape"
            )
        return found

    def _inputs(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        inputs, size = dict(columns), self.spec.observation_size
        packed = columns["obs"].shape[-1]
        for name in ("obs", "next_obs", "state", "next_state"):
            if name not in columns:
                continue
            if name.endswith("obs") and packed != size:
                inputs[name] = self._in_parts(name, columns[name], (0, packed) if name == "next_obs" else (0,))
            else:
                inputs[name] = self._preprocessed(name, columns[name])
        return inputs

    def _in_parts(self, name: str, column: Array, starts: tuple[int, ...]) -> Array:
        """Observations of sequences, packed with flags and states, which stay as they are (see `SequenceReplay`)."""
        if self.observations is None:
            return column
        parts = [slice(start, start + self.spec.observation_size) for start in starts]
        found = [self._preprocessed(name, column[..., part]) for part in parts]
        column = np.array(column, found[0].dtype)
        for part, values in zip(parts, found, strict=True):
            column[..., part] = values
        return column

    # Updates.

    def update(self, batches: Batches, noise: Array, td_errors: bool = False) -> Array | None:
        """One update for each of the K batches; metrics add up until `drain`. noise: (K, *backend.noise_shape).

        Returns absolute TD errors (K, B) where asked for.
        """
        columns = self._inputs(batches.columns)
        columns["reward"] = columns["reward"] * self.reward_scale
        rates = [self.rates(ahead) for ahead in range(len(batches))]
        result = self.backend.update(
            dataclasses.replace(batches, columns=columns),
            noise,
            rates,
            updates=self.updates,
            seed=self._seed + self.updates,
            td_errors=td_errors,
        )
        self.updates += len(batches)
        self._add(result.metrics)
        return result.td_errors

    def learn_rollout(self, rollout: RolloutBatch, rng: np.random.Generator, count: int) -> int:
        """Up to `count` updates with one rollout, all minibatches of all epochs; returns how many were made."""
        rows = int(rollout.valid.sum())
        if not rows:
            return 0
        config, (rate,) = self._with_schedules(), self.rates().values()
        inputs = RolloutBatch(self._inputs(rollout.columns), rollout.valid)
        prepared = learnable(inputs, self.reward_scale, getattr(config, "largest_reward", None), self._dtype)
        if (recurrence := recurrence_of(config)).recurrent:
            rows = count_sequences(rollout.valid, recurrence.sequence_length)
        orders = np.stack([rng.permutation(rows) for _ in range(config.rollouts.epochs)])
        counted = {"count": count, "updates": self.updates, "seed": self._seed + self.updates}
        result = self.backend.learn_rollout(config, prepared, orders, rate, **counted)
        if rate > 0.0:
            self.rate_factor *= result.rate / rate
        self.updates += result.updates
        self._add(result.metrics)
        return result.updates

    def _with_schedules(self) -> Any:
        """The settings with scheduled values as they are now."""
        progress = self._progress_at(self.updates)
        changes = {
            name: flat.value(self.config, name) * self._schedules[schedule](progress, self.updates)
            for name, schedule in self._scheduled.items()
            if flat.value(self.config, schedule) != "constant"
        }
        return flat.overlay(self.config, changes) if changes else self.config

    # Metrics.

    def _add(self, metrics: Mapping[str, Sequence[Scalar]]) -> None:
        if wrong := self._reserved & metrics.keys():
            raise OffbeatError(
                f"update returned the metric {min(wrong)!r}, which the run logs itself; use another name"
            )
        self._unread.append(metrics)
        if len(self._unread) > MOST_UNREAD:
            self._read(self._unread.popleft())

    def _read(self, metrics: Mapping[str, Sequence[Scalar]]) -> None:
        for name, values in metrics.items():
            for value in values:
                self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + len(values)

    def _read_all(self) -> None:
        while self._unread:
            self._read(self._unread.popleft())

    def drain(self) -> Metrics:
        """The mean of each metric since the last call."""
        self._read_all()
        sums, counts, self._sums, self._counts = self._sums, self._counts, {}, {}
        return {name: float(total) / counts[name] for name, total in sums.items()}

    def counters(self) -> Metrics:
        """Numbers of the backend since the run began; none for most."""
        return dict(getattr(self.backend, "counters", dict)())

    def pending(self) -> dict[str, Any]:
        """The metrics not drained yet, as JSON, so that a resumed run logs what an uninterrupted one logs."""
        self._read_all()
        return {name: [float(total), self._counts[name]] for name, total in self._sums.items()}

    def restore_pending(self, pending: Mapping[str, Any]) -> None:
        self._unread.clear()
        self._sums = {name: total for name, (total, _) in pending.items()}
        self._counts = {name: count for name, (_, count) in pending.items()}

    # Weights and state.

    def weights(self) -> dict[str, Array]:
        """A copy of what a policy needs to act."""
        weights = self.backend.weights()
        if isinstance(self.observations, Normaliser):
            return weights | self.observations.acting_arrays()
        if self.observations is not None:
            own = self.observations.arrays()
            weights |= {f"preprocessor/{name}": np.array(array) for name, array in own.items()}
        return weights

    def statistics(self) -> dict[str, Any]:
        """The parts that learn from the data itself, by name."""
        parts = {"observations": self.observations, "states": self.states, "returns": self.returns}
        return {name: part for name, part in parts.items() if part is not None}

    def arrays(self) -> dict[str, Array]:
        """The whole state by name."""
        arrays = self.backend.arrays()
        arrays["updates"], arrays["observed"] = np.asarray(self.updates), np.asarray(self._observed)
        arrays["rate_factor"] = np.asarray(self.rate_factor)
        arrays["progress"] = np.asarray(-1.0 if self.progress is None else self.progress)
        for name, part in self.statistics().items():
            arrays |= {f"{name}/{each}": np.array(array) for each, array in part.arrays().items()}
        return arrays

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Sets the state to a saved one; the error lists arrays that are missing, left over or of another shape."""
        mine = self.arrays()
        # Statistics may have a shape that depends on the data seen so far, and so may a backend's own arrays.
        growing = ("returns/", "observations/", *self.backend.growing)
        free = {name for name in mine.keys() & arrays.keys() if name.startswith(growing)}
        fixed = [{name: each[name] for name in each.keys() - free} for each in (arrays, mine)]
        differences = shape_differences(*fixed)
        if differences:
            more = f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
            raise CheckpointError(
                f"the checkpoint does not fit this {self.config.__class__.__name__}: {'; '.join(differences[:5])}{more}"
                ". Resume with the settings (hidden, critics, environment, ...) that the run was made with"
            )
        self.backend.restore({name: arrays[name] for name in self.backend.arrays()})
        self.updates, self._observed = int(arrays["updates"]), int(arrays["observed"])
        self.rate_factor = float(arrays["rate_factor"])
        if self.progress is not None and arrays["progress"] >= 0:
            self.progress = float(arrays["progress"])
        for name, part in self.statistics().items():
            part.restore(below(arrays, f"{name}/"))
        if self.shared is not None:
            self.shared.discard_fresh()
