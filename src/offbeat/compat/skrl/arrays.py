"""What agents, memories, trainers and wrappers need of torch or JAX, so that each is written once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from offbeat.types import Array


class Arrays(Protocol):
    """A framework's arrays. kind: their class."""

    kind: Any

    @property
    def learners(self) -> tuple[str, int]:
        """The environment variable with the number of learners, and that number."""

    @property
    def seed(self) -> int:
        """The seed of `set_seed`."""

    def device(self, name: Any) -> Any:
        """The device of a name."""

    def put(self, array: Any, device: Any) -> Any:
        """A NumPy array as one of the framework, on the device."""

    def move(self, array: Any, device: Any) -> Any:
        """An array of the framework, on the device."""

    def get(self, array: Any) -> Array:
        """The framework's array, or anything that is like one, as NumPy's."""

    def concatenate(self, arrays: Sequence[Any], axis: int = 0) -> Any: ...

    def dtype_name(self, dtype: Any) -> str:
        """NumPy's name of one of the framework's dtypes; of its default one for None."""

    def without_gradients(self) -> AbstractContextManager[Any]: ...

    def shared(self, size: int) -> tuple[Any, np.ndarray]:
        """Memory of so many bytes that forked processes share: what keeps it, and a view of it."""

    def view(self, column: Array, shared: Any) -> Any:
        """An array over a column of a ring. shared: what `shared` returned for it, or None."""
