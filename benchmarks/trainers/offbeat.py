"""`offbeat train`, with evaluation and checkpoints only at the end."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import torch

import command
import offbeat
from trainers.task import BATCH, HIDDEN, LEARNING_RATE, WARMUP_STEPS, episode_returns


class Contestant:
    """threads: the available cores. learner_threads: threads of the learner; the default of Offbeat if not given."""

    def __init__(self, threads: int, learner_threads: int = 0, collectors: int = 0) -> None:
        self.versions = {"offbeat": offbeat.__version__, "torch": torch.__version__}
        self.setting = "`offbeat train`" + (f" with {collectors} collector(s)" if collectors else "")
        self._flags = [
            *f"--random-steps {WARMUP_STEPS} --warmup-steps {WARMUP_STEPS} --batch-size {BATCH}".split(),
            *("--hidden", *map(str, HIDDEN)),
            *("--learning-rate", str(LEARNING_RATE)),
            *f"--threads {learner_threads} --collectors {collectors}".split(),
        ]

    def steps_per_second(self, environment: str, first: int, last: int, seed: int) -> float:
        """Steps per second between the steps `first` and `last`, from the log lines next to them."""
        line = ["sac", "--env", environment, *self._flags, "--seed", str(seed)]
        return command.steps_per_second(line, first, last, math.gcd(first, last))

    def final_returns(self, environment: str, steps: int, seed: int) -> list[float]:
        flags = f"--preset none --total-steps {steps} --seed {seed} --eval-every 0 --eval-episodes 1 --name run --quiet"
        with tempfile.TemporaryDirectory() as out:
            command.command(["sac", "--env", environment, *self._flags, *flags.split()], out)
            policy = offbeat.load_policy(Path(out) / "run")
            return episode_returns(environment, policy.act)
