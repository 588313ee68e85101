"""Your own environment: a Gymnasium environment, passed to Offbeat as a factory.

    python examples/own_environment.py [--steps 3000] [--out runs]
    cd examples && offbeat train sac --env own_environment:Reach --total-steps 3000     # the same from the command line

`offbeat check-env own_environment:Reach` tests the environment and reports its problems.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Reach(gymnasium.Env[np.ndarray, np.ndarray]):
    """Move a point in a square to a goal. Observation: point and goal; action: velocity."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Box(-0.2, 0.2, (2,), np.float32)

    def __init__(self, time_limit: int = 30) -> None:
        self.time_limit = time_limit

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.point, self.goal = self.np_random.uniform(-1.0, 1.0, (2, 2))
        self.time = 0
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.point = np.clip(self.point + action, -1.0, 1.0)
        self.time += 1
        distance = float(np.linalg.norm(self.point - self.goal))
        # Reaching the goal terminates the episode; the time limit truncates it.
        return self.observe(), -distance, distance < 0.05, self.time >= self.time_limit, {}

    def observe(self) -> np.ndarray:
        return np.concatenate([self.point, self.goal]).astype(np.float32)


def main() -> None:
    import offbeat

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3_000, help="environment steps (default: %(default)s)")
    parser.add_argument("--out", default="runs", help="directory for the run (default: %(default)s)")
    arguments = parser.parse_args()
    run = offbeat.train(
        "sac",
        Reach,
        env_kwargs={"time_limit": 40},
        num_envs=4,
        total_steps=arguments.steps,
        random_steps=min(400, arguments.steps // 2),
        warmup_steps=min(400, arguments.steps // 2),
        eval_every=1_000,
        hidden=(64, 64),
        out=arguments.out,
    )
    assert run.evaluation is not None
    print(f"mean return {run.evaluation.mean_return:.2f}, mean length {np.mean(run.evaluation.lengths):.1f}")
    print(f"run: {run.path}")


if __name__ == "__main__":
    main()
