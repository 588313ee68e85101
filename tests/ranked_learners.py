"""Learners on one rank with the whole batch, and on two ranks with half of it each; tests/learn/test_ranks.py runs it.

The process forks into two ranks that are connected by gloo. Prints, for each case, the largest difference from one rank
after 100 updates, the error of the comparison by hash before and after one rank was changed, and what rank 0 says when
rank 1 has ended.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import numpy as np

import small_rollouts
from driven_learner import Learner, stack
from offbeat.errors import OffbeatError
from offbeat.learn.torch_ranks import TorchRanks
from offbeat.ranks import ALONE, Place, Ranks
from offbeat.settings import make_learner_config
from offbeat.types import Batches, Chunk, RolloutBatch
from specs import random_transitions, vector_spec

SPEC, BATCH, ENVS, STEPS = vector_spec(5, 2), 16, 4, 10
NORMALISED = {"normalise_observations": True, "normalise_rewards": True, "hidden": (16, 16)}
ON_POLICY = {**NORMALISED, "rollout_steps": STEPS, "minibatches": 4, "epochs": 5, "max_grad_norm": 0.5}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sac": ("sac", {**NORMALISED, "max_grad_norm": 0.5}),
    "td3": ("td3", {**NORMALISED, "actor_every": 2}),
    "appo": ("appo", {**ON_POLICY, "rate_control": "adaptive", "normalise_over": "minibatch"}),
    "appo_rollout": ("appo", {**ON_POLICY, "normalise_over": "rollout", "target_kl": 1e-3, "learning_rate": 3e-3}),
}


class Orders:
    """`permutation` of a generator: the same rows of every minibatch, in one process or divided among ranks."""

    def __init__(self, seed: int, rank: int, size: int, parts: int) -> None:
        self._rng, self._rank, self._size, self._parts = np.random.default_rng(seed), rank, size, parts

    def permutation(self, rows: int) -> np.ndarray:
        """Each half of the environments has an order of its own, of which a minibatch takes a piece."""
        envs, each = ENVS // 2, STEPS * ENVS // 2
        orders = [self._rng.permutation(each) for _ in range(2)]
        if self._size == 2:
            assert rows == each
            return orders[self._rank]
        steps, own = zip(*(np.divmod(order, envs) for order in orders), strict=True)
        whole = [step * ENVS + half * envs + env for half, (step, env) in enumerate(zip(steps, own, strict=True))]
        pieces = zip(*(np.array_split(order, self._parts) for order in whole), strict=True)
        return np.concatenate([row for piece in pieces for row in piece])


def share(rank: int, size: int, count: int) -> slice:
    return slice(rank * count // size, (rank + 1) * count // size)


def merge(learner: Learner, ranks: Ranks) -> None:
    if learner.shared is not None:
        learner.merge(ranks.gather(learner.shared.take_fresh()))


def make(name: str, ranks: Ranks) -> Learner:
    algorithm, own = CASES[name]
    off_policy = algorithm in ("sac", "td3")
    config = make_learner_config(algorithm, **own, **({"batch_size": BATCH // ranks.size} if off_policy else {}))
    # Another seed on each rank: all begin with the weights of rank 0.
    learner = Learner(algorithm, config, SPEC, rng=np.random.default_rng(1 + ranks.rank), precision="float64")
    if ranks.size > 1:
        learner.join(ranks)
    return learner


def learn(learner: Learner, name: str, ranks: Ranks) -> None:
    """100 updates; the rows and the noise of this rank are its share of those of one rank."""
    rng, acting = np.random.default_rng(7), learner if "appo" in name else small_rollouts.make()
    for turn in range(5 if "appo" in name else 50):
        whole = small_rollouts.rollout(acting, STEPS, ENVS, seed=turn, older=0.1)
        envs = share(ranks.rank, ranks.size, ENVS)
        rollout = RolloutBatch({key: column[:, envs] for key, column in whole.columns.items()}, whole.valid[:, envs])
        if "appo" in name:
            learner.observe_rewards(rollout)
            learner.observe_observations(rollout.chunk())
            merge(learner, ranks)
            learner.learn_rollout(rollout, Orders(turn, ranks.rank, ranks.size, 4), 1 << 30)  # type: ignore[arg-type]
            continue
        columns = {key: column[0] for key, column in rollout.columns.items()}
        learner.observe(Chunk(columns))
        merge(learner, ranks)
        batches = stack([random_transitions(rng, SPEC, BATCH, np.float64) for _ in range(2)])
        noise = rng.standard_normal((2, 2, BATCH, 2) if name == "sac" else (2, BATCH, 2))
        rows = share(ranks.rank, ranks.size, BATCH)
        own = {key: column[:, rows] for key, column in batches.columns.items()}
        learner.update(Batches(own, batches.rows[:, rows]), noise[..., rows, :])


def differences(name: str, ranks: Ranks) -> dict[str, Any]:
    learner, alone = make(name, ranks), make(name, ALONE)
    first = alone.arrays()
    learn(learner, name, ranks)
    learner.backend.check_equal(0, 10_000)
    learn(alone, name, ALONE)
    mine, whole = learner.arrays(), alone.arrays()
    local = ("returns/running", "returns/episodes")
    differing = {key: float(np.abs(mine[key] - whole[key]).max()) for key in whole if key not in local}
    return {
        "updates": learner.updates,
        "difference": max(differing.values()),
        "moved": min(float(np.abs(whole[key] - first[key]).max()) for key in whole if key.endswith("0/weight")),
        "compared": sorted({key.partition("/")[0] for key in differing}),
        "rate_factor": float(whole["rate_factor"]),
    }


def compare_hashes(ranks: Ranks) -> list[str]:
    """What the comparison says of equal learners, and of learners of which one was changed."""
    learner, said = make("sac", ranks), []
    for change in (0.0, 1e-12):
        learner.state.critic.flat[3] += change * ranks.rank
        try:
            learner.backend.check_equal(0, 7_000)
            said.append("equal")
        except OffbeatError as error:
            said.append(str(error))
    return said


def gathered(ranks: Ranks) -> list[str]:
    return [each.decode() for each in ranks.gather_bytes(b"own" * ranks.rank)]


def main(rank: int) -> None:
    ranks = TorchRanks.join(Place(rank, 2, rank, 2))
    found: dict[str, Any] = {name: differences(name, ranks) for name in CASES}
    found |= {"hashes": compare_hashes(ranks), "gathered": gathered(ranks)}
    if rank:
        os._exit(0)  # as if it had been killed: nothing is closed
    try:
        ranks.gather(np.zeros(1))
    except OffbeatError as error:
        found["lost"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    child = os.fork()
    number = 1 if child == 0 else 0
    os.environ |= {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    main(number)
    os.waitpid(child, 0)
