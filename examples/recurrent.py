"""Trains an agent with a memory: Pendulum without its velocity, which only earlier observations tell.

Each action depends on a recurrent state. The library resets it where an episode begins, stores it with each step, and
draws sequences of steps from replay to learn from.
"""

import argparse

import gymnasium
import numpy as np

import offbeat


class WithoutVelocity(gymnasium.ObservationWrapper):
    """The cosine and the sine of the angle alone."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def observation(self, observation):
        return observation[:2]


def make():
    return WithoutVelocity(gymnasium.make("Pendulum-v1"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40_000)
    steps = parser.parse_args().steps
    run = offbeat.train(
        "sac",
        make,
        network="gru",
        recurrent_size=64,
        hidden=(64, 64),
        sequence_length=10,
        burn_in=4,
        batch_size=32,
        updates_per_step=0.25,
        actor_schedule="linear",
        critic_schedule="linear",
        total_steps=steps,
        warmup_steps=min(1_000, steps // 4),
        random_steps=min(1_000, steps // 4),
    )
    print(f"mean return {run.evaluation.mean_return:.0f}")

    policy, env = run.policy(), make()  # `act` keeps the state from call to call; `reset` begins an episode
    obs, _ = env.reset(seed=0)
    policy.reset()
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
        total, over = total + reward, terminated or truncated
    print(f"one episode: {total:.0f}")


if __name__ == "__main__":
    main()
