"""`offbeat.train` as a user calls it, evaluation and checkpoints only at the end."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import torch

import offbeat
from trainers.task import BATCH, HIDDEN, WARMUP_STEPS, episode_returns


class Contestant:
    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.versions = {"offbeat": offbeat.__version__, "torch": torch.__version__}
        self.setting = "`offbeat.train`"

    def _train(self, environment: str, steps: int, seed: int, out: str, log_every: int) -> Path:
        run = offbeat.train(
            "sac",
            environment,
            preset=None,
            total_steps=steps,
            seed=seed,
            random_steps=WARMUP_STEPS,
            warmup_steps=WARMUP_STEPS,
            batch_size=BATCH,
            hidden=HIDDEN,
            eval_every=0,
            eval_episodes=1,
            checkpoint_every=0,
            log_every=log_every,
            threads=self._threads,
            quiet=True,
            out=out,
        )
        return run.path

    def steps_per_second(self, environment: str, first: int, last: int, seed: int) -> float:
        """Over the steps from `first` to `last`, by the run's own log, whose interval gives it a line at both."""
        with tempfile.TemporaryDirectory() as out:
            path = self._train(environment, last, seed, out, log_every=math.gcd(first, last))
            lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        wall = {line["step"]: line["wall"] for line in lines}
        return (last - first) / (wall[last] - wall[first])

    def final_returns(self, environment: str, steps: int, seed: int) -> list[float]:
        with tempfile.TemporaryDirectory() as out:
            policy = offbeat.load_policy(self._train(environment, steps, seed, out, log_every=1_000))
            return episode_returns(environment, policy.act)
