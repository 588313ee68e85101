"""Training: the learner, what it learns from, its pace and its random streams, as one value that can be saved.

The runner drives it through a run; `Agent` is its face for a loop of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from offbeat import flat
from offbeat import settings as settings_module
from offbeat.algorithms.configs import Config
from offbeat.algorithms.configs.exploration import describe, own_maker
from offbeat.algorithms.configs.groups import own_acting_module, recurrence_of
from offbeat.algorithms.registry import ALGORITHMS, find
from offbeat.collect.ledger import ChunkLedger
from offbeat.errors import UsageError
from offbeat.learn.backends import make_backend
from offbeat.learn.learner import Learner
from offbeat.learn.statistics import Preprocessor
from offbeat.policies import Policy, choose_backend, make_policy, widths
from offbeat.ranks import ALONE, Ranks
from offbeat.references import make_own, name_of, resolve
from offbeat.replay.rollouts import Rollouts
from offbeat.replay.shard import Shard
from offbeat.run.agreement import Agreement
from offbeat.run.compatibility import check_backend, check_compatible
from offbeat.run.experience import (
    check_batches,
    check_weight,
    dtype_of,
    from_replay,
    from_rollouts,
    own_arrays,
    replay_settings,
)
from offbeat.run.observe_arguments import logged_number
from offbeat.run.pace import RolloutPace
from offbeat.run.snapshot import Snapshot
from offbeat.run.trials import ROWS, try_description, try_document, try_exploration, try_preprocessor
from offbeat.run.versions import versions
from offbeat.streams import Streams
from offbeat.trace import NO_TRACE, Trace
from offbeat.types import Array, Batches, Chunk, EnvSpec, RolloutBatch, select_prefix
from offbeat.weights.publication import Publication

ROWS_PER_CALL = 4_096
"""Updates are made several at a time, as long as their batches together have about this many rows: a larger gather
would leave the processor's cache before it is used."""


class Training:
    """has_end: whether total_steps or total_updates say how long it lasts. num_envs: as the settings say if None.

    one_thread: whether NumPy is held to one thread, as in a run. ranks: the learners that update together; `config`
    then has the settings of this one, and `recorded` those of the run. steps: environment steps taken in, over all
    ranks. own_steps: those of this rank. logged: numbers of the user's own, for the next log line.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        *,
        num_envs: int | None = None,
        has_end: bool = True,
        one_thread: bool = True,
        ranks: Ranks = ALONE,
        recorded: Config | None = None,
    ) -> None:
        self.ranks, self.recorded = ranks, config if recorded is None else recorded
        self.config, self.spec, self._one_thread = config, spec, one_thread
        run = config.run
        self.trace: Trace = NO_TRACE
        self.streams = Streams(run.start.seed)
        self.algorithm = find(config.algorithm)
        own = flat.values(config.learner).get("preprocessor")
        self._make_preprocessor = None if own is None else resolve(own, "preprocessor")
        self._preprocessor = name_of(own)
        backend = make_backend(self.algorithm, config, spec, self.streams.initial)
        self.learner = Learner(
            config.learner,
            spec,
            backend,
            groups=self.algorithm.groups,
            scheduled=self.algorithm.scheduled,
            seed=int(self.streams.initial.integers(2**62)),
            dtype=dtype_of(config),
            preprocessor=None if own is None else make_own(own, "preprocessor", Preprocessor, spec),
        )
        if self.algorithm.learns_from == "rollouts":
            self.experience, self.pace = from_rollouts(
                self.algorithm,
                config,
                spec,
                lambda: self.learner.updates,
                num_envs or run.environment.num_envs,
                getattr(backend, "state_size", 0),
            )
        else:
            self.experience, self.pace = from_replay(config, spec, has_end, getattr(backend, "state_size", 0))
        if has_end:
            self._plan()
        self.learner.check_schedules()
        self.ledger = ChunkLedger()
        self.steps = self.own_steps = self._counted_steps = 0
        self._checked_batches = False
        self.logged: dict[str, float] = {}
        self._policies: dict[int, Policy] = {}
        self._try_parts()
        self._published: Publication | None = None
        self._revision = (-1, -1)  # of the learner, when it was published
        self.agreement: Agreement | None = None  # with several ranks
        if ranks.size > 1:
            self.learner.join(ranks)
            self.agreement = Agreement(self, ranks)

    def _try_parts(self) -> None:
        """Raises UsageError for a description, a preprocessor or an exploration of the user's that could not act."""
        if self._make_preprocessor is not None and self.learner.observations is not None:
            try_preprocessor(self.learner.observations, self.spec)
        weights, backend, description = self.learner.weights(), self.learner.backend, self.policy_description()
        try_document(description, self.spec, weights, self.algorithm)
        own = self.algorithm.name not in ALGORITHMS and hasattr(backend, "acting_outputs")
        if own and description["kind"] != "module":
            try_description(description, backend, self.spec)
        if own_maker(getattr(self.config.learner, "exploration", None)) is not None:
            stored = [name for name in self.experience.schema.names if name == "carry"]
            try_exploration(self.policy_factory(ROWS)(), self.spec, weights, stored)

    def _plan(self) -> None:
        run = self.config.run
        planned = self.pace.planned(run.length.total_steps)
        total = run.length.total_updates
        self.learner.planned_updates = planned if total is None else min(planned, total)
        if self.pace.by_steps:
            self.learner.progress = 0.0

    @property
    def shards(self) -> Mapping[str, Shard]:
        return self.experience.shards

    @property
    def random_steps(self) -> int:
        """The number of first steps that act uniformly at random."""
        return self.config.run.pace.random_steps if self.algorithm.learns_from == "replay" else 0

    @property
    def recurrent(self) -> bool:
        """Whether the networks have a recurrent state."""
        return recurrence_of(self.config.learner).recurrent

    # Data in.

    def take(self, chunk: Chunk, *, check_key: bool = True) -> bool:
        """Counts stored rows and updates the normalisers; False for rows that were counted before, by their key."""
        if check_key and not self.ledger.accept(chunk):
            return False
        self._count(len(chunk))
        if self.algorithm.learns_from == "replay":
            self.learner.observe(chunk)
        else:
            self.experience.ready()  # takes over the rollout that these rows complete, so that a checkpoint holds it
        return True

    def _count(self, rows: int) -> None:
        self.own_steps += rows
        if self.agreement is None:
            self.steps += rows

    def take_fresh_steps(self) -> int:
        """The steps of this rank since the last call."""
        fresh, self._counted_steps = self.own_steps - self._counted_steps, self.own_steps
        return fresh

    # Updates.

    def due(self, oldest_version: int | None = None) -> int:
        """Updates to make now. oldest_version: of the weights that act at this moment, where they may be old."""
        updates, total = self.learner.updates, self.config.run.length.total_updates
        due = self.pace.due(self.steps, updates, oldest_version)
        if due == 0 or not self._ready():
            return 0
        return due if total is None else min(due, total - updates)

    def ahead(self) -> int:
        """Environment steps that collectors may have made; more while there is nothing to learn from yet."""
        ahead = self.pace.ahead(self.learner.updates)
        return ahead if ahead >= self.steps or self._ready() else self.steps

    def own_share(self, steps: int) -> int:
        """Steps that this rank may have made, where all ranks together may have made `steps`."""
        return steps if self.agreement is None else self.own_steps + (steps - self.steps) // self.ranks.size

    def _ready(self) -> bool:
        """Whether there is something to learn from: on every rank, at their last meeting."""
        return self.experience.ready() if self.agreement is None else self.agreement.ready

    @property
    def unfinished(self) -> bool:
        """Whether a rollout was begun that can be learned from only when it is complete."""
        return self.experience.unfinished if self.agreement is None else self.agreement.unfinished

    def learn(self, count: int) -> int:
        """Makes up to `count` updates and returns how many; their metrics add up in the learner."""
        if self.algorithm.learns_from == "rollouts":
            return self._learn_rollout(count)
        experience, learner, made = self.experience, self.learner, 0
        size = max(learner.backend.updates_per_call, ROWS_PER_CALL // replay_settings(self.config).batch_rows)
        if self.pace.by_steps:
            learner.progress = self._share_done(self.steps)
        while made < count:
            group = min(size, count - made)
            with self.trace("sample"):
                batches = self._drawn(group)
                noise = self._noise(group)
            with self.trace("update"):
                td_errors = learner.update(batches, noise, experience.wants_td_errors)
            if td_errors is not None:
                experience.feedback(batches.rows, td_errors)
            made += group
        return made

    def learn_from(self, batches: Batches) -> None:
        """One update with each of the batches, from a replay that is not ours."""
        self.learner.update(batches, self._noise(len(batches)))

    def _noise(self, count: int) -> Array:
        shape = count, *self.learner.backend.noise_shape
        return np.asarray(self.streams.noise.standard_normal(shape, dtype_of(self.config)))

    def _drawn(self, count: int) -> Batches:
        """Batches for `count` updates; the first ones are checked, because the replay may be the user's own."""
        if not self.experience.ready():
            raise UsageError("replay is empty: collect or observe at least one transition before an update")
        batches = cast(Batches, self.experience.draw(self.streams.sampling, count))
        if not self._checked_batches or len(batches) != count:
            check_batches(batches, count, replay_settings(self.config))
            own_arrays(self.experience)  # now, and not at the first checkpoint
            self._checked_batches = True
        if batches.weight is not None:
            check_weight(batches.weight)
        return batches

    def _learn_rollout(self, count: int) -> int:
        """A turn with the pending rollout.

        Its observations enter the statistics after its first turn: during the turn they are normalised as they were
        when it was collected. The very first rollout enters before its turn, because there are no statistics yet.
        """
        experience, learner = self.experience, self.learner
        assert isinstance(experience, Rollouts)
        if count == 0 or experience.pending is None:
            return 0
        rollout, fresh = experience.draw(self.streams.sampling, count), experience.pending.fresh
        least = rows = int(rollout.valid.sum())
        if self.agreement is not None:
            least, rows = self.agreement.rows(rows)
        learner.progress = self._share_done(self.steps - rows)
        before = fresh and not learner.has_statistics
        if fresh:
            learner.observe_rewards(rollout)
        if before:
            learner.observe_observations(rollout.chunk())
        learner.merge_all()
        with self.trace("update"):
            made = learner.learn_rollout(rollout, self.streams.sampling, count) if least else 0
        if fresh and not before:
            learner.observe_observations(rollout.chunk())
        learner.merge_all()
        experience.finish_turn()
        return made

    def _share_done(self, steps: int) -> float:
        run = self.config.run
        by_steps = steps / self.pace.end(run.length.total_steps)
        return (
            by_steps
            if run.length.total_updates is None
            else max(by_steps, self.learner.updates / run.length.total_updates)
        )

    def set_rollout_envs(self, num_envs: int) -> None:
        """Sets how many environments a rollout has, once a loop of the user's own has shown it; 0 where it has none."""
        if num_envs and isinstance(self.pace, RolloutPace):
            self.pace = replace(self.pace, num_envs=num_envs * self.ranks.size)

    def wants_rollout(self) -> bool:
        """Whether the rollout before has been learned from."""
        return isinstance(self.experience, Rollouts) and self.experience.wants()

    def hold(self, rollout: RolloutBatch) -> None:
        """Takes a rollout that was collected elsewhere, to be learned from next."""
        assert isinstance(self.experience, Rollouts)
        self.experience.hold_batch(rollout)
        self._count(int(rollout.valid.sum()))

    # Acting.

    def publication(self) -> Publication:
        """The weights to act with now; the same object until they change."""
        if self._published is None or self._revision != self.learner.revision:
            self._published = Publication(self.learner.updates, self.learner.weights())
            self._revision = self.learner.revision
        return self._published

    def policy(self, num_envs: int) -> Policy:
        """The policy that acts for `num_envs` environments; it has no weights before `load`."""
        if num_envs not in self._policies:
            self._policies[num_envs] = self.policy_factory(num_envs)()
        return self._policies[num_envs]

    def policy_factory(self, num_envs: int, **options: int) -> Callable[[], Policy]:
        """Makes such a policy, in this process or in another. options: as for `make_policy`."""
        own, explore = self._own_actor, own_maker(getattr(self.config.learner, "exploration", None))
        return partial(
            make_policy,
            self.policy_description(),
            num_envs=num_envs,
            acting=self.acts_in(num_envs),
            spec=self.spec,
            actor=None if own is None else resolve(own, self.algorithm.acts_with),
            explore=None if explore is None else resolve(explore, "exploration"),
            preprocessor=self._make_preprocessor,
            **options,
        )

    def policy_description(self) -> dict[str, Any]:
        """What `make_policy` needs beside the weights, as JSON."""
        description, own = self.learner.backend.policy_description(), self.config.learner
        if isinstance(description, dict) and hasattr(own, "exploration"):
            description = description | {"exploration": describe(own.exploration)}
        return description if self._make_preprocessor is None else description | {"preprocessor": self._preprocessor}

    @property
    def _own_actor(self) -> Any:
        """The user's own module that acts, or None."""
        return own_acting_module(flat.values(self.config.learner), self.algorithm.acts_with)

    def acts_in(self, num_envs: int) -> str:
        """numpy, torch or jax: what the policy for so many environments computes with."""
        if self._own_actor is not None:
            return self.learner.backend.name
        run, hidden = self.config.run, widths(self.policy_description(), self.config.learner.networks.hidden)
        return choose_backend(run.collection.acting, num_envs, hidden, one_thread=self._one_thread)

    # Numbers of the user's own.

    def log(self, name: str, value: Any) -> None:
        """The last value under a name is in the next log line of a run, in every logger."""
        self.logged[name] = logged_number(name, value)

    def take_logged(self) -> dict[str, float]:
        """What was logged since the last call."""
        logged, self.logged = self.logged, {}
        return logged

    # Saving.

    def snapshot(self) -> Snapshot:
        arrays = {f"learner/{name}": array for name, array in self.learner.arrays().items()}
        arrays |= {f"experience/{name}": array for name, array in own_arrays(self.experience).items()}
        values = {"steps": self.steps, "streams": self.streams.state(), "chunks": self.ledger.state()}
        if changed := self.learner.changed_rates():
            values["rates"] = changed
        if self.own_steps != self.steps:
            values["own_steps"] = self.own_steps
        if self.ranks.size == 1 and self.config.run.start.seed != self.recorded.run.start.seed:
            values["seeds"] = [self.config.run.start.seed]
        notes = {
            "algorithm": self.config.algorithm,
            "config": settings_module.flatten(self.recorded),
            "spec": self.spec.to_json(),
            "policy": self.policy_description(),
            "pending": self.learner.pending(),
            "logged": dict(self.logged),
            "versions": versions(),
        }
        return Snapshot(arrays, values, notes)

    def restore(self, snapshot: Snapshot) -> None:
        """Everything but replay, which `Checkpoints.load_replay` fills."""
        check_compatible(snapshot.notes, self.config.algorithm, self.spec)
        check_backend(snapshot.notes, self.config.run.compute.backend)
        self.learner.restore(select_prefix(snapshot.arrays, "learner/"))
        self.experience.restore(select_prefix(snapshot.arrays, "experience/"))
        self.learner.restore_pending(snapshot.notes["pending"])
        self.learner.restore_rates(snapshot.values.get("rates", {}))
        self.logged = dict(snapshot.notes["logged"])
        self.ledger.restore(snapshot.values["chunks"])
        self.steps = int(snapshot.values["steps"])
        self.own_steps = self._counted_steps = int(snapshot.values.get("own_steps", self.steps))
        self.streams.restore(snapshot.values["streams"])
        self._published = None
