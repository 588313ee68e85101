"""The layout of observations: any space becomes one float32 vector and separate images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat.errors import UsageError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Leaf:
    """One part of an observation.

    path: its keys in nested Dict (names) and Tuple (numbers) spaces; () for a space without parts.
    kind: "box" is flattened into the vector, "discrete" becomes one-hot (shape (n,), values start..start+n-1),
    "image" (uint8 with two or three dimensions) keeps its shape and dtype.
    """

    path: tuple[str | int, ...]
    kind: str
    shape: tuple[int, ...]
    dtype: str
    start: int = 0

    @property
    def name(self) -> str:
        return "/".join(str(part) for part in self.path)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def of(self, raw: Any) -> Any:
        for part in self.path:
            raw = raw[part]
        return raw


@dataclass(frozen=True)
class Layout:
    """The leaves of a structured observation, in the order in which they form one vector (and images).

    Dict keys are sorted, Tuple members are ordered by position, and nested spaces are visited depth first.
    """

    leaves: tuple[Leaf, ...]

    @property
    def size(self) -> int:
        return sum(leaf.size for leaf in self.vectors)

    @property
    def vectors(self) -> tuple[Leaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.kind != "image")

    @property
    def images(self) -> tuple[Leaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.kind == "image")

    def encode(self, raw: Any, batch: int | None = None) -> Array:
        """The vector part of one observation (O,), or of `batch` observations stacked by leaf (batch, O), float32."""
        lead = () if batch is None else (batch,)
        parts = [self._part(leaf, np.asarray(leaf.of(raw)), lead) for leaf in self.vectors]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts, axis=-1) if parts else np.zeros((*lead, 0), np.float32)

    def read(self, raw: Any) -> tuple[Array, bool]:
        """The vectors (B, O) of an observation from an environment, and whether it is a stack of B (or a single one).

        Raises UsageError for a missing part, a wrong shape or a number that is not finite.
        """
        lead: tuple[int, ...] | None = None
        for leaf in self.vectors:
            try:
                shape = np.shape(leaf.of(raw))
            except (LookupError, TypeError, ValueError) as error:
                raise UsageError(
                    f"the observation {raw!r} has no part {leaf.name!r}; pass it as the environment returns it"
                ) from error
            expected = () if leaf.kind == "discrete" else leaf.shape
            batch = shape[: len(shape) - len(expected)]
            if shape[len(batch) :] != expected or len(batch) > 1 or lead not in (None, batch) or 0 in batch:
                raise UsageError(
                    f"the observation{f' {leaf.name!r}' if leaf.name else ''} has shape {shape}; it must be "
                    f"{expected}, or {('N', *expected)} for a stack of N".replace("'N'", "N")
                )
            lead = batch
        stack = bool(lead)
        rows = self.encode(raw, lead[0] if lead else None).reshape(lead[0] if lead else 1, self.size)
        if not np.isfinite(rows).all():
            raise UsageError(f"the observation {raw!r} holds numbers that are not finite; correct what makes it")
        return rows, stack

    @staticmethod
    def _part(leaf: Leaf, value: Array, lead: tuple[int, ...]) -> Array:
        if leaf.kind == "discrete":
            return (np.arange(leaf.start, leaf.start + leaf.size) == value.reshape(*lead, 1)).astype(np.float32)
        return value.reshape(*lead, leaf.size).astype(np.float32)
