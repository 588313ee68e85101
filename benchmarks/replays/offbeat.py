"""Offbeat's replay as in a run: the collector makes a chunk of each step, the agent adds it and samples."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import offbeat
from data import rows
from offbeat import Agent
from offbeat.collect import Stepper, VectorStep
from offbeat.replay.settings import ReplaySettings
from offbeat.replay.uniform import UniformReplay
from offbeat.types import EnvSpec, Episode, Layout, Leaf, Observation, Step
from replays.resident import resident_bytes


class Contestant:
    def __init__(self, threads: int, capacity: int, environments: int, sizes: tuple[int, int], dtype: str) -> None:
        self.versions = {"offbeat": offbeat.__version__, "numpy": np.__version__}
        self.setting = "float32 rows, whatever the environment's own dtype; `add` is from the step's arrays to the ring"
        observation, action = sizes
        layout = Layout((Leaf((), "box", (observation,), dtype),))
        spec = EnvSpec("synthetic", layout, (-1.0,) * action, (1.0,) * action, (action,))
        self._agent = Agent("sac", spec, capacity=capacity)
        # The collector needs only this part of a vector environment, because the steps are precomputed.
        vector = SimpleNamespace(spec=spec, num_envs=environments)
        policy, rng = self._agent.policy(environments), np.random.default_rng(0)
        self._shard, schema = self._agent.training.shards["0"], self._agent.experience.schema
        self._stepper, self._rng = Stepper(vector, policy, schema, self._shard, rng), rng
        self._replays: dict[int, UniformReplay] = {}  # over the agent's rows, by batch size
        self._step = _step(environments, *sizes)
        self._capacity = capacity
        self._empty = resident_bytes()

    def fill(self) -> None:
        while self._shard.committed < self._capacity:
            self.add()

    def add(self) -> None:
        self._agent.add(self._stepper.chunk(*self._step, self._shard.committed))

    def sample(self, batch: int) -> None:
        self._replay(batch).draw(self._rng, 1)

    def _replay(self, batch: int) -> UniformReplay:
        if batch not in self._replays:
            self._replays[batch] = UniformReplay(self._shard.schema, ReplaySettings(self._capacity, batch))
            self._replays[batch].attach(self._shard)
        return self._replays[batch]

    def resident(self) -> int:
        """Bytes that became resident since the empty replay was made."""
        return resident_bytes() - self._empty


def _step(environments: int, observation: int, action: int) -> tuple[Observation, VectorStep]:
    """What the collector has in hand after one step of all environments, in the dtypes that environments give."""
    data = rows(environments, observation, action)
    no_state = np.zeros((environments, 0), np.float32)
    before, following = Observation(data.obs, no_state), Observation(data.next_obs, no_state)
    numbers = np.zeros(environments, np.int64)
    step = Step(
        observation=following,
        next=following,
        reward=data.reward.astype(np.float64),
        terminated=data.terminated.astype(bool),
        truncated=np.zeros(environments, bool),
        valid=np.ones(environments, bool),
        episode=numbers,
        step=numbers,
        finished=tuple(Episode(int(env), 0, 0.0, 1) for env in np.flatnonzero(data.terminated)),
    )
    return before, VectorStep(data.action, {}, step, no_state)
