"""Whole episodes of a policy without exploration: for evaluations, and to be shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.compat.metarl.envs.env_spec import own_spec
from offbeat.compat.metarl.experiment.deterministic import get_seed
from offbeat.compat.metarl.sampler.given_policy import GivenPolicy
from offbeat.compat.metarl.sampler.paths import Path, PathMaker
from offbeat.compat.metarl.sampler.recorded_env import RecordedVector

LONGEST = 1_000
"""Steps of an episode where nothing else limits it."""


def whole_episodes(algo: Any, env: Any, count: int, limits: tuple[Any, ...], *, shown: bool = False) -> list[Path]:
    """`count` episodes of algo.policy, the same ones every time. limits: the first one that is a number counts."""
    limit = next((each for each in limits if each is not None and np.isfinite(each)), LONGEST)
    recorded = RecordedVector(env, 1, seed=get_seed() or 0, purpose="eval", limit=int(limit), shown=shown)
    policy = GivenPolicy(algo.policy, own_spec(algo.env_spec), 1, "policy", best=True)
    maker = PathMaker(recorded, policy, algo.env_spec)
    try:
        return [maker.episode() for _ in range(count)]
    finally:
        recorded.vector.close()
