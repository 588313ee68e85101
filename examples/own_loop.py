"""Your own training loop: you step the environment, and the agent acts, observes, updates, saves and loads.

python examples/own_loop.py [--steps 3000] [--out runs/own-loop]
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np

import offbeat


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3_000, help="environment steps (default: %(default)s)")
    parser.add_argument("--out", default="runs/own-loop", help="directory of the checkpoint (default: %(default)s)")
    arguments = parser.parse_args()

    env = gymnasium.make("Pendulum-v1")
    settings = {"random_steps": 200, "warmup_steps": 200, "capacity": 10_000, "seed": 0}
    agent = offbeat.Agent("sac", env, **settings)

    total, returns = 0.0, []
    obs, _ = env.reset(seed=0)
    for _ in range(arguments.steps):
        action = agent.act(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        # At the end of an episode, next_obs is its final observation, not the first one of the next episode.
        agent.observe(obs, action, reward, next_obs, terminated, truncated)
        agent.update()
        total += float(reward)
        obs = next_obs
        if terminated or truncated:
            returns.append(total)
            print(f"episode {len(returns)}: {total:.1f}")
            total = 0.0
            obs, _ = env.reset()

    path = agent.save(arguments.out)
    again = offbeat.Agent("sac", env, **settings)
    again.load(path)
    same = np.array_equal(again.act(obs, deterministic=True), agent.act(obs, deterministic=True))
    print(f"saved to {path}; the loaded agent acts {'identically' if same else 'differently'}")


if __name__ == "__main__":
    main()
