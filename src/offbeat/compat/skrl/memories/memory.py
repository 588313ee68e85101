"""Memories: named tensors over a ring of our packed rows, whatever framework the tensors are of."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np

from offbeat.compat.skrl.arrays import Arrays
from offbeat.compat.skrl.utils.spaces.sizes import compute_space_size
from offbeat.errors import UsageError
from offbeat.memory import check_fits
from offbeat.replay.shard import Shard
from offbeat.types import Array, Chunk, Field, Schema

CORE_NAMES = {
    "observations": "obs",
    "states": "state",
    "actions": "action",
    "rewards": "reward",
    "next_observations": "next_obs",
    "next_states": "next_state",
    "terminated": "terminated",
    "truncated": "truncated",
    "environments": "env",
}
"""Tensors that our replay reads, and its names of them. Other tensors are stored as own/NAME."""
_SINGLE = ("rewards", "terminated", "truncated", "environments")
"""Tensors of size 1 that are single numbers in our rows."""
FORMATS = ("pt", "npz", "csv")


class RingMemory:
    """`Memory` of either framework, which sets `arrays`.

    The newest memory_size * num_envs rows, time first. Subclasses write `sample`.
    `tensors` maps names to views (memory_size, num_envs, size) of the ring, `tensors_view` to (memory_size * num_envs,
    size). The ring is in the CPU's memory; samples are on `device`.
    export: whether a full memory is written to export_directory before its oldest rows are overwritten.
    """

    arrays: ClassVar[Arrays]

    def __init__(
        self,
        *,
        memory_size: int,
        num_envs: int = 1,
        device: Any = None,
        export: bool = False,
        export_format: Literal["pt", "npz", "csv"] = "pt",
        export_directory: str = "",
    ) -> None:
        for name, value in (("memory_size", memory_size), ("num_envs", num_envs)):
            if not isinstance(value, int | np.integer) or value < 1:
                raise UsageError(f"{type(self).__name__}: {name}={value!r} is not a positive integer; use at least 1")
        if export_format not in FORMATS:
            raise UsageError(f"export_format={export_format!r} is unknown; use {', '.join(FORMATS)}")
        self.memory_size, self.num_envs = int(memory_size), int(num_envs)
        self.device = self.arrays.device(device)
        self.export, self.export_format, self.export_directory = export, export_format, export_directory
        self.sampling_indexes: Any = None
        self.edits = 0  # changes of stored rows, after which a checkpoint writes all of them again
        self._fields: dict[str, Field] = {}
        self._shard: Shard | None = None
        self._views: dict[str, Any] = {}
        self._is_shared = False
        # Where the next row goes, as indexes of `tensors`, and whether every row was written.
        self.memory_index, self.env_index, self.filled = 0, 0, False

    # The ring.

    @property
    def shard(self) -> Shard:
        """Our ring with these tensors as its columns; made when it is first needed."""
        if self._shard is None:
            self._open()
        assert self._shard is not None
        return self._shard

    def _open(self) -> None:
        if not self._fields:
            raise UsageError("this memory has no tensors; call create_tensor first (an agent does it in init)")
        capacity = self.memory_size * self.num_envs
        schema = Schema(tuple(self._fields.values()))
        size = Shard.nbytes(schema, capacity)
        check_fits(f"memory_size={self.memory_size} with num_envs={self.num_envs}", size)
        shared, buffer = self.arrays.shared(size) if self._is_shared else (None, None)
        self._shard = Shard(schema, capacity, buffer=buffer)
        self._views = {
            name: self.arrays.view(self._shard.column(field.name), shared).reshape(self._shape(name))
            for name, field in self._fields.items()
        }

    def _shape(self, name: str) -> tuple[int, ...]:
        return (self.memory_size, self.num_envs, *(self._fields[name].shape or (1,)))

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Views (memory_size, num_envs, size) of the ring, by name."""
        if self._shard is None and self._fields:
            self._open()
        return self._views

    @property
    def tensors_view(self) -> Mapping[str, Any]:
        """Views (memory_size * num_envs, size) of the ring, by name."""
        return {name: tensor.reshape(-1, *tensor.shape[2:]) for name, tensor in self.tensors.items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_tensor_") and name.removeprefix("_tensor_") in self.__dict__.get("_fields", {}):
            return self.tensors[name.removeprefix("_tensor_")]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """For another process: the rows instead of the ring."""
        state = {**self.__dict__, "_shard": None, "_views": {}}
        return state | {"_rows": None if self._shard is None else _rows(self._shard)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        rows = state.pop("_rows")
        self.__dict__.update(state)
        if rows is not None:
            self.shard.restore([rows])

    def __len__(self) -> int:
        """Rows that can be sampled."""
        return self.memory_size * self.num_envs if self.filled else self.memory_index * self.num_envs + self.env_index

    def reset(self) -> None:
        """Forgets all rows."""
        if self._shard is not None:
            self._shard.restore([])
            self.edits += 1
        self.filled, self.memory_index, self.env_index = False, 0, 0

    def continue_at(self, memory_index: int, env_index: int, filled: bool) -> None:
        """Sets where the next row goes, after all tensors were set."""
        position = memory_index * self.num_envs + env_index + filled * self.memory_size * self.num_envs
        nothing = {field.name: np.zeros((0, *field.shape), field.dtype) for field in self._fields.values()}
        self.shard.restore([Chunk(nothing, sequence=position)])
        self.memory_index, self.env_index, self.filled = memory_index, env_index, filled

    def _move_indexes(self) -> None:
        """Sets indexes and flag by the number of rows in the ring."""
        written, capacity = self.shard.committed, self.memory_size * self.num_envs
        self.filled = written >= capacity
        self.memory_index, self.env_index = divmod(written % capacity, self.num_envs)

    def share_memory(self) -> None:
        """Moves the tensors to shared memory: what a process that is forked later writes to them is seen in all."""
        if not self._is_shared:
            rows = None if self._shard is None else _rows(self._shard)
            self._is_shared, self._shard, self._views = True, None, {}
            if rows is not None:
                self.shard.restore([rows])
                self.edits += 1

    # Tensors.

    def get_tensor_names(self) -> list[str]:
        """Their names, sorted."""
        return sorted(self._fields)

    def get_tensor_by_name(self, name: str) -> Any:
        """The tensor (memory_size, num_envs, size); KeyError for an unknown name."""
        return self.tensors[name]

    def set_tensor_by_name(self, name: str, tensor: Any) -> None:
        """Overwrites a whole tensor; KeyError for an unknown name."""
        own = self.shard.column(self._fields[name].name).reshape(self._shape(name))
        own[...] = self.arrays.get(tensor)
        self.edits += 1

    def create_tensor(
        self,
        name: str,
        *,
        size: int | list[int] | tuple[int, ...] | gymnasium.Space | None,
        dtype: Any = None,
        keep_dimensions: bool = False,
    ) -> bool:
        """Adds a tensor (memory_size, num_envs, size); False where it exists already, or where size is None.

        size: also a space, whose flat size counts. dtype: the framework's default if None. keep_dimensions: size is a
        shape.
        """
        if size is None:
            return False
        if keep_dimensions and not isinstance(size, tuple | list):
            raise UsageError(f"create_tensor: size={size!r} with keep_dimensions must be a list of integers")
        shape = tuple(size) if keep_dimensions else (compute_space_size(size, occupied_size=True),)  # type: ignore[arg-type]
        kind = self.arrays.dtype_name(dtype)
        if not hasattr(np, kind):
            raise UsageError(f"create_tensor: dtype={dtype} of {name!r} has no NumPy equivalent; use float32")
        field = Field(CORE_NAMES.get(name, f"own/{name}"), () if name in _SINGLE and shape == (1,) else shape, kind)
        if name in self._fields:
            if self._fields[name].shape != field.shape or (dtype is not None and self._fields[name].dtype != kind):
                raise UsageError(
                    f"create_tensor: {name!r} exists with {self._fields[name]}, and is now {field}; keep one"
                )
            return False
        if len(self):
            raise UsageError(
                f"create_tensor: {name!r} comes after the first rows; create all tensors before add_samples"
            )
        self._fields[name], self._shard = field, None
        return True

    # Rows.

    def add_samples(self, **tensors: Any) -> None:
        """Appends rows: tensors (count, size), or (size,) for one row, by name; unknown names and None are skipped.

        count: num_envs, or fewer (a scope of the environments), or any number where num_envs is 1.
        """
        given = {name: tensor for name, tensor in tensors.items() if name in self._fields and tensor is not None}
        if not given:
            raise UsageError("add_samples: no tensor of this memory was given; pass them by name: observations=...")
        first = given.get("observations", next(iter(given.values())))
        count = len(first) if first.ndim > 1 else 1
        if self.num_envs > 1 and count > self.num_envs:
            raise UsageError(f"add_samples: {count} rows do not fit num_envs={self.num_envs}; pass at most as many")
        columns = {
            field.name: self._column(given.get(name), field, count, name) for name, field in self._fields.items()
        }
        capacity, before = self.memory_size * self.num_envs, self.shard.committed
        self.shard.write(Chunk(columns))
        self._move_indexes()
        if self.export and (before + count) // capacity > before // capacity:
            self.save(self.export_directory, format=self.export_format)

    # Sampling.

    def sample(
        self, names: list[str], *, batch_size: int, mini_batches: int = 1, sequence_length: int = 1
    ) -> list[list[Any]]:
        """To be written in a subclass: a list of mini-batches, each a list of tensors in the order of the names."""
        raise NotImplementedError(f"{type(self).__name__} has no method sample; write one, or use RandomMemory")

    def sample_by_index(self, names: list[str], *, indexes: Any, mini_batches: int = 1) -> list[list[Any]]:
        """The rows with these indexes, in mini-batches; None for an unknown name."""
        self.sampling_indexes = indexes
        rows = self.arrays.get(indexes)
        columns = {name: self.shard.column(field.name) for name, field in self._fields.items() if name in names}
        return [
            [
                self.arrays.put(columns[name][part].reshape(len(part), *self._shape(name)[2:]), self.device)
                if name in columns
                else None
                for name in names
            ]
            for part in np.array_split(rows, mini_batches)
        ]

    def sample_all(self, names: list[str], *, mini_batches: int = 1, sequence_length: int = 1) -> list[list[Any]]:
        """All rows, in mini-batches. sequence_length above 1: environment by environment."""
        order = np.arange(self.memory_size * self.num_envs)
        if sequence_length > 1:
            order = order.reshape(self.memory_size, self.num_envs).T.reshape(-1)
        kept = self.sampling_indexes
        found = self.sample_by_index(names, indexes=order, mini_batches=mini_batches)
        self.sampling_indexes = kept
        return found

    def get_sampling_indexes(self) -> Any:
        """The indexes that were sampled last."""
        return self.sampling_indexes

    # Files.

    def save(self, directory: str = "", *, format: Literal["pt", "npz", "csv"] = "pt") -> None:
        """Writes all tensors to DIRECTORY/memories; by default to the directory that the memory was made with."""
        if format not in FORMATS:
            raise UsageError(f"save: format={format!r} is unknown; use {', '.join(FORMATS)}")
        folder = Path(directory or self.export_directory) / "memories"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{datetime.datetime.now():%y-%m-%d_%H-%M-%S-%f}_memory_{id(self):#x}.{format}"
        arrays: dict[str, Any] = {
            name: np.ascontiguousarray(self.arrays.get(self.tensors[name])) for name in self.get_tensor_names()
        }
        if format == "pt":
            import torch

            torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
        elif format == "npz":
            np.savez(path, **arrays)
        else:
            with path.open("w", newline="") as file:
                csv.writer(file).writerows(self._table())

    def _table(self) -> Iterator[list[Any]]:
        found = {name: self.arrays.get(self.tensors_view[name]) for name in self.get_tensor_names()}
        views = {name: array.reshape(len(array), -1) for name, array in found.items()}
        yield [f"{name}.{index}" for name, view in views.items() for index in range(view.shape[1])]
        for row in range(len(self)):
            yield [value for view in views.values() for value in view[row].tolist()]

    def load(self, path: str) -> None:
        """Reads tensors that `save` wrote as pt or npz, into the existing tensors; the memory then counts as full."""
        if path.endswith(".pt"):
            import torch

            loaded = torch.load(path, map_location="cpu", weights_only=True)
            values = {name: tensor.numpy() for name, tensor in loaded.items()}
        elif path.endswith(".npz"):
            values = dict(np.load(path, allow_pickle=False))
        else:
            raise UsageError(f"load: {path} is neither pt nor npz; save the memory in one of these formats")
        columns = {}
        for name, field in self._fields.items():
            if name not in values or tuple(values[name].shape) != self._shape(name):
                raise UsageError(
                    f"load: {path} has no {name!r} of shape {self._shape(name)}; make the memory as it was"
                )
            columns[field.name] = values[name].reshape(-1, *field.shape)
        self.reset()
        self.shard.write(Chunk(columns))
        self._move_indexes()

    def _column(self, tensor: Any, field: Field, count: int, name: str) -> Array:
        """Rows (count, *field.shape) of a field; NaN or 0 where no tensor is given."""
        if tensor is None:
            return np.full((count, *field.shape), np.nan if np.dtype(field.dtype).kind == "f" else 0, field.dtype)
        array = self.arrays.get(tensor)
        if array.size != count * field.size:
            shape = (count, *(field.shape or (1,)))
            raise UsageError(f"add_samples: {name} has shape {array.shape}; it must be {shape}")
        return array.reshape(count, *field.shape)


def _rows(shard: Shard) -> Chunk:
    chunk = shard.read(shard.oldest, shard.committed)
    return Chunk({name: np.array(column) for name, column in chunk.columns.items()}, sequence=chunk.sequence)
