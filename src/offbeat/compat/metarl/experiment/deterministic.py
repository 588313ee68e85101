"""The seed of the process."""

from __future__ import annotations

import random
import sys
import zlib

import numpy as np

_seed: int | None = None
_made = 0


def set_seed(seed: int) -> None:
    """Seeds Python, NumPy, torch, and everything of this package that is made afterwards."""
    global _seed, _made
    _seed, _made = seed % 4_294_967_294, 0
    random.seed(_seed)
    np.random.seed(_seed)  # noqa: NPY002 - user code draws from it
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(_seed)


def get_seed() -> int | None:
    """The seed that was set last, or None."""
    return _seed


def generator(purpose: str) -> np.random.Generator:
    """A new random generator, which follows from the seed, the purpose, and how many were made since `set_seed`."""
    global _made
    _made += 1
    seed = np.random.SeedSequence().entropy if _seed is None else _seed
    assert isinstance(seed, int)
    entropy = [seed, zlib.crc32(purpose.encode()), _made]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
