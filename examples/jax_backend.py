"""One run on both backends: trained in torch, moved to JAX in the middle, and moved back.

    pip install 'offbeat[jax]'
    python examples/jax_backend.py [--steps 9000] [--out runs]

A conversion changes no number: the digests before and after it are equal, and the returns go on where they were.
"""

from __future__ import annotations

import argparse

import offbeat
from offbeat.run.checkpoint import digest


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=9_000, help="environment steps in all (default: %(default)s)")
    parser.add_argument("--out", default="runs", help="directory for the run (default: %(default)s)")
    options = parser.parse_args()
    third = options.steps // 3
    run = offbeat.train("sac", "Pendulum-v1", total_steps=third, hidden=(64, 64), out=options.out, quiet=True)
    print(f"torch: return {run.evaluation.mean_return:.1f} at step {third}")
    for backend, steps in (("jax", 2 * third), ("torch", options.steps)):
        before = digest(run.path)
        offbeat.convert(run.path, backend=backend)
        assert digest(run.path) == before
        run = offbeat.resume(run.path, total_steps=steps, quiet=True)
        print(f"{backend}: return {run.evaluation.mean_return:.1f} at step {steps}")
    print(f"run: {run.path}")


if __name__ == "__main__":
    main()
