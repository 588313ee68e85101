"""Train SAC on Pendulum-v1, compare it with a random policy, draw the learning curve and record a video.

    python examples/demo.py [--steps 10000] [--seed 0] [--out runs]

The exit code is 1 if the mean return of the trained policy over 20 episodes is below -200.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # render without a window

import gymnasium
import numpy as np

import offbeat
from offbeat.observe.plot import learning_curve
from offbeat.observe.video import frame_rate, write_video

ENVIRONMENT = "Pendulum-v1"
SEEDS = range(1_000_000, 1_000_020)
SOLVED = -200.0


def play(env: gymnasium.Env[Any, Any], act: Callable[[Any], Any], seed: int, frames: list[Any] | None = None) -> float:
    """Runs one episode and returns its return; appends the rendered frames to `frames`."""
    obs, _ = env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        if frames is not None:
            frames.append(env.render())
        obs, reward, terminated, truncated, _ = env.step(act(obs))
        total, ended = total + float(reward), terminated or truncated
    return total


def record(act: Callable[[Any], Any], path: Path) -> Path:
    """Records the episode that starts with the pendulum lowest; observation[0] is the height of its tip."""
    env = gymnasium.make(ENVIRONMENT, render_mode="rgb_array")
    lowest = min(SEEDS, key=lambda seed: env.reset(seed=seed)[0][0])
    frames: list[Any] = []
    play(env, act, lowest, frames)
    env.close()
    return write_video(frames, path, frame_rate(env))


def main() -> int:
    parser = argparse.ArgumentParser(description="Train SAC on Pendulum-v1 and compare it with a random policy.")
    parser.add_argument("--steps", type=int, default=10_000, help="environment steps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (default: %(default)s)")
    parser.add_argument("--out", default="runs", help="directory for the run (default: %(default)s)")
    arguments = parser.parse_args()

    run = offbeat.train(
        "sac",
        ENVIRONMENT,
        total_steps=arguments.steps,
        random_steps=min(500, arguments.steps // 2),
        warmup_steps=min(500, arguments.steps // 2),
        hidden=(128, 128),
        eval_every=1_000,
        log_every=200,
        threads=1,  # more threads do not speed up small networks, and slow them on a busy machine
        seed=arguments.seed,
        out=arguments.out,
    )

    policy, env = run.policy(), gymnasium.make(ENVIRONMENT)
    env.action_space.seed(0)
    trained = np.array([play(env, policy.act, seed) for seed in SEEDS])
    untrained = np.array([play(env, lambda _: env.action_space.sample(), seed) for seed in SEEDS])
    env.close()
    curve = learning_curve(run.path, random_return=float(untrained.mean()))
    video = record(policy.act, run.path / "videos" / "demo.gif")

    print(f"\nMean return over the same {len(SEEDS)} episodes (the maximum is 0):")
    print(f"  random policy   {untrained.mean():9.1f}  (std {untrained.std():.1f})")
    print(f"  trained policy  {trained.mean():9.1f}  (std {trained.std():.1f})")
    print(f"Learning curve: {curve}")
    print(f"Video:          {video}")
    print(f"run: {run.path}")
    if trained.mean() < SOLVED:
        print(
            f"not solved: the mean return {trained.mean():.1f} is below {SOLVED}; use more --steps",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
