"""The buffers that a memory received, in append-only files: how a memory without `state_dict` is saved.

Appending the same buffers again gives the same memory. A file holds whole buffers; a checkpoint lists the files with
their lengths and hashes. Files that hold only samples which the memory has dropped since are removed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offbeat import durable
from offbeat.compat.tmrl.buffer import Buffer, decode, encode
from offbeat.errors import CheckpointError, UsageError
from offbeat.replay.chunkfile import required

FILE_BYTES = 4 << 20


class BufferLog:
    """memory_size: the number of samples that the memory keeps, None if it is not known: then every file stays."""

    def __init__(self, directory: Path, memory_size: float | None) -> None:
        self._directory, self._memory_size = directory, memory_size
        self._new: list[bytes] = []
        self._new_samples = 0
        self._files: list[dict[str, Any]] = []
        self._listed: list[set[str]] = []  # by the two newest checkpoints

    def add(self, buffer: Any) -> None:
        if not len(buffer):
            return
        if not hasattr(buffer, "memory"):
            raise UsageError(
                f"interface: retrieve_buffer returned a {type(buffer).__name__} without `memory`, the list of its "
                "samples, which is how the memory is saved; return a Buffer, or give the memory state_dict"
            )
        self._new.append(encode(buffer))
        self._new_samples += len(buffer)

    def save(self) -> list[dict[str, Any]]:
        """Writes the new buffers, and returns the files that make up the memory, as JSON."""
        durable.make_directory(self._directory)
        if self._new:
            self._append(b"".join(self._new), self._new_samples)
            self._new, self._new_samples = [], 0
        if self._memory_size is not None:
            while sum(file["samples"] for file in self._files[1:]) >= self._memory_size:
                del self._files[0]
        self._listed = [*self._listed, {file["name"] for file in self._files}][-2:]
        return [{key: value for key, value in file.items() if key != "running"} for file in self._files]

    def _append(self, data: bytes, samples: int) -> None:
        last = self._files[-1] if self._files else None
        if last is None or last["length"] >= FILE_BYTES:
            number = int(last["name"].partition(".")[0]) + 1 if last else 0
            last = {"name": f"{number:06d}.chunks", "length": 0, "samples": 0, "running": hashlib.sha256()}
            durable.remove(self._directory / last["name"])  # of a save that was interrupted
            self._files.append(last)
        elif (durable.size(self._directory / last["name"]) or 0) > last["length"]:
            durable.truncate(self._directory / last["name"], last["length"])  # a save failed in the middle
        durable.append(self._directory / last["name"], last["length"], [data])
        durable.fsync_directory(self._directory)
        last["running"].update(data)
        last |= {"length": last["length"] + len(data), "samples": last["samples"] + samples}
        last["sha256"] = last["running"].hexdigest()

    def remove_old(self) -> None:
        """Removes the files that neither of the two newest checkpoints lists."""
        for name in set(durable.list_names(self._directory)) - set().union(*self._listed):
            durable.remove(self._directory / name)

    def load(self, files: Any) -> Iterator[Buffer]:
        """The buffers of a checkpoint, oldest first; later bytes of the files are dropped."""
        self._files, self._new, self._new_samples = [], [], 0
        for entry in files:
            where = str(self._directory)
            name, sha256 = (required(entry, key, str, where) for key in ("name", "sha256"))
            length = required(entry, "length", int, where)
            required(entry, "samples", int, where)
            path = self._directory / name
            durable.check_inside(path, self._directory)
            try:
                data = durable.read_file(path, length)
            except FileNotFoundError as error:
                raise CheckpointError(f"{path} is missing; the checkpoint needs it") from error
            running = hashlib.sha256(data)
            if len(data) != length or running.hexdigest() != sha256:
                raise CheckpointError(f"{path} does not match its checkpoint: it was truncated or changed")
            if (durable.size(path) or 0) > length:
                durable.truncate(path, length)
            self._files.append({**entry, "running": running})
            for buffer, _ in decode(data, str(path)):
                yield buffer
        self._listed = [{file["name"] for file in self._files}]
