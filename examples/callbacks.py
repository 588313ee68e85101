"""Your own code during a run: a callback that prints evaluations, logs a metric and stops the run at a target return.

    python examples/callbacks.py [--steps 10000] [--enough -300] [--out runs]

`offbeat train sac ... --stop-return -300` stops a run at a return without any code.
"""

from __future__ import annotations

import argparse

import offbeat
from offbeat.run.callbacks import CheckpointEvent, ChunkEvent, EvaluationEvent


class Coach:
    """Any object with at least one of on_chunk, on_update, on_evaluation and on_checkpoint is a callback."""

    def __init__(self, enough: float) -> None:
        self.enough, self.best_episode = enough, float("-inf")

    def on_chunk(self, event: ChunkEvent) -> None:
        for episode in event.chunk.finished:
            self.best_episode = max(self.best_episode, episode.total_reward)
            event.run.log("best_episode", self.best_episode)  # written to metrics.jsonl, console and TensorBoard

    def on_evaluation(self, event: EvaluationEvent) -> str | None:
        mean = event.evaluation.mean_return
        print(f"step {event.step}: evaluation {mean:.1f}, best training episode {self.best_episode:.1f}")
        if mean > self.enough - 200:
            event.run.set_learning_rate(1e-4)  # smaller steps near the target
        return f"{mean:.1f} is enough" if mean >= self.enough else None  # a true value stops the run

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        print(f"step {event.step}: {event.checkpoint.name} is on disk")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000, help="environment steps (default: %(default)s)")
    parser.add_argument("--enough", type=float, default=-300.0, help="stop at this return (default: %(default)s)")
    parser.add_argument("--out", default="runs", help="directory for the run (default: %(default)s)")
    arguments = parser.parse_args()
    run = offbeat.train(
        "sac",
        "Pendulum-v1",
        callbacks=[Coach(arguments.enough)],
        total_steps=arguments.steps,
        random_steps=min(500, arguments.steps // 2),
        warmup_steps=min(500, arguments.steps // 2),
        hidden=(64, 64),
        eval_every=min(1_000, arguments.steps // 2),
        threads=1,
        quiet=True,
        out=arguments.out,
    )
    print(f"{run.status}: {run.stop_reason or 'all steps are made'}")
    print(f"run: {run.path}")


if __name__ == "__main__":
    main()
