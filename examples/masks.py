"""Masks of allowed actions: a game whose rules forbid some moves, and an agent that never tries one.

    python examples/masks.py [--steps 3000] [--out runs]
    cd examples && offbeat train dqn --env masks:Nim --mask-key action_mask --total-steps 3000     # the same

The mask stands in `info["action_mask"]`, 1 for each action that is allowed and 0 for each other, after reset and step.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STONES = 12


class Nim(gymnasium.Env[int, int]):
    """Take 1, 2 or 3 stones in turn with a careless opponent; whoever takes the last one wins. Observation: stones."""

    observation_space = spaces.Discrete(STONES + 1)
    action_space = spaces.Discrete(3, start=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self.stones = int(self.np_random.integers(4, STONES + 1))
        return self.stones, self.rules()

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        if not self.rules()["action_mask"][action - 1]:
            raise ValueError(f"{action} stones cannot be taken of {self.stones}")
        self.stones -= int(action)
        if self.stones == 0:
            return 0, 1.0, True, False, self.rules()
        self.stones -= int(self.np_random.integers(1, min(3, self.stones) + 1))
        return self.stones, -1.0 if self.stones == 0 else 0.0, self.stones == 0, False, self.rules()

    def rules(self) -> dict[str, Any]:
        """When the game is over nothing is allowed, which is fine: nobody acts any more."""
        return {"action_mask": np.array([count <= self.stones for count in (1, 2, 3)])}


def main() -> None:
    import offbeat

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--out", default="runs")
    arguments = parser.parse_args()
    run = offbeat.train(
        "dqn",
        Nim,
        mask_key="action_mask",
        max_episode_steps=STONES,
        total_steps=arguments.steps,
        random_steps=arguments.steps // 6,
        warmup_steps=arguments.steps // 6,
        exploration_steps=arguments.steps // 2,
        target_every=100,
        hidden=(64, 64),
        out=arguments.out,
    )
    # A policy in a loop of its own is told the mask as well.
    policy, env, won = run.policy(), Nim(), 0
    for game in range(100):
        obs, info = env.reset(seed=game)
        over = False
        while not over:
            obs, reward, over, _, info = env.step(policy.act(obs, mask=info["action_mask"]))
        won += reward > 0
    print(f"won {won} of 100 games, without a forbidden move")
    print(f"run: {run.path}")


if __name__ == "__main__":
    main()
