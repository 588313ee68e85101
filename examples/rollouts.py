"""PPO and asynchronous PPO on the same task.

    python examples/rollouts.py [--steps 30000] [--out runs]

PPO's collecting and learning take turns; APPO's collectors go on with weights that are some updates old.
"""

from __future__ import annotations

import argparse
import json


def main() -> None:
    import offbeat

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--out", default="runs")
    options = parser.parse_args()
    shared = {"total_steps": options.steps, "num_envs": 8, "rollout_steps": 64, "preset": None, "out": options.out}
    for algorithm, settings in {"ppo": {"minibatches": 4}, "appo": {"minibatches": 2, "collectors": 2}}.items():
        run = offbeat.train(algorithm, "CartPole-v1", **shared, **settings)
        summary = json.loads((run.path / "summary.json").read_text())
        print(f"{algorithm}: return {run.evaluation.mean_return:.0f} after {summary['wall_seconds']:.0f} s")
        print(f"{algorithm}: updates behind, at most: {summary['policy_lag']['most_updates']}")


if __name__ == "__main__":
    main()
