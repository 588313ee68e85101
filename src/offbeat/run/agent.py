"""An agent: learner, replay, policy and random streams in one hand. The runner drives it; so may a loop of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import masks
from offbeat import settings as settings_module
from offbeat.algorithms.configs import PPO, Config
from offbeat.collect.inline import MOST_ENVIRONMENTS
from offbeat.errors import UsageError
from offbeat.learn.rollouts import RolloutLearner
from offbeat.learn.torch import Learner
from offbeat.policies import Policy, acts_in, make_policy
from offbeat.references import resolve
from offbeat.replay.shard import Shard
from offbeat.replay.uniform import Uniform
from offbeat.run.checkpoint import Checkpoints, Snapshot
from offbeat.run.environments import spec_of
from offbeat.run.observed import check, flags, shaped
from offbeat.run.same import check_same
from offbeat.run.snapshot import under
from offbeat.run.sources import ENDLESS, FromReplay, FromRollouts, Source, make_source
from offbeat.run.versions import versions
from offbeat.streams import Streams
from offbeat.trace import NO_TRACE, Trace
from offbeat.types import Array, Chunk, EnvSpec, Metrics
from offbeat.weights.publication import Publication


class Agent:
    """Acts, remembers, learns, saves and loads, for one algorithm and one kind of environment.

    env: an `EnvSpec`, a Gymnasium environment or vector environment, an id, or a factory. settings: as for
    `offbeat.train`.
    """

    def __init__(self, algorithm: str, env: Any, **settings: Any) -> None:
        for key in settings:
            if key in _OF_A_RUN:
                raise UsageError(f"{key} is a setting of a run; in a loop of your own it is yours to do: leave it out")
            if key in _OF_AN_ENVIRONMENT and isinstance(env, EnvSpec):
                raise UsageError(f"{key} has nothing to act on: an EnvSpec was given, and no environment is made")
        own = {key: settings[key] for key in _OF_AN_ENVIRONMENT if key in settings}
        spec = env if isinstance(env, EnvSpec) else spec_of(env, **own)
        has_end = bool(settings.get("total_steps") or settings.get("total_updates"))
        if has_end and not settings.get("total_steps"):
            settings["total_steps"] = ENDLESS  # a run's default would be the end of schedules
        self._prepare(settings_module.build(algorithm, {"env": spec.name, **settings}), spec, has_end)

    _in_a_run = False

    @classmethod
    def from_config(
        cls, config: Config, spec: EnvSpec, shards: Sequence[Shard] = (), num_envs: int | None = None
    ) -> Agent:
        """For a runner. shards: those that collectors write to; without any, the agent has one of its own.

        num_envs: environments that are stepped at once; None is as the config says.
        """
        agent = cls.__new__(cls)
        agent._in_a_run = True
        agent._prepare(config, spec, True, shards, num_envs)
        return agent

    def _prepare(
        self,
        config: Config,
        spec: EnvSpec,
        has_end: bool,
        shards: Sequence[Shard] = (),
        num_envs: int | None = None,
    ) -> None:
        run = config.run
        self.config, self.spec = config, spec
        self.trace: Trace = NO_TRACE
        self.streams = Streams(run.seed)
        kind = RolloutLearner if isinstance(config.learner, PPO) else Learner
        self.learner = kind(
            config.algorithm,
            config.learner,
            spec,
            rng=self.streams.initial,
            device=run.device,
            precision=run.precision,
        )
        self.source = make_source(config, spec, self.learner, self.streams, shards, num_envs)
        self.schema = self.source.schema
        if has_end:
            planned = self.source.planned(run.total_steps)
            self.learner.planned_updates = planned if run.total_updates is None else min(planned, run.total_updates)
        self.learner.check_schedules()
        self.steps = 0
        self.logged: dict[str, float] = {}
        self._policies: dict[int, Policy] = {}
        self._published: Publication | None = None
        self._moment = (-1, -1)  # updates and observations at which it was published
        self._saved: dict[Path, Checkpoints] = {}
        # Of an own loop: episode and step of each environment, what its policy remembers, and how it acted last.
        self._counts, self._carry = np.zeros((2, 0), np.int64), np.zeros((0, 0), np.float32)
        self._acted: tuple[Array, Mapping[str, Array], Array | None] | None = None

    @property
    def shards(self) -> Mapping[str, Shard]:
        return self.source.shards

    @property
    def shard(self) -> Shard:
        """The first shard of replay."""
        return self.source.shards["0"]

    @property
    def experience(self) -> Source | Uniform:
        """What is learned from: replay, to be sampled, or rollouts."""
        return self.source.replay if isinstance(self.source, FromReplay) else self.source

    # A loop of your own: act, observe, update.

    def act(self, obs: Any, deterministic: bool = False, *, mask: Any = None) -> Array:
        """Actions in the environment's own units for one observation, or for a stack of N.

        The first `random_steps` observed steps act uniformly at random, unless deterministic. Row i of a stack is
        environment i, whose exploration may remember: act for all environments at once where noise drifts.
        mask: the actions that are allowed, 1 or 0 for each, where there is a mask_key; a Dict observation may hold it.
        """
        rows, stack = self.spec.layout.read(obs)
        allowed = self._mask("mask", mask, obs, len(rows))
        if not deterministic and self.steps < self.source.random_steps:
            action = self.spec.random_actions(self.streams.acting, len(rows), allowed)
        else:
            policy = self.policy(len(rows))
            policy.load(self.publication().weights)
            rng = None if deterministic else self.streams.acting
            carry = self._carry if len(self._carry) == len(rows) else policy.initial_carry(len(rows))
            action, carry, extras = policy.act(rows, carry, rng, self.steps, allowed)
            if not deterministic:
                self._carry, self._acted = carry, (action, extras, allowed)
        action = self.spec.to_environment(action)
        return action if stack else action[0]

    def observe(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminated: Any,
        truncated: Any,
        *,
        state: Any = None,
        next_state: Any = None,
        mask: Any = None,
        next_mask: Any = None,
        envs: Any = None,
    ) -> None:
        """Remembers one transition, or N stacked ones.

        `next_obs` is the true successor (the final observation where an episode ended), `action` in the environment's
        own units. envs: which environment each row is from, 0..N-1 by default. state, next_state: privileged state.
        mask, next_mask: the actions that are allowed at obs and next_obs, as for `act`.
        Algorithms that learn from rollouts take a step of all environments that `act` has just acted for.
        """
        terminated, truncated = flags("terminated", terminated), flags("truncated", truncated)
        count = len(terminated)
        envs = np.arange(count) if envs is None else np.atleast_1d(np.asarray(envs, np.int64))
        if len(truncated) != count or envs.shape != (count,) or len(np.unique(envs)) != count:
            raise UsageError(
                f"observe: {count} terminated flags, {len(truncated)} truncated flags, environments {envs.tolist()}; "
                "there must be as many of each, and every environment once"
            )
        if envs.min() < 0 or envs.max() >= MOST_ENVIRONMENTS:
            raise UsageError(
                f"observe: envs={envs.tolist()}, but environments are numbered 0 to {MOST_ENVIRONMENTS - 1}"
            )
        if (missing := int(envs.max()) + 1 - self._counts.shape[1]) > 0:
            self._counts = np.pad(self._counts, ((0, 0), (0, missing)))
        columns: dict[str, Array] = {
            "obs": self._encode(obs, count),
            "action": self.spec.from_environment(shaped("action", action, (count, *self.spec.action_shape))),
            "reward": shaped("reward", reward, (count,)).astype(np.float32),
            "terminated": terminated.astype(np.float32),
            "truncated": truncated.astype(np.float32),
            "next_obs": self._encode(next_obs, count),
            "version": np.full(count, self.learner.updates),
            "env": envs,
            "episode": self._counts[0, envs],
            "step": self._counts[1, envs],
        }
        if self.spec.state_size:
            if state is None or next_state is None:
                raise UsageError("this agent's critic sees a privileged state: pass state= and next_state= to observe")
            columns["state"], columns["next_state"] = (
                shaped("state", each, (count, self.spec.state_size)).astype(np.float32) for each in (state, next_state)
            )
        allowed = self._mask("mask", mask, obs, count)
        following = self._mask("next_mask", next_mask, next_obs, count, terminated)
        if allowed is not None and following is not None:
            columns["mask"], columns["next_mask"] = allowed, following
        check(columns, self.spec)
        if isinstance(self.source, FromRollouts):
            columns |= self._as_acted(columns, envs, self.source)
        self._count(envs, terminated | truncated)
        self.add(Chunk(columns, sequence=self.steps))

    def _count(self, envs: Array, ended: Array) -> None:
        """One step of these environments; where an episode ended, memory begins afresh."""
        self._counts[0, envs] += ended
        self._counts[1, envs] = np.where(ended, 0, self._counts[1, envs] + 1)
        if ended.any() and self._carry.size:
            fresh = self.policy(len(self._carry)).initial_carry(len(self._carry))
            begun = [env for env in envs[ended] if env < len(fresh)]
            self._carry = self._carry.copy()
            self._carry[begun] = fresh[begun]

    def _mask(self, name: str, mask: Any, obs: Any, count: int, over: Sequence[bool] = ()) -> Array | None:
        """The mask (N, K) that was passed, checked; None where this agent has none."""
        if mask is not None and self.spec.mask_key is None:
            raise UsageError(f"{name} was given, but this agent learns without masks: make it with mask_key=")
        return masks.given(mask, obs, count, self.spec, name, over)

    def _as_acted(self, columns: Mapping[str, Array], envs: Array, source: FromRollouts) -> dict[str, Array]:
        """The action that was drawn, which the bounds may have clipped, and how likely it was."""
        if self.steps == 0:
            source.num_envs = len(envs)
        acted = self._acted
        if acted is None or len(envs) != source.num_envs or (envs != np.arange(len(envs))).any():
            raise UsageError(
                f"observe: {self.config.algorithm} learns from steps that it has acted in: call act, not "
                f"deterministic, for all {source.num_envs} environments, and then observe once for all"
            )
        (drawn, extras, mask), action = acted, columns["action"]
        given = self.spec.from_environment(self.spec.to_environment(drawn))
        if drawn.shape != action.shape or not np.allclose(given, action, atol=1e-4):
            raise UsageError("observe: these are not the actions that act has just given; pass those")
        if mask is not None and not np.array_equal(mask, columns["mask"]):
            raise UsageError("observe: mask is not the one that act was given; pass the same to both")
        self._acted = None
        return {"action": drawn, **extras}

    def update(self, count: int | None = None) -> Metrics:
        """Makes `count` updates, or as many as are due: by `updates_per_step` and `warmup_steps`, or when a rollout is
        complete, which has its turn as a whole. Returns mean metrics.
        """
        if count is None:
            count = self.source.due(self.steps, self.learner.updates)
        if count < 0:
            raise UsageError(f"update: count={count} is out of range: it must be at least 0")
        self.learn(count)
        return self.learner.drain() | self.take_logged()

    def log(self, name: str, value: Any) -> None:
        """A number of your own: the last one given under a name is in the next log line of a run, in every logger.

        In a loop of your own it is among the metrics that the next `update` returns.
        """
        if not isinstance(name, str) or not name:
            raise UsageError(f"log: name={name!r} must be text that is not empty")
        try:
            self.logged[name] = float(value)
        except (TypeError, ValueError) as error:
            raise UsageError(f"log: {name}={value!r} is not a number: {error}; pass one number") from error

    def take_logged(self) -> dict[str, float]:
        """What was logged since the last call."""
        logged, self.logged = self.logged, {}
        return logged

    def set_learning_rate(self, rate: float, group: str | None = None) -> None:
        """The learning rate from now on, of a group (actor, critic, ...) or of all; a schedule goes on from there.

        Checkpoints hold it. A run that goes on with another learning rate in its settings takes that one.
        """
        self.learner.set_rate(rate, group)

    def _encode(self, obs: Any, count: int) -> Array:
        rows, _ = self.spec.layout.read(obs)
        if len(rows) != count:
            raise UsageError(f"observe: {len(rows)} observations came with {count} terminated flags")
        return rows

    # What the runner calls.

    def add(self, chunk: Chunk) -> None:
        """Rows into what is learned from, and into the statistics that normalise."""
        self.source.add(chunk)
        self.steps += len(chunk)

    def take(self, chunk: Chunk) -> None:
        """Rows that are where they belong already, into the statistics that normalise."""
        self.steps += len(chunk)
        self.source.take(chunk)

    def learn(self, count: int) -> int:
        """Makes up to `count` updates, and returns how many; their metrics add up in the learner."""
        return self.source.learn(count, self.trace)

    def policy(self, num_envs: int) -> Policy:
        """The policy that acts for `num_envs` environments; it has no weights before `load`."""
        if num_envs not in self._policies:
            self._policies[num_envs] = self.policy_factory(num_envs)()
        return self._policies[num_envs]

    def policy_factory(self, num_envs: int, **options: int) -> Callable[[], Policy]:
        """Makes such a policy, in this process or in another. options: as for `make_policy`."""
        own = self.learner.own_acting
        return partial(
            make_policy,
            self.learner.policy_description(),
            num_envs=num_envs,
            acting=self.acts_in(num_envs),
            spec=self.spec,
            actor=None if own is None else resolve(own, self.config.learner.acts_with),
            **options,
        )

    def acts_in(self, num_envs: int) -> str:
        """What the policy for so many environments acts in."""
        if self.learner.own_acting is not None:
            return "torch"
        run, hidden = self.config.run, self.config.learner.hidden
        return acts_in(run.acting, num_envs, hidden, one_thread=self._in_a_run)

    def publication(self) -> Publication:
        """The acting weights of this moment; the same object until they change."""
        seen = self.learner.observations
        moment = self.learner.updates, 0 if seen is None else int(seen.count)
        if self._published is None or moment != self._moment:
            self._published, self._moment = Publication(self.learner.updates, self.learner.weights()), moment
        return self._published

    # Saving.

    def snapshot(self) -> Snapshot:
        arrays = {f"learner/{name}": array for name, array in self.learner.arrays().items()}
        arrays |= {f"source/{name}": array for name, array in self.source.arrays().items()}
        arrays |= {"loop": self._counts.copy(), "loop_carry": self._carry.copy()}
        values = {"steps": self.steps, "streams": self.streams.state()}
        if changed := self.learner.changed_rates():
            values["rates"] = changed
        notes = {
            "algorithm": self.config.algorithm,
            "config": settings_module.flatten(self.config),
            "spec": self.spec.to_json(),
            "policy": self.learner.policy_description(),
            "pending": self.learner.pending(),
            "logged": dict(self.logged),
            "versions": versions(),
        }
        return Snapshot(arrays, values, notes)

    def restore(self, snapshot: Snapshot) -> None:
        """Everything but replay, which `Checkpoints.load_replay` fills."""
        check_same(snapshot.notes, self.config.algorithm, self.spec)
        self.learner.restore(under(snapshot.arrays, "learner/"))
        self.source.restore(under(snapshot.arrays, "source/"))
        self.learner.restore_pending(snapshot.notes["pending"])
        self.learner.restore_rates(snapshot.values.get("rates", {}))
        self.logged = dict(snapshot.notes.get("logged", {}))  # checkpoints of before there was any have none
        self._counts, self._carry = np.array(snapshot.arrays["loop"]), np.array(snapshot.arrays["loop_carry"])
        self.steps = int(snapshot.values["steps"])
        self.streams.restore(snapshot.values["streams"])
        self._published = None

    def save(self, path: str | Path) -> Path:
        """A checkpoint, replay included, in the directory `path`; the earlier one stays until this one is whole."""
        directory = Path(path).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        # The object knows which rows are on disk already: a further save writes only what is new.
        keep = self.config.run.keep_checkpoints
        checkpoints = self._saved.setdefault(directory, Checkpoints(directory, keep=keep))
        checkpoints.save(self.snapshot(), self.shards, self.steps)
        return Path(path)

    def load(self, path: str | Path) -> None:
        """Takes over the newest checkpoint in `path`, made by an agent with the same settings."""
        directory = Path(path).resolve()
        checkpoints = Checkpoints(directory, keep=self.config.run.keep_checkpoints)
        snapshot = checkpoints.load("latest")
        self.restore(snapshot)
        checkpoints.load_replay("latest", self.shards)
        self._saved = {directory: checkpoints}


_OF_A_RUN = frozenset(
    (
        *("env", "num_envs", "max_episode_steps", "reward_shaping", "preset", "init_from"),
        *("out", "name", "logger", "quiet", "threads", "trace", "trace_cpu"),
        *("eval_every", "eval_episodes", "stop_return", "checkpoint_every", "log_every"),
        *("collectors", "slack", "collect_ahead", "max_policy_lag", "hang_seconds", "max_crashes"),
        *("queue", "when_full"),
    )
)
"""Settings that only a run heeds."""
_OF_AN_ENVIRONMENT = ("env_kwargs", "env_wrapper", "state_key", "mask_key")
