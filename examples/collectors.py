"""Asynchronous collection: two collector processes, one of which is killed during the run.

    python examples/collectors.py [--steps 3000] [--out runs]

The run continues: the collector is restarted, and no transition that it had written is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from typing import Any


class KillCollector:
    """A callback that kills collector 0 once, at step `at`."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_chunk(self, event: Any) -> None:
        if self.at and event.step >= self.at:
            processes = json.loads((event.path / "status.json").read_text())["processes"]
            collector = next((each for each in processes if each["name"] == "collector 0"), None)
            if collector is not None and collector["pid"] is not None:
                os.kill(collector["pid"], signal.SIGKILL)
                self.at = 0


def main() -> None:
    import offbeat

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3_000, help="environment steps (default: %(default)s)")
    parser.add_argument("--out", default="runs", help="directory for the run (default: %(default)s)")
    options = parser.parse_args()
    run = offbeat.train(
        "sac",
        "Pendulum-v1",
        total_steps=options.steps,
        num_envs=2,
        collectors=2,
        callbacks=[KillCollector(at=options.steps // 2)],
        trace=True,
        out=options.out,
    )
    summary = json.loads((run.path / "summary.json").read_text())
    print(f"collectors restarted: {summary['restarts']}")
    print(f"updates per step: {summary['updates_per_step']:.3f}")
    print(f"largest policy lag in updates: {summary['policy_lag']['most_updates']}")
    print(f"to summarise the trace: offbeat trace {run.path}")


if __name__ == "__main__":
    main()
