"""examples/coming_from_skrl.py as a contestant, with the import lines of either library."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
import types
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "coming_from_skrl.py"
OURS = "from offbeat.compat.skrl."


class Reached(Exception):
    """The last timed step was made."""


class Script:
    """The example with these imports. imports: what its import lines begin with instead."""

    def __init__(self, imports: str) -> None:
        self._module = types.ModuleType("script")
        source = EXAMPLE.read_text().replace(OURS, imports)
        exec(compile(source, str(EXAMPLE), "exec"), self._module.__dict__)

    def timesteps_per_second(self, hidden: list[int], batch_size: int, first: int, last: int, seed: int) -> float:
        """Trains until step `last`, with tracking as in the example, and times the steps from `first` on."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:  # TensorBoard may still write
            options = argparse.Namespace(
                timesteps=10_000,
                learning_starts=min(200, first),
                hidden=hidden,
                batch_size=batch_size,
                checkpoint_interval=0,
                directory=directory,
                seed=seed,
            )
            trainer = self._module.make_trainer(options)
            times = self._watch(trainer.agents, first, last)
            with contextlib.suppress(Reached):
                trainer.train()
        return (last - first) / (times[1] - times[0])

    @staticmethod
    def _watch(agent: Any, first: int, last: int) -> list[float]:
        """Notes the time at both steps, and ends the training at the last."""
        times: list[float] = []
        before = agent.pre_interaction

        def pre_interaction(*, timestep: int, timesteps: int) -> None:
            if timestep in (first, last):
                times.append(time.perf_counter())
            if timestep == last:
                raise Reached
            before(timestep=timestep, timesteps=timesteps)

        agent.pre_interaction = pre_interaction
        return times
