"""Reads shared weights again and again in a process of its own; prints how many different versions it saw."""

from __future__ import annotations

import sys

import numpy as np

from offbeat.memory import Memory
from offbeat.weights.shared import SharedWeights


def main(descriptor: int, nbytes: int, size: int, reads: int) -> None:
    weights = SharedWeights((("a", "<f4", (size,)), ("b", "<i8", (3, 5))), Memory(descriptor, nbytes).map())
    seen, last = set(), -1
    done = 0
    while done < reads or len(seen) <= 50:  # until it has met the writer often enough
        done += 1
        publication = weights.newest()
        first, second = publication.weights["a"], publication.weights["b"]
        assert (first == np.float32(publication.version)).all(), "a torn read"
        assert (second == publication.version).all(), "a torn read"
        assert publication.version >= last, "a version came back"
        last = publication.version
        seen.add(last)
    print(len(seen))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
