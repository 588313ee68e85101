"""The sampler of off-policy algorithms: steps copies of the environment together and fills the replay buffer."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.compat.metarl.envs.env_spec import own_spec
from offbeat.compat.metarl.experiment.deterministic import generator, get_seed
from offbeat.compat.metarl.sampler.given_policy import GivenPolicy
from offbeat.compat.metarl.sampler.paths import Path, PathMaker, transitions_of
from offbeat.compat.metarl.sampler.recorded_env import RecordedVector
from offbeat.errors import UsageError
from offbeat.types import Array


class OffPolicyVectorizedSampler:
    """Steps `n_envs` copies of the environment (the algorithm's rollout_batch_size for None).

    The exploration policy acts; the policy itself where there is none. Episodes continue from one batch to the next;
    with no_reset=False each batch begins new ones.
    """

    def __init__(self, algo: Any, env: Any, n_envs: int | None = None, no_reset: bool = True) -> None:
        count = int(algo.rollout_batch_size if n_envs is None else n_envs)
        if count < 1:
            raise UsageError(f"n_envs={count} is out of range: at least 1 environment is stepped")
        self._algo, self._env, self._count, self._no_reset = algo, env, count, no_reset
        seed = get_seed()
        self.seed = int(generator("environments").integers(2**31)) if seed is None else seed
        self._maker: PathMaker | None = None
        self._batches = 0

    def start_worker(self) -> None:
        """Makes the environments."""
        if self._maker is not None:
            return
        algo = self._algo
        recorded = RecordedVector(self._env, self._count, seed=self.seed, purpose="train", limit=self._limit)
        acting, name = algo.exploration_policy, "exploration_policy"
        if acting is None:
            acting, name = algo.policy, "policy"
        policy = GivenPolicy(acting, own_spec(algo.env_spec), self._count, name)
        self._maker = PathMaker(recorded, policy, algo.env_spec)

    def shutdown_worker(self) -> None:
        """Closes the environments."""
        if self._maker is not None:
            self._maker.vector.close()
            self._maker = None

    def obtain_samples(self, itr: int, batch_size: int | None = None, whole_paths: bool = True) -> list[Path]:
        """At least `batch_size` environment steps, in whole vector steps; each path is also added to replay.

        whole_paths: has no effect, as in metarl: paths end with the batch, and go on in the next.
        """
        if batch_size is None or batch_size < 1:
            raise UsageError(f"batch_size={batch_size} is out of range: it is a number of steps, at least 1")
        steps = -(-batch_size // self._count)
        self._check_room(steps)
        self.start_worker()
        assert self._maker is not None
        if not self._no_reset and self._batches:
            self._maker.begin(self._batches << 32)
        self._batches += 1
        paths = self._maker.steps(steps)
        for path in paths:
            self._algo.replay_buffer.add_path(transitions_of(path, self._algo.reward_scale))
        return paths

    @property
    def _limit(self) -> int | None:
        """Steps after which an episode is truncated."""
        limit = self._algo.max_path_length
        return None if limit is None or np.isinf(limit) else int(limit)

    def _check_room(self, steps: int) -> None:
        """UsageError where a path of so many steps could be longer than the replay buffer."""
        longest = steps if self._limit is None else min(steps, self._limit)
        capacity = getattr(self._algo.replay_buffer, "capacity_in_transitions", None)
        if capacity is not None and longest > capacity:
            raise UsageError(
                f"a batch holds paths of up to {longest} transitions, but replay_buffer holds {capacity}; use a larger "
                "capacity_in_transitions, or a smaller batch_size or max_path_length"
            )

    # Checkpoints.

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The environments, each in the middle of its episode, as arrays and JSON values."""
        values: dict[str, Any] = {"seed": self.seed, "batches": self._batches, "vector": None}
        if self._maker is None or self._maker.observation is None:
            return {}, values
        arrays, values["vector"] = self._maker.vector.snapshot()
        return {"running": self._maker.running.copy(), "ended": self._maker.ended.copy(), **arrays}, values

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> list[str]:
        """Continues from a snapshot; a sentence for whatever is not exact."""
        self.shutdown_worker()
        self.seed, self._batches = int(values["seed"]), int(values["batches"])
        if values["vector"] is None:
            return []
        self.start_worker()
        assert self._maker is not None
        own = {name: array for name, array in arrays.items() if name not in ("running", "ended")}
        self._maker.observation, sentences = self._maker.vector.restore(own, values["vector"])
        self._maker.running, self._maker.ended = np.array(arrays["running"]), np.array(arrays["ended"])
        return sentences
