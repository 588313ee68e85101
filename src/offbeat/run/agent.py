"""An agent: learner, replay, policy and random streams in one hand. The runner drives it; so may a loop of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import settings as settings_module
from offbeat.algorithms.configs import Config
from offbeat.collect.inline import MOST_ENVIRONMENTS
from offbeat.errors import CheckpointError, UsageError
from offbeat.learn.torch import Learner, denormals_flushed
from offbeat.policies import Policy, make_policy
from offbeat.references import resolve
from offbeat.replay.shard import Shard
from offbeat.replay.uniform import Uniform
from offbeat.run.checkpoint import Checkpoints, Snapshot
from offbeat.run.pace import Pace
from offbeat.run.versions import versions
from offbeat.streams import Streams
from offbeat.trace import NO_TRACE, Trace
from offbeat.types import Array, Chunk, EnvSpec, Metrics, Schema
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
        spec = env if isinstance(env, EnvSpec) else _spec_of(env, settings)
        planned = settings.get("total_steps") or settings.get("total_updates")
        self._prepare(settings_module.build(algorithm, {"env": spec.name, **settings}), spec, has_end=bool(planned))

    @classmethod
    def from_config(cls, config: Config, spec: EnvSpec, shards: Sequence[Shard] = ()) -> Agent:
        """For a runner. shards: those that collectors write to; without any, the agent has one of its own."""
        agent = cls.__new__(cls)
        agent._prepare(config, spec, True, shards)
        return agent

    def _prepare(self, config: Config, spec: EnvSpec, has_end: bool, shards: Sequence[Shard] = ()) -> None:
        run, learner = config.run, config.learner
        self.config, self.spec = config, spec
        self.trace: Trace = NO_TRACE
        self.pace = Pace(run.updates_per_step, run.warmup_steps)
        self.streams = Streams(run.seed)
        planned = self.pace.planned(run.total_steps)
        if run.total_updates is not None:
            planned = min(planned, run.total_updates)
        self.learner = Learner(
            config.algorithm,
            learner,
            spec,
            rng=self.streams.initial,
            planned_updates=planned if has_end else None,
            device=run.device,
            precision=run.precision,
        )
        self.schema = Schema.transitions(spec)
        shards = shards or [self._own_shard(run.capacity)]
        self.shard, self.shards = shards[0], {str(shard.worker): shard for shard in shards}
        self.experience = Uniform(shards, n_step=learner.n_step, gamma=learner.gamma)
        self.steps = 0
        self._policies: dict[int, Policy] = {}
        self._published: Publication | None = None
        self._moment = (-1, -1)  # updates and steps at which it was published
        self._saved: dict[Path, Checkpoints] = {}
        # Of an own loop: episode and step of each environment, and what its policy remembers.
        self._counts, self._carry = np.zeros((2, 0), np.int64), np.zeros((0, 0), np.float32)

    def _own_shard(self, capacity: int) -> Shard:
        try:
            return Shard(self.schema, capacity)
        except (MemoryError, ValueError) as error:
            size = Shard.nbytes(self.schema, capacity) / 2**30
            raise UsageError(f"capacity={capacity} needs {size:,.0f} GiB of memory: {error}; use less") from error

    # A loop of your own: act, observe, update.

    def act(self, obs: Any, deterministic: bool = False) -> Array:
        """Actions in the environment's own units for one observation, or for a stack of N.

        The first `random_steps` observed steps act uniformly at random, unless deterministic. Row i of a stack is
        environment i, whose exploration may remember: act for all environments at once where noise drifts.
        """
        rows, stack = self.spec.layout.read(obs)
        if not deterministic and self.steps < self.config.run.random_steps:
            action = self.spec.random_actions(self.streams.acting, len(rows))
        else:
            policy = self.policy(len(rows))
            policy.load(self.publication().weights)
            rng = None if deterministic else self.streams.acting
            carry = self._carry if len(self._carry) == len(rows) else policy.initial_carry(len(rows))
            action, carry, _ = policy.act(rows, carry, rng, self.steps)
            if not deterministic:
                self._carry = carry
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
        envs: Any = None,
    ) -> None:
        """Remembers one transition, or N stacked ones.

        `next_obs` is the true successor (the final observation where an episode ended), `action` in the environment's
        own units. envs: which environment each row is from, 0..N-1 by default. state, next_state: privileged state.
        """
        terminated, truncated = _flags("terminated", terminated), _flags("truncated", truncated)
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
            "action": self.spec.from_environment(_shaped("action", action, (count, *self.spec.action_shape))),
            "reward": _shaped("reward", reward, (count,)).astype(np.float32),
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
                _shaped("state", each, (count, self.spec.state_size)).astype(np.float32) for each in (state, next_state)
            )
        self._check(columns)
        ended = terminated | truncated
        self._counts[0, envs] += ended
        self._counts[1, envs] = np.where(ended, 0, self._counts[1, envs] + 1)
        if ended.any() and self._carry.size:
            fresh = self.policy(len(self._carry)).initial_carry(len(self._carry))
            begun = [env for env in envs[ended] if env < len(fresh)]
            self._carry = self._carry.copy()
            self._carry[begun] = fresh[begun]
        self.add(Chunk(columns, sequence=self.shard.committed))

    def _check(self, columns: Mapping[str, Array]) -> None:
        for name in ("action", "reward", "state", "next_state"):
            if name in columns and not np.isfinite(columns[name]).all():
                raise UsageError(f"observe: {name} holds {columns[name].tolist()}, which is not finite")
        action, choices = columns["action"], self.spec.choices
        if (np.abs(action) > 1.0 + 1e-5).any() if choices is None else not np.isin(action, np.arange(choices)).all():
            raise UsageError(
                "observe: an action is outside the "
                f"environment's bounds, {self.spec.action_low} to {self.spec.action_high}; pass what it was given"
            )

    def update(self, count: int | None = None) -> Metrics:
        """Makes `count` updates, or as many as `updates_per_step` and `warmup_steps` make due; returns mean metrics."""
        if count is None:
            count = self.pace.updates_due(self.steps, self.learner.updates)
        if count < 0:
            raise UsageError(f"update: count={count} is out of range: it must be at least 0")
        self.learn(count)
        return self.learner.drain()

    def _encode(self, obs: Any, count: int) -> Array:
        rows, _ = self.spec.layout.read(obs)
        if len(rows) != count:
            raise UsageError(f"observe: {len(rows)} observations came with {count} terminated flags")
        return rows

    # What the runner calls.

    def add(self, chunk: Chunk) -> None:
        """Rows into replay, and into the statistics that normalise."""
        self.shard.write(chunk)
        self.take(chunk)

    def take(self, chunk: Chunk) -> None:
        """Rows that are in replay already, into the statistics that normalise."""
        self.steps += len(chunk)
        self.learner.observe(chunk)

    def learn(self, count: int) -> None:
        """Makes `count` updates; their metrics add up in the learner."""
        if count and not len(self.experience):
            raise UsageError("there is nothing to learn from yet: observe at least one transition before update")
        sampling, noise = self.streams.sampling, self.streams.noise
        dtype = np.float64 if self.config.run.precision == "float64" else np.float32
        with denormals_flushed():
            for _ in range(count):
                with self.trace("sample"):
                    batch = self.experience.sample(sampling, self.config.learner.batch_size)
                    draws = np.asarray(noise.standard_normal(self.learner.noise_shape, dtype))
                with self.trace("update"):
                    self.learner.update(batch, draws)

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
            acting=self.config.run.acting,
            spec=self.spec,
            actor=None if own is None else resolve(own, self.config.learner.acts_with),
            **options,
        )

    def publication(self) -> Publication:
        """The acting weights of this moment; the same object until they change."""
        moment = self.learner.updates, self.steps if self.learner.observations is not None else 0
        if self._published is None or moment != self._moment:
            self._published, self._moment = Publication(self.learner.updates, self.learner.weights()), moment
        return self._published

    # Saving.

    def snapshot(self) -> Snapshot:
        arrays = {f"learner/{name}": array for name, array in self.learner.arrays().items()}
        arrays |= {"loop": self._counts.copy(), "loop_carry": self._carry.copy()}
        values = {"steps": self.steps, "streams": self.streams.state()}
        notes = {
            "algorithm": self.config.algorithm,
            "config": settings_module.flatten(self.config),
            "spec": self.spec.to_json(),
            "policy": self.learner.policy_description(),
            "pending": self.learner.pending(),
            "versions": versions(),
        }
        return Snapshot(arrays, values, notes)

    def restore(self, snapshot: Snapshot) -> None:
        """Everything but replay, which `Checkpoints.load_replay` fills."""
        check_same(snapshot.notes, self.config.algorithm, self.spec)
        self.learner.restore(under(snapshot.arrays, "learner/"))
        self.learner.restore_pending(snapshot.notes["pending"])
        self._counts, self._carry = np.array(snapshot.arrays["loop"]), np.array(snapshot.arrays["loop_carry"])
        self.steps = int(snapshot.values["steps"])
        self.streams.restore(snapshot.values["streams"])
        self._published = None

    def save(self, path: str | Path) -> Path:
        """A checkpoint, replay included, in the directory `path`; the earlier one stays until this one is whole."""
        directory = Path(path).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        # The object knows which rows are on disk already: a further save writes only what is new.
        checkpoints = self._saved.setdefault(directory, Checkpoints(directory))
        checkpoints.save(self.snapshot(), self.shards, self.steps)
        return Path(path)

    def load(self, path: str | Path) -> None:
        """Takes over the newest checkpoint in `path`, made by an agent with the same settings."""
        directory = Path(path).resolve()
        checkpoints = Checkpoints(directory)
        snapshot = checkpoints.load("latest")
        self.restore(snapshot)
        checkpoints.load_replay("latest", self.shards)
        self._saved = {directory: checkpoints}


def _flags(name: str, value: Any) -> Array:
    """True or False per row, (B,); numbers are taken where they are 0 or 1."""
    flags = np.atleast_1d(np.asarray(value))
    if flags.ndim != 1 or not len(flags) or flags.dtype.kind not in "biuf" or not np.isin(flags, (0, 1)).all():
        raise UsageError(f"observe: {name}={value!r}; it must be True or False, one per row")
    return flags.astype(bool)


def _shaped(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.size != np.prod(shape):
        raise UsageError(f"observe: {name} is {value!r}; {shape[0]} rows take numbers of shape {shape}")
    return array.reshape(shape)


def under(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """The arrays whose name begins with `prefix`, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def check_same(notes: Mapping[str, Any], algorithm: str, spec: EnvSpec) -> None:
    """Says what differs between a checkpoint's algorithm and environment and the ones at hand."""
    there, here = notes["spec"], EnvSpec.from_json(spec.to_json()).to_json()
    differences = [f"algorithm {notes['algorithm']} there, {algorithm} here"] if notes["algorithm"] != algorithm else []
    there = EnvSpec.from_json(there).to_json()
    differences += [f"{key}: {there[key]} there, {here[key]} here" for key in here if there[key] != here[key]]
    if differences:
        raise CheckpointError(
            f"the checkpoint was made with another algorithm or environment: {'; '.join(differences)}. "
            "Resume with the environment that the run was made with, or start a new run"
        )


_OF_A_RUN = frozenset(
    (
        *("env", "num_envs", "max_episode_steps", "reward_shaping", "preset"),
        *("out", "name", "logger", "quiet", "threads", "trace", "trace_cpu"),
        *("eval_every", "eval_episodes", "stop_return", "checkpoint_every", "log_every"),
        *("collectors", "slack", "collect_ahead", "max_policy_lag", "hang_seconds", "max_crashes"),
    )
)
"""Settings that only a run heeds."""
_OF_AN_ENVIRONMENT = ("env_kwargs", "env_wrapper", "state_key")


def _spec_of(env: Any, settings: Mapping[str, Any]) -> EnvSpec:
    import gymnasium

    from offbeat.envs import make_vector

    single = isinstance(env, gymnasium.Env)
    options = {key: settings[key] for key in _OF_AN_ENVIRONMENT if key in settings}
    vector = make_vector((lambda: env) if single else env, **options)
    if isinstance(env, str):
        vector.close()
    return vector.spec
