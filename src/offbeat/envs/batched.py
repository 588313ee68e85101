"""A gymnasium.vector.VectorEnv as a Vector: the same steps from each of Gymnasium's three autoreset modes.

NEXT_STEP: the call after an episode's end only resets, so its row is not valid. SAME_STEP: infos holds the final
observation and the final info. DISABLED: this class resets environments, with their episodes' seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.envs.env_slot import MAX_REWARD, call_env, check_info, fault
from offbeat.envs.infos import row_of, success_of
from offbeat.envs.reader import InvalidValue, Reader, copy_observation, first_not_finite, is_finite, short_repr
from offbeat.envs.vector import frame, scale
from offbeat.errors import CheckpointError, EnvironmentFault, UsageError
from offbeat.masks import USUAL_KEY
from offbeat.streams import episode_seed
from offbeat.types import Array, EnvSpec, Episode, Observation, Step


def autoreset_mode(env: Any) -> str:
    """next_step, same_step or disabled, from the metadata; default next_step, as in Gymnasium."""
    from gymnasium.vector import AutoresetMode

    mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    try:
        return AutoresetMode(mode).name.lower()
    except ValueError as error:
        raise UsageError(
            f"the VectorEnv {env} has metadata['autoreset_mode']={mode!r}; it must be a gymnasium.vector.AutoresetMode"
        ) from error


class BatchedVector:
    """A VectorEnv as a Vector. limit: truncate after this many steps; only if autoreset is disabled.

    A VectorEnv cannot be created again, so every fault is raised, including EnvironmentHung.
    """

    rebuilds = False

    def __init__(
        self, env: Any, spec: EnvSpec, *, seed: int, purpose: str, limit: int | None, first_env: int = 0
    ) -> None:
        self.spec, self.num_envs, self._first_env = spec, int(env.num_envs), first_env
        self.stepping = False
        self._env, self._seed, self._purpose, self._limit = env, seed, purpose, limit
        self._mode = autoreset_mode(env)
        self._batch, self._single = Reader(spec, self.num_envs), Reader(spec)
        self._every, self._none = np.ones(self.num_envs, bool), np.zeros(self.num_envs, bool)
        self.unused_mask = False
        self.last_infos: dict[str, Any] = {}  # of the last step or reset, as the VectorEnv returned them
        self._seeds: list[int | None] = [None] * self.num_envs
        self._episode = np.zeros(self.num_envs, np.int64)
        self._steps = np.zeros(self.num_envs, np.int64)
        self._total_reward = np.zeros(self.num_envs)
        self._resetting = np.zeros(self.num_envs, bool)
        self._fresh = self._every
        self._started = False

    @property
    def unwrapped_envs(self) -> tuple[object, ...]:
        """The VectorEnv, and its environments if they are in this process."""
        env = self._env.unwrapped
        return env, *(member.unwrapped for member in getattr(env, "envs", ()))

    @property
    def outermost_env(self) -> object:
        return self._env

    def reset(self, episode: int = 0) -> Observation:
        return self._begin(np.full(self.num_envs, episode, np.int64))

    def step(self, action: Array) -> Step:
        scaled = scale(self.spec, action, self.num_envs, self._first_env)
        self._fresh = self._resetting
        try:
            raw, reward, terminated, truncated, infos = call_env(self, self._env.step, scaled)
        except Exception as error:
            raise self._fault_among_all(f"step raised {type(error).__name__}: {error}") from error
        self._check_infos(infos)
        valid = ~self._resetting
        reward, terminated, truncated = self._outcome(reward, terminated, truncated, valid)
        ended = terminated | truncated
        some_ended = bool(ended.any())
        shown = self._read(raw, infos, self._every, self._none if self._mode == "same_step" else terminated)
        following = shown
        if self._mode == "same_step" and some_ended:
            following = self._with_finals(shown, infos, ended, terminated)
        self._check_finite(following)
        episode, step = self._episode.copy(), np.where(valid, self._steps, -1)
        self._steps += valid
        self._total_reward += reward
        self._resetting = ended if self._mode == "next_step" else self._resetting
        finals = infos.get("final_info", {}) if self._mode == "same_step" and some_ended else infos
        finished = tuple(self._finished(int(index), finals) for index in np.flatnonzero(ended))
        observation = self._after_ends(shown, ended) if some_ended else shown
        return Step(observation, following, reward, terminated, truncated, valid, episode, step, finished)

    def _outcome(self, reward: Any, terminated: Any, truncated: Any, valid: Array) -> tuple[Array, Array, Array]:
        """Checks reward and flags, and sets them to 0 and False in rows that are not valid."""
        reward = self._column("reward", reward, "biuf").astype(np.float64)
        terminated = self._column("terminated", terminated, "biu").astype(bool)
        truncated = self._column("truncated", truncated, "biu").astype(bool)
        if self._limit is not None:
            truncated |= self._steps + 1 >= self._limit
        if not valid.all():
            reward, terminated, truncated = np.where(valid, reward, 0.0), terminated & valid, truncated & valid
        within = np.abs(reward) <= MAX_REWARD
        if not within.all():
            row = int(np.argmin(within))
            raise self._fault(row, f"the reward is {reward[row]}; it must be finite, and fit into float32")
        return reward, terminated, truncated

    def _column(self, name: str, value: Any, kinds: str) -> Array:
        array = np.asarray(value)
        if array.shape != (self.num_envs,) or array.dtype.kind not in kinds:
            raise self._fault_among_all(
                f"{name} is {short_repr(array)} (shape {array.shape}, {array.dtype}), but it must have shape "
                f"({self.num_envs},) and hold {'numbers' if name == 'reward' else 'booleans'}"
            )
        return array

    def _finished(self, row: int, infos: Any) -> Episode:
        info, number = row_of(infos, row), self._first_env + row
        total_reward, length = float(self._total_reward[row]), int(self._steps[row])
        return Episode(number, int(self._episode[row]), total_reward, length, success_of(info), info)

    def _after_ends(self, shown: Observation, ended: Array) -> Observation:
        """Starts the next episode where one ended, by a reset if autoreset is disabled. Returns the observation."""
        self._count(np.where(ended, self._episode + 1, self._episode), ended)
        if self._mode == "disabled":
            raw, infos = self._call_reset(ended)
            # A VectorEnv may return anything in the rows that it did not reset.
            shown = _merged(shown, self._read(raw, infos, ended, self._none), ended)
        self._check_finite(shown)
        return shown

    def _count(self, episode: Array, fresh: Array) -> None:
        """Sets the episode numbers, and resets steps, return and seed of the rows where `fresh` is True."""
        self._episode, self._fresh = episode, fresh
        self._steps[fresh], self._total_reward[fresh] = 0, 0.0
        for row in np.flatnonzero(fresh):
            seeded = self._mode == "disabled" or not self._started
            number = self._first_env + int(row)
            self._seeds[row] = episode_seed(self._seed, number, int(episode[row]), self._purpose) if seeded else None

    def _begin(self, episode: Array) -> Observation:
        self._started = False
        self._count(episode, self._every)
        self._resetting = np.zeros(self.num_envs, bool)
        raw, infos = self._call_reset(None)
        observation = self._read(raw, infos, self._every, self._none)
        self._check_finite(observation)
        self._started = True
        self.unused_mask = self.spec.mask_key is None and bool(self.spec.counts) and USUAL_KEY in infos
        return observation

    def _call_reset(self, mask: Array | None) -> tuple[Any, Any]:
        """Resets the environments of `mask`, or all, each with its own seed if the VectorEnv takes a list of seeds."""
        from gymnasium.error import Error
        from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

        seeds = [seed if mask is None or mask[row] else None for row, seed in enumerate(self._seeds)]
        options = None if mask is None else {"reset_mask": mask.copy()}
        try:
            if isinstance(self._env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
                result = call_env(self, self._env.reset, seed=seeds, options=options)
            else:
                try:
                    result = call_env(self, self._env.reset, seed=seeds, options=options)
                except (TypeError, ValueError, Error):
                    # A custom VectorEnv may take only one seed for all, as Gymnasium's base class declares.
                    self._seeds = [None] * self.num_envs
                    result = call_env(self, self._env.reset, seed=seeds[0] if mask is None else None, options=options)
            raw, infos = result
        except Exception as error:
            raise self._fault_among_all(f"reset raised {type(error).__name__}: {error}") from error
        self._check_infos(infos)
        return raw, infos

    def _check_infos(self, infos: Any) -> None:
        """Keeps infos that are a dict as `last_infos`."""
        try:
            check_info(infos)
        except InvalidValue as error:
            raise self._fault_among_all(str(error)) from error
        self.last_infos = infos

    def _read(self, raw: Any, infos: Any, needed: Array, terminated: Array) -> Observation:
        """Reads a batch of observations. needed: rows that must have a privileged state or a mask in infos.

        terminated: rows at the end of a terminated episode, whose mask may be missing or allow nothing.
        """
        into = self._batch.blank(self.num_envs)
        try:
            own = {self.spec.state_key: self._states(infos, needed)} if self.spec.state_from == "info" else infos
            self._batch.read(raw, own, into, slice(None))
        except InvalidValue as error:
            raise self._fault_among_all(str(error)) from error
        if into.mask is not None:
            self._read_masks(raw, infos, needed, terminated, into)
        return into

    def _read_masks(self, raw: Any, infos: dict[str, Any], needed: Array, terminated: Array, into: Observation) -> None:
        key, from_info = self.spec.mask_key, self.spec.mask_from == "info"
        for row in map(int, np.flatnonzero(needed)):
            own = row_of(infos, row) if from_info else {key: _row(raw[key], row)}
            try:
                self._single.read_mask(own, own, into, row, bool(terminated[row]))
            except InvalidValue as error:
                raise self._fault(row, str(error)) from error

    def _states(self, infos: dict[str, Any], needed: Array) -> Array:
        """The privileged states (N, ...) from infos, where `_key` marks the rows that have a value."""
        key, layout = self.spec.state_key, self.spec.state
        assert key is not None
        assert layout is not None
        present = infos.get(f"_{key}", self._every) if key in infos else ~self._every
        absent = needed & ~np.asarray(present, bool)
        if absent.any():
            raise self._fault(int(np.argmax(absent)), f"info has no {key!r}, but state_key names it as the state")
        states = np.zeros((self.num_envs, *layout.leaves[0].shape), np.float32)
        for row in np.flatnonzero(needed):
            value = np.asarray(infos[key][row])
            if value.shape != states.shape[1:] or value.dtype.kind not in "biuf":
                raise self._fault(
                    int(row),
                    f"info[{key!r}] is {short_repr(infos[key][row])}, but its first value had shape {states.shape[1:]}",
                )
            states[row] = value
        return states

    def _with_finals(self, shown: Observation, infos: dict[str, Any], ended: Array, terminated: Array) -> Observation:
        """`shown`, with the true final observation, state and mask of the episodes that ended in this step."""
        spec, following = self.spec, copy_observation(shown)
        sources = ((spec.state_key, spec.state_from), (spec.mask_key, spec.mask_from))
        keys = [key for key, source in sources if source == "info"]
        for row in map(int, np.flatnonzero(ended)):
            if "final_obs" not in infos:
                raise self._fault(
                    row, "its autoreset mode is SAME_STEP, but infos has no 'final_obs' where the episode ended"
                )
            final = infos.get("final_info", {})
            info = {key: _row(final[key], row) for key in keys if key in final}
            raw = _row(infos["final_obs"], row)
            try:
                self._single.read(raw, info, following, row)
                self._single.read_mask(raw, info, following, row, bool(terminated[row]))
            except InvalidValue as error:
                raise self._fault(row, f"in final_obs or final_info: {error}") from error
        return following

    def _check_finite(self, observation: Observation) -> None:
        if not is_finite(observation):
            raise self._fault(*first_not_finite(observation, self.spec))

    def _fault(self, row: int, problem: str) -> EnvironmentFault:
        step = None if self._fresh[row] else int(self._steps[row])
        return fault(self.spec.name, self._first_env + row, int(self._episode[row]), self._seeds[row], step, problem)

    def _fault_among_all(self, problem: str) -> EnvironmentFault:
        """A fault of an unknown environment of the batch; with a single environment, a fault of that one."""
        if self.num_envs == 1:
            return self._fault(0, problem)
        return EnvironmentFault(
            f"one of environments {self._first_env} to {self._first_env + self.num_envs - 1} ({self.spec.name}), which "
            f"are at episodes {self._episode.tolist()} and steps {self._steps.tolist()}: {problem}. Correct the "
            "environment; check-env on a single one finds more such problems"
        )

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The episode numbers only, because a VectorEnv does not offer its state."""
        return {}, {"envs": [{"episode": int(episode)} for episode in self._episode] if self._started else []}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> tuple[Observation, list[str]]:
        entries = values["envs"]
        if not entries:
            return self.reset(), []
        if len(entries) != self.num_envs:
            raise CheckpointError(
                f"the checkpoint holds {len(entries)} environments, but the VectorEnv {self.spec.name} has "
                f"{self.num_envs}; resume with one of {len(entries)}"
            )
        observation = self._begin(np.array([entry["episode"] + 1 for entry in entries], np.int64))
        return observation, [
            f"the VectorEnv {self.spec.name} cannot be rebuilt: its {self.num_envs} unfinished episodes are dropped, "
            "and new ones start, so the resume is not exact; environments from an id or a factory can be rebuilt"
        ]

    def render(self) -> Array | None:
        if getattr(self._env, "render_mode", None) is None:
            return None
        pictures = self._env.render()
        return frame(pictures[0] if isinstance(pictures, list | tuple) and pictures else pictures)

    def close(self) -> None:
        from gymnasium.error import ClosedEnvironmentError, NoAsyncCallError

        try:
            call_env(self, self._env.close)
        except (EOFError, ConnectionError, ClosedEnvironmentError, NoAsyncCallError):
            # Ctrl-C went to the whole process group and ended some worker processes.
            _terminate_workers(self._env.unwrapped)


def _terminate_workers(env: Any) -> None:
    """Ends the remaining processes of an AsyncVectorEnv that cannot be closed, and marks it as closed."""
    from gymnasium.vector import AsyncVectorEnv

    if isinstance(env, AsyncVectorEnv):
        for process in env.processes:
            process.terminate()
            process.join()
        env.closed = True


def _row(batch: Any, row: int) -> Any:
    """One environment's entry of a batch: an array (of objects too), or Dict and Tuple structures of arrays."""
    if isinstance(batch, dict):
        return {key: _row(value, row) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_row(value, row) for value in batch)
    return batch[row]


def _merged(old: Observation, new: Observation, rows: Array) -> Observation:
    """A copy of `old` with the given rows of `new`."""

    def merge(before: Array, after: Array) -> Array:
        merged = before.copy()
        merged[rows] = after[rows]
        return merged

    images = {name: merge(image, new.images[name]) for name, image in old.images.items()}
    mask = None if old.mask is None or new.mask is None else merge(old.mask, new.mask)
    return Observation(merge(old.vector, new.vector), merge(old.state, new.state), images, mask)
