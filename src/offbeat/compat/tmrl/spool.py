"""Buffers on their way from workers to the trainer, as files: a killed process loses none, and none is taken twice."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offbeat import durable
from offbeat.collect.ledger import ChunkLedger
from offbeat.compat.tmrl.buffer import Buffer, decode, encode
from offbeat.compat.tmrl.rendezvous import Place

_NAME = re.compile(r"[0-9]{6}-[0-9]{12}-[0-9]{15}\.chunks")
_PAUSE = 0.005


class Outbox:
    """A worker's side. most: buffers of this worker that may wait for the trainer, before `send` waits, too."""

    def __init__(self, place: Place, most: int) -> None:
        self._place, self._directory, self._most = place, place.directory / "buffers", most
        self._sequence = 0

    def send(self, buffer: Any) -> None:
        """Sends samples. When it returns, they are written: they are not lost if this process is killed."""
        worker, boot = self._place.number, self._place.boot
        self._place.check_server()
        while self._waiting() >= self._most:
            time.sleep(_PAUSE)
            self._place.check_server()
        data = encode(buffer, worker, boot, self._sequence)
        # sync=False: the file survives this process, though not a power failure
        name = f"{worker:06d}-{boot:012d}-{self._sequence:015d}.chunks"
        durable.write_file(self._directory / name, data, sync=False)
        self._sequence += len(buffer)

    def _waiting(self) -> int:
        if self._most >= 1 << 20:  # so many files are never there
            return 0
        return sum(name.startswith(f"{self._place.number:06d}-") for name in durable.list_names(self._directory))


class Inbox:
    """The trainer's side. keep: hold buffers in `taken` until `commit`, for a trainer that saves checkpoints.

    most: buffers that one `take` returns.
    """

    def __init__(self, place: Place, most: int, keep: bool) -> None:
        self._place = place
        self._new, self._taken = place.directory / "buffers", place.directory / "taken"
        self._most, self._keep = most, keep
        self._ledger = ChunkLedger()
        self._again: list[str] = []  # taken by a trainer that was killed before it saved them

    def begin(self) -> None:
        """Starts a new training: what a trainer before it has left is dropped, unless a worker that is running sent it.

        A worker that waits for a model has sent its samples, and would wait for ever without them.
        """
        marker = self._taken.parent / "trainer" / "begun"
        if marker.exists():
            running = self._place.running_workers()
            for directory in (self._new, self._taken):
                for name in filter(_NAME.fullmatch, durable.list_names(directory)):
                    worker, boot, _ = name.split("-")
                    if directory == self._taken or running.get(int(worker)) != int(boot):
                        durable.remove_file(directory / name)
        durable.write_file(marker, b"", sync=False)

    def resume(self, received: Mapping[str, Any]) -> None:
        """Continues after the checkpoint that holds `received`: what was taken since is taken again."""
        if received:
            self._ledger.restore(received)
        self._again = [name for name in durable.list_names(self._taken) if _NAME.fullmatch(name)]

    @property
    def received(self) -> dict[str, Any]:
        """Which buffers were taken, for a checkpoint."""
        return self._ledger.state()

    def take(self) -> Buffer:
        """The buffers that have arrived, as one."""
        whole, taken = Buffer(), 0
        for directory, names in ((self._taken, self._again), (self._new, durable.list_names(self._new))):
            for name in list(filter(_NAME.fullmatch, names))[: self._most - taken]:
                self._take(whole, directory / name)
                taken += 1
        self._again = self._again[self._most :]
        return whole

    def _take(self, whole: Buffer, path: Path) -> None:
        for buffer, chunk in decode(durable.read_file(path), str(path)):
            if self._ledger.accept(chunk):
                whole += buffer
            else:
                logging.info("%s was received before the checkpoint already", path.name)
        if not self._keep:
            durable.remove_file(path)
        elif path.parent != self._taken:
            os.replace(path, self._taken / path.name)

    def commit(self) -> None:
        """Drops what was taken: a checkpoint holds it now."""
        for name in filter(_NAME.fullmatch, durable.list_names(self._taken)):
            if name not in self._again:
                durable.remove_file(self._taken / name)
