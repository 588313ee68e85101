"""How an observation of any space becomes one vector, and images beside it."""

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

    path: where it stands in nested Dict (names) and Tuple (numbers) spaces; () for a lone space.
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
    """How a structured observation becomes one vector (and images): leaves in their fixed order.

    Dict keys are visited in sorted order, Tuple members by position, nested spaces depth first.
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
        """Vectors (B, O) of an observation as an environment gives it, and whether it is a stack of B or a single one.

        What came from outside is checked: a missing part, a wrong shape or a number that is not finite is refused.
        """
        lead: tuple[int, ...] | None = None
        for leaf in self.vectors:
            try:
                shape = np.shape(leaf.of(raw))
            except (LookupError, TypeError, ValueError) as error:
                raise UsageError(f"the observation {raw!r} has no part {leaf.name!r}") from error
            own = () if leaf.kind == "discrete" else leaf.shape
            this = shape[: len(shape) - len(own)]
            if shape[len(this) :] != own or len(this) > 1 or lead not in (None, this) or 0 in this:
                raise UsageError(
                    f"the observation{f' {leaf.name!r}' if leaf.name else ''} has shape {shape}; it must be {own}, or "
                    f"{('N', *own)} for a stack of N".replace("'N'", "N")
                )
            lead = this
        stack = bool(lead)
        rows = self.encode(raw, lead[0] if lead else None).reshape(lead[0] if lead else 1, self.size)
        if not np.isfinite(rows).all():
            raise UsageError(f"the observation {raw!r} holds numbers that are not finite")
        return rows, stack

    @staticmethod
    def _part(leaf: Leaf, value: Array, lead: tuple[int, ...]) -> Array:
        if leaf.kind == "discrete":
            return (np.arange(leaf.start, leaf.start + leaf.size) == value.reshape(*lead, 1)).astype(np.float32)
        return value.reshape(*lead, leaf.size).astype(np.float32)
