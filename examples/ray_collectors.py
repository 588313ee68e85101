"""Collectors in Ray actors: SAC, with the actors of a cluster instead of processes of this machine.

    python examples/ray_collectors.py [--steps 3000] [--address auto|HOST:PORT] [--out runs]

Without an address, Ray is started on this machine and ends with the run. Needs Ray: pip install 'offbeat[ray]'.
"""

from __future__ import annotations

import argparse
import json


def main(arguments: list[str] | None = None) -> None:
    import offbeat

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3_000, help="environment steps (default: %(default)s)")
    parser.add_argument("--address", help="address of an existing cluster (default: start one here)")
    parser.add_argument("--out", default="runs", help="directory for the run (default: %(default)s)")
    options = parser.parse_args(arguments)
    run = offbeat.train(
        "sac",
        "Pendulum-v1",
        total_steps=options.steps,
        num_envs=2,
        collectors=2,
        collector="ray",
        ray_address=options.address,
        out=options.out,
    )
    summary = json.loads((run.path / "summary.json").read_text())
    print(f"updates per step: {summary['updates_per_step']:.3f}")
    print(f"actors replaced: {summary['restarts']}, data lost: {summary['lost']}")


if __name__ == "__main__":
    main()
