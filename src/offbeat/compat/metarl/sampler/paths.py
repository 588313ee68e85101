"""Vector steps in, paths out: what each environment made in one batch, cut where episodes end."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.collect.step import advance
from offbeat.compat.metarl.sampler.given_policy import GivenPolicy
from offbeat.compat.metarl.sampler.recorded_env import RecordedVector
from offbeat.envs.infos import success_of
from offbeat.types import Array, Observation

Path = dict[str, Any]


class PathMaker:
    """Steps a vector with a policy, and makes paths of its steps.

    A path has `observations`, `next_observations` and `actions` (T, flat_dim), `rewards` (T,), `terminals` (T,),
    `dones` (T,), `env_infos` (arrays (T, ...)), and numbers of the whole episode so far, also before this batch:
    `running_length`, `undiscounted_return`, `success_count`. The last of `dones` says that the episode is over, the
    last of `terminals` that it was so for another reason than a time limit.
    """

    def __init__(self, recorded: RecordedVector, policy: GivenPolicy, env_spec: Any) -> None:
        self._recorded, self._policy, self._env_spec = recorded, policy, env_spec
        self.vector, count = recorded.vector, recorded.vector.num_envs
        self.observation: Observation | None = None
        # Of each environment's episode so far: return, length, and steps with success.
        self.running: Array = np.zeros((3, count))

    @property
    def ended(self) -> Array:
        """The environments (N,) bool whose episode is about to begin, of which the policy is not told yet."""
        return self._policy.ended

    @ended.setter
    def ended(self, ended: Array) -> None:
        self._policy.ended = ended

    def begin(self, episode: int = 0) -> None:
        """Begins this episode everywhere."""
        self.observation = self.vector.reset(episode)
        self.running[...] = 0.0
        self.ended = np.ones(self.vector.num_envs, bool)

    def steps(self, count: int) -> list[Path]:
        """The paths of `count` vector steps, in the order in which they end."""
        rows = [self._step() for _ in range(count)]
        columns = {name: np.stack([row[name] for row in rows]) for name in rows[0] if name != "infos"}
        infos = [row["infos"] for row in rows]
        found = []
        for env in range(self.vector.num_envs):
            start = 0
            ends = np.flatnonzero(columns["dones"][:, env]).tolist()
            for end in ends if ends and ends[-1] == count - 1 else [*ends, count - 1]:
                found.append((end, env, self._path(columns, infos, env, start, end + 1)))
                start = end + 1
        return [path for _, _, path in sorted(found, key=lambda each: each[:2])]

    def episode(self) -> Path:
        """One whole episode, for a vector of one environment."""
        rows = [self._step()]
        while not rows[-1]["dones"][0]:
            rows.append(self._step())
        columns = {name: np.stack([row[name] for row in rows]) for name in rows[0] if name != "infos"}
        return self._path(columns, [row["infos"] for row in rows], 0, 0, len(rows))

    def _step(self) -> dict[str, Any]:
        if self.observation is None:
            self.begin()
        before = self.observation
        assert before is not None
        carry = self._policy.initial_carry(self.vector.num_envs)
        taken = advance(self.vector, self._policy, before, carry, None).step
        over, infos = taken.terminated | taken.truncated, self._recorded.infos()
        self.observation, self.ended = taken.observation, over
        self.running += [taken.reward, np.ones(len(over)), [success_of(info) is True for info in infos]]
        row = {
            "observations": before.vector,
            "next_observations": taken.next.vector,
            "actions": self._policy.given,
            "rewards": taken.reward,
            "terminals": taken.terminated,
            "dones": over,
            "running": self.running.T.copy(),
            "infos": infos,
        }
        self.running[:, over] = 0.0
        return row

    def _path(self, columns: dict[str, Array], infos: list[Any], env: int, start: int, stop: int) -> Path:
        path: Path = {name: column[start:stop, env] for name, column in columns.items()}
        total, length, successes = path.pop("running")[-1]
        path["actions"] = self._env_spec.action_space.flatten_n(path["actions"])
        path["env_infos"] = _stacked([each[env] for each in infos[start:stop]])
        path["undiscounted_return"], path["running_length"] = float(total), int(length)
        path["success_count"] = int(successes)
        return path


def _stacked(infos: list[dict[str, Any]]) -> dict[str, Any]:
    """Arrays (T, ...) of the keys that every step has; a list where values differ in shape."""
    stacked: dict[str, Any] = {}
    for key in infos[0]:
        if all(key in info for info in infos):
            values = [info[key] for info in infos]
            alike = len({np.shape(value) for value in values if not isinstance(value, dict)}) == 1
            stacked[key] = np.asarray(values) if alike and not isinstance(values[0], dict) else values
    return stacked


def transitions_of(path: Path, reward_scale: float) -> dict[str, Array]:
    """What a replay buffer stores of a path: arrays (T, size). Time limits are no terminals."""
    return {
        "observations": np.asarray(path["observations"], np.float32),
        "next_observations": np.asarray(path["next_observations"], np.float32),
        "actions": np.asarray(path["actions"], np.float32),
        "rewards": (np.asarray(path["rewards"]) * reward_scale).astype(np.float32).reshape(-1, 1),
        "terminals": np.asarray(path["terminals"], bool).reshape(-1, 1),
    }
