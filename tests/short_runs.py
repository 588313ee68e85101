"""A run of 120 steps with all that happens in a run: episodes, updates, evaluations, log lines, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import offbeat

SETTINGS: dict[str, Any] = {
    "hidden": (8,),
    "batch_size": 8,
    "num_envs": 20,
    "updates_per_step": 2.0,
    "random_steps": 20,
    "warmup_steps": 20,
    "total_steps": 120,
    "max_episode_steps": 10,
    "eval_every": 40,
    "eval_episodes": 2,
    "log_every": 30,
    "checkpoint_every": 50,
    "capacity": 500,
    "threads": 1,
    "quiet": True,
    "logger": (),
}


def train(out: Path, env: str = "Pendulum-v1", **settings: Any) -> Any:
    return offbeat.train("sac", env, out=str(out), **{**SETTINGS, **settings})
