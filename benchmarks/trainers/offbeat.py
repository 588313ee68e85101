"""`offbeat.train` as a user calls it, evaluation and checkpoints only at the end."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import torch

import offbeat
from trainers.task import BATCH, HIDDEN, LEARNING_RATE, WARMUP_STEPS, episode_returns


class Contestant:
    """learner_threads: where they are not all that the contestant may use."""

    def __init__(self, threads: int, learner_threads: int | None = None, collectors: int = 0) -> None:
        self._threads, self._collectors = learner_threads or threads, collectors
        self.versions = {"offbeat": offbeat.__version__, "torch": torch.__version__}
        self.setting = "`offbeat.train`" + (f" with {collectors} collector(s)" if collectors else "")

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
            actor_learning_rate=LEARNING_RATE,
            critic_learning_rate=LEARNING_RATE,
            temperature_learning_rate=LEARNING_RATE,
            eval_every=0,
            eval_episodes=1,
            checkpoint_every=0,
            log_every=log_every,
            threads=self._threads,
            collectors=self._collectors,
            quiet=True,
            out=out,
        )
        return run.path

    def steps_per_second(self, environment: str, first: int, last: int, seed: int) -> float:
        """Over the steps from `first` to `last`, by the run's own log, whose interval gives it a line near both."""
        with tempfile.TemporaryDirectory() as out:
            path = self._train(environment, last, seed, out, log_every=math.gcd(first, last))
            lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        begun, ended = next(line for line in lines if line["step"] >= first), lines[-1]
        return (ended["step"] - begun["step"]) / (ended["wall"] - begun["wall"])

    def final_returns(self, environment: str, steps: int, seed: int) -> list[float]:
        with tempfile.TemporaryDirectory() as out:
            policy = offbeat.load_policy(self._train(environment, steps, seed, out, log_every=1_000))
            return episode_returns(environment, policy.act)
