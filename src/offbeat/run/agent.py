"""An agent for a loop of your own: act, observe, update, save and load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import masks
from offbeat import settings as settings_module
from offbeat.algorithms.configs import Config
from offbeat.collect.stepper import MAX_ENVIRONMENTS
from offbeat.errors import UsageError
from offbeat.learn.learner import Learner
from offbeat.policies import Policy
from offbeat.processor import warn_of_slow_precision
from offbeat.replay.experience import Experience, attach
from offbeat.replay.stores import Writer
from offbeat.run.checkpoint import Checkpoints, Snapshot
from offbeat.run.environments import spec_of
from offbeat.run.observe_arguments import check_rows, flags, shaped
from offbeat.run.outside_rollouts import OutsideRollout
from offbeat.run.pace import ENDLESS
from offbeat.run.rank_checkpoint import save_agent
from offbeat.run.ranked import training_of_rank
from offbeat.run.restore import restore_agent
from offbeat.run.training import Training
from offbeat.types import Array, Chunk, EnvSpec, Metrics
from offbeat.weights.publication import Publication


class Agent:
    """Acts, remembers, learns, saves and loads, for one algorithm and one kind of environment.

    algorithm: a name, `module:record`, or a record of your own; or the `Training` of a run. env: an `EnvSpec`, a
    Gymnasium environment or vector environment, an id, or a factory. settings: as for `offbeat.train`.
    """

    def __init__(self, algorithm: Any, env: Any = None, **settings: Any) -> None:
        self.training = algorithm if isinstance(algorithm, Training) else _training(algorithm, env, settings)
        self._saved: dict[Path, Checkpoints] = {}
        self._writer: Writer | None = None
        # Episode and step of each environment, what its policy remembers, and how it acted last.
        self._counts, self._carry = np.zeros((2, 0), np.int64), np.zeros((0, 0), np.float32)
        self._acted: tuple[Array, Mapping[str, Array], Array | None] | None = None
        if self.training.algorithm.learns_from == "replay" and not self.training.shards:
            self._open(1)

    @property
    def config(self) -> Config:
        return self.training.config

    @property
    def spec(self) -> EnvSpec:
        return self.training.spec

    @property
    def learner(self) -> Learner:
        return self.training.learner

    @property
    def experience(self) -> Experience:
        """What is learned from: replay or rollouts."""
        return self.training.experience

    @property
    def steps(self) -> int:
        """Environment steps observed."""
        return self.training.steps

    # A loop of your own: act, observe, update.

    def act(self, obs: Any, deterministic: bool = False, *, mask: Any = None) -> Array:
        """Actions in the environment's own units for one observation, or for a stack of N.

        The first `random_steps` observed steps act uniformly at random, unless deterministic. Row i of a stack is
        environment i, whose exploration or network may have a memory: act for all environments at once where it has.
        The state of a recurrent network advances with each call, also with a deterministic one; `observe` begins it
        anew where an episode ended. To evaluate meanwhile, use `policy`, whose state is explicit.
        mask: the actions that are allowed, 1 or 0 for each, where there is a mask_key; a Dict observation may hold it.
        """
        training, spec = self.training, self.spec
        rows, stack = spec.layout.read(obs)
        allowed = self._mask("mask", mask, obs, len(rows))
        random = not deterministic and self.steps < training.random_steps
        if not random or training.recurrent:
            policy = training.policy(len(rows))
            policy.load(training.publication().weights)
            rng = None if deterministic else training.streams.acting
            action, carry, extras = policy.act(rows, self._begin(policy, len(rows)), rng, self.steps, allowed)
            if not deterministic or training.recurrent:
                self._carry, self._acted = carry, (action, extras, allowed)
        if random:
            action = spec.random_actions(training.streams.acting, len(rows), allowed)
        action = spec.to_environment(action)
        return action if stack else action[0]

    def _begin(self, policy: Policy, rows: int) -> Array:
        """What the policy remembers of so many environments."""
        if self.training.recurrent and len(self._carry) not in (0, rows):
            raise UsageError(
                f"act: {rows} observations, but this recurrent agent keeps the states of {len(self._carry)} "
                "environments: act for all of them at once; elsewhere, use policy(num_envs) with a state of your own"
            )
        return self._carry if len(self._carry) == rows else policy.initial_carry(rows)

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
        """Stores one transition, or N stacked ones.

        `next_obs` is the true successor (the final observation where an episode ended), `action` in the environment's
        own units. envs: which environment each row is from, 0..N-1 by default. state, next_state: privileged state.
        mask, next_mask: the actions that are allowed at obs and next_obs, as for `act`.
        Algorithms that learn from rollouts take a step of all environments that `act` has just acted for.
        """
        terminated, truncated = flags("terminated", terminated), flags("truncated", truncated)
        count = len(terminated)
        envs = self._envs(envs, count, len(truncated))
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
            **self._states(state, next_state, count),
        }
        allowed = self._mask("mask", mask, obs, count)
        following = self._mask("next_mask", next_mask, next_obs, count, terminated)
        if allowed is not None and following is not None:
            columns["mask"], columns["next_mask"] = allowed, following
        check_rows(columns, self.spec)
        if self.training.algorithm.learns_from == "rollouts":
            columns |= self._as_acted(columns, envs)
        elif "carry" in self.experience.schema.names:
            columns["carry"] = self._states_before(envs)
        self._count(envs, terminated | truncated)
        self.add(Chunk(columns))

    def observe_rollout(
        self,
        obs: Any,
        action: Any,
        log_prob: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        final_obs: Any,
        *,
        state: Any = None,
        final_state: Any = None,
        mask: Any = None,
        version: int | None = None,
    ) -> None:
        """Takes a whole rollout that was collected elsewhere; the next `update` learns from it. For ppo and appo.

        Every argument is (T, N, ...): T steps of N environments. `final_obs` is read where an episode ended and in the
        last row: the observation that followed there. `action`: as it was drawn, before clipping to the bounds.
        `log_prob`: of each action, under the policy that drew it.
        version: the number of updates that had made that policy's weights; as many as now by default.
        """
        if self.training.algorithm.learns_from != "rollouts":
            raise UsageError(f"observe_rollout: {self.config.algorithm} learns from transitions: use observe")
        if "carry" in self.experience.schema.names:
            raise UsageError(
                "observe_rollout: a recurrent agent learns from the states that acted, which a rollout from elsewhere "
                "does not hold: call act and observe, or make the agent with network='mlp'"
            )
        if not self.training.wants_rollout():
            raise UsageError("observe_rollout: the rollout before is not learned from yet: call update first")
        self._check_mask_given("mask", mask)
        own = {"state": state, "final_state": final_state, "mask": mask}
        rollout = OutsideRollout(obs, action, log_prob, reward, terminated, truncated, final_obs, **own)
        _, count = rollout.shape
        self._envs(None, count, count)
        version = self.learner.updates if version is None else version
        episodes, steps = self._counts[:, :count]
        batch = rollout.batch(self.spec, episodes, steps, version)
        over = batch.columns["terminated"][-1] | batch.columns["truncated"][-1]
        self._counts[0, :count] = batch.columns["episode"][-1] + over
        self._counts[1, :count] = np.where(over, 0, batch.columns["step"][-1] + 1)
        self.training.set_rollout_envs(count)
        self.training.hold(batch)

    def _envs(self, envs: Any, count: int, others: int) -> Array:
        """The environment of each row, checked; new ones start at episode 0."""
        envs = np.arange(count) if envs is None else np.atleast_1d(np.asarray(envs, np.int64))
        if others != count or envs.shape != (count,) or len(np.unique(envs)) != count:
            raise UsageError(
                f"observe: {count} terminated flags, {others} truncated flags, environments {envs.tolist()}; "
                "there must be as many of each, and every environment once"
            )
        if envs.min() < 0 or envs.max() >= MAX_ENVIRONMENTS:
            raise UsageError(
                f"observe: envs={envs.tolist()}, but environments are numbered 0 to {MAX_ENVIRONMENTS - 1}"
            )
        if (missing := int(envs.max()) + 1 - self._counts.shape[1]) > 0:
            self._counts = np.pad(self._counts, ((0, 0), (0, missing)))
        return envs

    def _states(self, state: Any, next_state: Any, count: int) -> dict[str, Array]:
        if not self.spec.state_size:
            return {}
        if state is None or next_state is None:
            raise UsageError("this agent's critic uses a privileged state: pass state= and next_state= to observe")
        shape = count, self.spec.state_size
        return {
            name: shaped("state", each, shape).astype(np.float32)
            for name, each in (("state", state), ("next_state", next_state))
        }

    def _count(self, envs: Array, ended: Array) -> None:
        """Counts one step of these environments; where an episode ended, the policy's memory starts again."""
        self._counts[0, envs] += ended
        self._counts[1, envs] = np.where(ended, 0, self._counts[1, envs] + 1)
        if ended.any() and self._carry.size:
            fresh = self.training.policy(len(self._carry)).initial_carry(len(self._carry))
            reset = [env for env in envs[ended] if env < len(fresh)]
            self._carry = self._carry.copy()
            self._carry[reset] = fresh[reset]

    def add(self, chunk: Chunk) -> None:
        """Stores rows that have the columns of the experience's schema; for rollouts, those of one vector step."""
        writer = self._writer or self._open(len(chunk))
        valid = None
        if self._num_envs and len(chunk) < self._num_envs:
            valid = np.zeros(self._num_envs, bool)
            valid[chunk.columns["env"]] = True
        writer.write(chunk, valid, self.learner.updates)
        self.training.take(chunk, check_key=False)

    def _open(self, num_envs: int) -> Writer:
        """Opens the store that this agent fills, or the one that a checkpoint has brought back."""
        experience = self.training.experience
        plan = experience.plan(0, num_envs, num_envs)
        store = getattr(experience, "local", None)
        if store is None:
            store = plan.open()
            attach(experience, store)
        self._writer = store
        self.training.set_rollout_envs(self._num_envs)
        return self._writer

    def _mask(self, name: str, mask: Any, obs: Any, count: int, over: Sequence[bool] = ()) -> Array | None:
        """The mask (N, K) that was passed, checked; None where this agent has none."""
        self._check_mask_given(name, mask)
        return masks.read_masks(mask, obs, count, self.spec, name, over)

    def _check_mask_given(self, name: str, mask: Any) -> None:
        if mask is not None and self.spec.mask_key is None:
            raise UsageError(f"{name} was given, but this agent learns without masks: make it with mask_key=")

    def _as_acted(self, columns: Mapping[str, Array], envs: Array) -> dict[str, Array]:
        """The action as it was drawn, before clipping to the bounds, and its log-probability."""
        expected = len(envs) if self._writer is None else self._num_envs
        acted = self._acted
        drew = acted is not None and "log_prob" in acted[1]  # a deterministic call advances a recurrent state, too
        if acted is None or not drew or len(envs) != expected or (envs != np.arange(len(envs))).any():
            raise UsageError(
                f"observe: {self.config.algorithm} learns from steps that it has acted in: call act, not "
                f"deterministic, for all {expected} environments, and then observe once for all"
            )
        (drawn, extras, mask), action = acted, columns["action"]
        given = self.spec.from_environment(self.spec.to_environment(drawn))
        if drawn.shape != action.shape or not np.allclose(given, action, atol=1e-4):
            raise UsageError("observe: these are not the actions that act has just given; pass those")
        if mask is not None and not np.array_equal(mask, columns["mask"]):
            raise UsageError("observe: mask is not the one that act was given; pass the same to both")
        self._acted = None
        return {"action": drawn, **extras}

    def _states_before(self, envs: Array) -> Array:
        """The recurrent states with which `act` has acted for these environments."""
        if self._acted is None or envs.max() >= len(before := self._acted[1]["carry"]):
            raise UsageError(
                f"observe: this recurrent agent stores the state that acted in environments {envs.tolist()}, but act "
                "was not called for them: call act first, or make the agent with start_state='zero'"
            )
        found: Array = before[envs]
        return found

    @property
    def _num_envs(self) -> int:
        """Environments in a rollout."""
        store: Any = getattr(self.training.experience, "local", None)
        return 0 if store is None else int(store.num_envs)

    def update(self, count: int | None = None) -> Metrics:
        """Makes `count` updates, or as many as are due: by `updates_per_step` and `warmup_steps`, or all updates with a
        rollout when it is complete. Returns mean metrics. With several ranks, all must call it equally often.
        """
        if self.training.agreement is not None:
            count = self.training.agreement.asked(count)
        if count is None:
            count = self.training.due()
        if count < 0:
            raise UsageError(f"update: count={count} is out of range: it must be at least 0")
        self.training.learn(count)
        return self.learner.drain() | self.learner.counters() | self.training.take_logged()

    def log(self, name: str, value: Any) -> None:
        """A number of your own: among the metrics that the next `update` returns, or in a run's next log line."""
        self.training.log(name, value)

    def set_learning_rate(self, rate: float, group: str | None = None) -> None:
        """The learning rate from now on, of a group (actor, critic, ...) or of all; a schedule goes on from there.

        Checkpoints hold it. A run that resumes with another learning rate in its settings takes that one.
        """
        self.learner.set_rate(rate, group)

    def _encode(self, obs: Any, count: int) -> Array:
        rows, _ = self.spec.layout.read(obs)
        if len(rows) != count:
            raise UsageError(f"observe: {len(rows)} observations came with {count} terminated flags")
        return rows

    # Acting elsewhere.

    def policy(self, num_envs: int) -> Policy:
        """The policy that acts for `num_envs` environments; it has no weights before `load`."""
        return self.training.policy(num_envs)

    def publication(self) -> Publication:
        """The weights to act with now."""
        return self.training.publication()

    # Saving.

    def save(self, path: str | Path) -> Path:
        """Saves a checkpoint, replay included, in the directory `path`; the one before stays until this is whole.
        With several ranks, all must call it, with the same path.
        """
        if self.training.agreement is not None:
            self.training.agreement.meet()  # steps and statistics since the last update count, too
        directory = Path(path).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        # The object knows which rows are on disk already: a further save writes only what is new.
        keep = self.config.run.output.keep_checkpoints
        checkpoints = self._saved.setdefault(directory, Checkpoints(directory, keep=keep))
        snapshot = self.training.snapshot()
        arrays = {**snapshot.arrays, "loop": self._counts.copy(), "loop_carry": self._carry.copy()}
        whole = Snapshot(arrays, snapshot.values, snapshot.notes)
        save_agent(self.training, checkpoints, whole)
        return Path(path)

    def load(self, path: str | Path) -> None:
        """Loads the newest checkpoint in `path`, made by an agent with the same settings."""
        directory = Path(path).resolve()
        checkpoints = Checkpoints(directory, keep=self.config.run.output.keep_checkpoints)
        snapshot = restore_agent(self.training, checkpoints, lambda: self._num_envs and self._open(self._num_envs))
        if "loop" in snapshot.arrays:  # the checkpoint of a run has none
            self._counts, self._carry = np.array(snapshot.arrays["loop"]), np.array(snapshot.arrays["loop_carry"])
        self._saved = {directory: checkpoints}


def _training(algorithm: Any, env: Any, settings: dict[str, Any]) -> Training:
    for key in settings:
        if key in _OF_A_RUN:
            raise UsageError(f"{key} is a setting of a run; in a loop of your own it is yours to do: leave it out")
        if key in _OF_AN_ENVIRONMENT and isinstance(env, EnvSpec):
            raise UsageError(f"{key} has nothing to act on: an EnvSpec was given, and no environment is made")
    own = {key: settings[key] for key in _OF_AN_ENVIRONMENT if key in settings}
    spec = env if isinstance(env, EnvSpec) else spec_of(env, **own)
    has_end = bool(settings.get("total_steps") or settings.get("total_updates"))
    if has_end and not settings.get("total_steps"):
        settings = {**settings, "total_steps": ENDLESS}  # a run's default would end the schedules
    config = settings_module.make_config(algorithm, {"env": spec.name, **settings})
    training = training_of_rank(config, spec, has_end)
    warn_of_slow_precision(config.run.compute.precision, training.learner.backend.device)
    return training


_OF_A_RUN = frozenset(
    (
        *("env", "num_envs", "max_episode_steps", "reward_shaping", "preset", "init_from", "update_every"),
        *("out", "name", "logger", "quiet", "threads", "trace", "trace_cpu"),
        *("eval_every", "eval_episodes", "stop_return", "checkpoint_every", "log_every"),
        *("collectors", "slack", "collect_ahead", "max_policy_lag", "hang_seconds", "max_crashes"),
        *("queue", "when_full", "ray_address", "ray_cpus", "ray_resources", "ray_placement", "ray_working_dir"),
    )
)
"""Settings that only a run heeds."""
_OF_AN_ENVIRONMENT = ("env_kwargs", "env_wrapper", "state_key", "mask_key")
