"""Inference without torch and Gymnasium: load the exported policy of a run and act with NumPy.

python examples/act_without_learner.py runs/first            # or a copy of runs/first/policy
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
    parser.add_argument("run", help="directory of a run, or its policy/ directory")
    policy = offbeat.load_policy(parser.parse_args().run)

    obs = np.zeros(policy.spec.observation_size, np.float32)
    print(f"action for an observation of zeros: {policy.act(obs)}, in the units of the environment")
    print(f"action with exploration noise: {policy.act(obs, deterministic=False)}")

    start = time.perf_counter()
    for _ in range(ACTIONS):
        policy.act(obs)
    print(f"{(time.perf_counter() - start) / ACTIONS * 1e6:.0f} microseconds per action")
    heavy = sorted({"torch", "gymnasium"} & set(sys.modules))
    print(f"heavy libraries loaded: {', '.join(heavy) or 'none'}")


if __name__ == "__main__":
    main()
