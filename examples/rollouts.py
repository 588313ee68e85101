"""PPO and asynchronous PPO (APPO) on the same task.

    python examples/rollouts.py [--steps 30000] [--out runs]

PPO alternates collection and learning. APPO's collectors continue with older weights while the learner updates.
"""

from __future__ import annotations

import argparse
import json


def main() -> None:
    import offbeat

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30_000, help="environment steps (default: %(default)s)")
    parser.add_argument("--out", default="runs", help="directory for the run (default: %(default)s)")
    options = parser.parse_args()
    shared = {"total_steps": options.steps, "num_envs": 8, "rollout_steps": 64, "preset": None, "out": options.out}
    for algorithm, settings in {"ppo": {"minibatches": 4}, "appo": {"minibatches": 2, "collectors": 2}}.items():
        run = offbeat.train(algorithm, "CartPole-v1", **shared, **settings)
        summary = json.loads((run.path / "summary.json").read_text())
        print(f"{algorithm}: return {run.evaluation.mean_return:.0f} after {summary['wall_seconds']:.0f} s")
        print(f"{algorithm}: largest policy lag in updates: {summary['policy_lag']['most_updates']}")


if __name__ == "__main__":
    main()
