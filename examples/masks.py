"""Action masks: a game in which some moves are illegal, and an agent that never chooses one.

    python examples/masks.py [--steps 3000] [--out runs]
    cd examples && offbeat train dqn --env masks:Nim --mask-key action_mask --total-steps 3000     # the same

The environment returns the mask as `info["action_mask"]` from reset and step: 1 for each valid action, else 0.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STONES = 12


class Nim(gymnasium.Env[int, int]):
    """Take 1, 2 or 3 stones in turn with a random opponent; the last stone wins. Observation: number of stones."""

    observation_space = spaces.Discrete(STONES + 1)
    action_space = spaces.Discrete(3, start=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self.stones = int(self.np_random.integers(4, STONES + 1))
        return self.stones, self.mask_info()

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        if not self.mask_info()["action_mask"][action - 1]:
            raise ValueError(f"cannot take {action} stones: only {self.stones} are left")
        self.stones -= int(action)
        if self.stones == 0:
            return 0, 1.0, True, False, self.mask_info()
        self.stones -= int(self.np_random.integers(1, min(3, self.stones) + 1))
        return self.stones, -1.0 if self.stones == 0 else 0.0, self.stones == 0, False, self.mask_info()

    def mask_info(self) -> dict[str, Any]:
        """After the last stone no action is valid. That is allowed, because the episode has terminated."""
        return {"action_mask": np.array([count <= self.stones for count in (1, 2, 3)])}


def main() -> None:
    import offbeat

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3_000, help="environment steps (default: %(default)s)")
    parser.add_argument("--out", default="runs", help="directory for the run (default: %(default)s)")
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
    # Outside of training, pass the mask to the policy yourself.
    policy, env, won = run.policy(), Nim(), 0
    for game in range(100):
        obs, info = env.reset(seed=game)
        over = False
        while not over:
            obs, reward, over, _, info = env.step(policy.act(obs, mask=info["action_mask"]))
        won += reward > 0
    print(f"won {won} of 100 games, without an illegal move")
    print(f"run: {run.path}")


if __name__ == "__main__":
    main()
