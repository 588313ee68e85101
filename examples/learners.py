"""Two learners train together, one of them is killed, and one learner goes on from the last checkpoint.

python examples/learners.py [--steps 2000] [--out runs/learners]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import offbeat


def ranks_of(command: int) -> list[int]:
    """The processes of the learners that a command has started, in the order of their ranks."""
    children = Path(f"/proc/{command}/task/{command}/children").read_text().split()
    ranked = {}
    for child in map(int, children):
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        ranked |= {int(each.removeprefix(b"RANK=")): child for each in variables if each.startswith(b"RANK=")}
    return [ranked[rank] for rank in sorted(ranked)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2_000, help="environment steps of all learners")
    parser.add_argument("--out", default="runs", help="directory for runs (default: %(default)s)")
    arguments = parser.parse_args()

    settings = ["--warmup-steps", "100", "--hidden", "32", "32", "--batch-size", "32", "--eval-episodes", "1"]
    train = [sys.executable, "-m", "offbeat", "train", "sac", "--env", "Pendulum-v1", "--learners", "2", *settings]
    train += ["--total-steps", str(arguments.steps), "--checkpoint-every", "200", "--out", arguments.out]
    run = Path(arguments.out) / f"learners-{os.getpid()}"
    command = subprocess.Popen([*train, "--name", run.name])
    while command.poll() is None and not (run / "checkpoints" / "step-000000000200").exists():
        time.sleep(0.05)
    os.kill(ranks_of(command.pid)[1], signal.SIGKILL)
    print(f"killed a learner; the command ended with {command.wait()}", flush=True)

    result = offbeat.resume(run, learners=1)
    print(f"one learner went on: {result.status} with a mean return of {result.evaluation.mean_return:.0f}")


if __name__ == "__main__":
    main()
