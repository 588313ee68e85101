"""torch's tensors, for what is written once for both frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.compat.skrl.framework import config
from offbeat.types import Array


class TorchArrays:
    """`Arrays` of torch."""

    kind: Any = Tensor

    @property
    def learners(self) -> tuple[str, int]:
        return "WORLD_SIZE", config.torch.world_size

    @property
    def seed(self) -> int:
        return config.torch.key

    def device(self, name: Any) -> torch.device:
        return config.torch.parse_device(name)

    def put(self, array: Any, device: Any) -> Tensor:
        return torch.from_numpy(np.asarray(array)).to(device)

    def move(self, array: Tensor, device: Any) -> Tensor:
        return array.to(device)

    def get(self, array: Any) -> Array:
        if not isinstance(array, Tensor):
            return np.asarray(array)
        array = array.detach().cpu()
        return (array.float() if array.dtype == torch.bfloat16 else array).numpy()

    def concatenate(self, arrays: Sequence[Any], axis: int = 0) -> Tensor:
        return torch.cat(list(arrays), axis)

    def dtype_name(self, dtype: Any) -> str:
        return str(torch.get_default_dtype() if dtype is None else dtype).removeprefix("torch.")

    def without_gradients(self) -> AbstractContextManager[Any]:
        return torch.no_grad()

    def shared(self, size: int) -> tuple[Any, np.ndarray]:
        memory = torch.zeros(size, dtype=torch.uint8).share_memory_()
        return memory, memory.numpy()

    def view(self, column: Array, shared: Any) -> Tensor:
        """Of a ring in torch's shared memory, a tensor that torch knows to be shared."""
        view = torch.from_numpy(column)
        if shared is None:
            return view
        offset = (column.__array_interface__["data"][0] - shared.data_ptr()) // column.itemsize
        return view.new_empty(0).set_(shared.untyped_storage(), offset, view.shape, view.stride())


TORCH = TorchArrays()
