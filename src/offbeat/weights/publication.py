"""Published weights: a version, the arrays, and a checksum over version, names and numbers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from offbeat.types import Weights


@dataclass(frozen=True)
class Publication:
    """One version of the policy's weights; `version` is the number of updates so far."""

    version: int
    weights: Weights

    @cached_property
    def checksum(self) -> str:
        """SHA-256 over the version and every array's name, dtype, shape and bytes."""
        digest = hashlib.sha256(str(self.version).encode())
        for name in sorted(self.weights):
            array = np.asarray(self.weights[name])
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()
