"""A trained policy without a learner: NumPy and the run's policy folder, no torch and no Gymnasium.

python examples/act_without_learner.py runs/first            # or runs/first/policy, copied to a robot
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

import offbeat

ACTIONS = 1_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", help="a run's directory, or its policy folder")
    policy = offbeat.load_policy(parser.parse_args().run)

    obs = np.zeros(policy.spec.observation_size, np.float32)
    print(f"action for an observation of zeros: {policy.act(obs)}, in the environment's own units")
    print(f"an exploring action: {policy.act(obs, deterministic=False)}")

    start = time.perf_counter()
    for _ in range(ACTIONS):
        policy.act(obs)
    print(f"{(time.perf_counter() - start) / ACTIONS * 1e6:.0f} microseconds per action")
    heavy = sorted({"torch", "gymnasium"} & set(sys.modules))
    print(f"heavy libraries loaded: {', '.join(heavy) or 'none'}")


if __name__ == "__main__":
    main()
