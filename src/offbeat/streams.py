"""Named random streams: independent of each other, saved in checkpoints, and equal for every backend."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

NAMES = ("initial", "acting", "sampling", "noise")


class Streams:
    """One NumPy generator per purpose, all derived from the run's seed.

    initial: initial weights. acting: exploration. sampling: minibatches. noise: random numbers inside of updates.
    """

    def __init__(self, seed: int) -> None:
        self._generators = {
            name: np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())])))
            for name in NAMES
        }
        self.initial, self.acting = self._generators["initial"], self._generators["acting"]
        self.sampling, self.noise = self._generators["sampling"], self._generators["noise"]

    def state(self) -> dict[str, Any]:
        return {name: generator.bit_generator.state for name, generator in self._generators.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, generator in self._generators.items():
            generator.bit_generator.state = state[name]


def episode_seed(run_seed: int, env: int, episode: int, purpose: str = "train") -> int:
    """The reset seed of one episode, so that any episode can be repeated. Each `purpose` has its own seeds."""
    entropy = [run_seed, zlib.crc32(purpose.encode()), env, episode]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])
