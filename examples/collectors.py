"""Environments and learner side by side: collector processes, one of which is killed on the way.

    python examples/collectors.py [--steps 3000] [--out runs]

The run goes on all the same: another collector takes its place, and no row that it had written is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from typing import Any


class Sabotage:
    """A callback that kills a collector in the middle of the run, as a bug or the kernel might."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_chunk(self, event: Any) -> None:
        if self.at and event.step >= self.at:
            processes = json.loads((event.path / "status.json").read_text())["processes"]
            victim = next((each for each in processes if each["name"] == "collector 0"), None)
            if victim is not None and victim["pid"] is not None:
                os.kill(victim["pid"], signal.SIGKILL)
                self.at = 0


def main() -> None:
    import offbeat

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--out", default="runs")
    options = parser.parse_args()
    run = offbeat.train(
        "sac",
        "Pendulum-v1",
        total_steps=options.steps,
        num_envs=2,
        collectors=2,
        callbacks=[Sabotage(at=options.steps // 2)],
        trace=True,
        out=options.out,
    )
    summary = json.loads((run.path / "summary.json").read_text())
    print(f"collectors replaced: {summary['restarts']}")
    print(f"updates per step: {summary['updates_per_step']:.3f}")
    print(f"updates behind, at most: {summary['policy_lag']['most_updates']}")
    print(f"where the time went: offbeat trace {run.path}")


if __name__ == "__main__":
    main()
