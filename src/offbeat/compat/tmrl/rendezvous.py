"""Where a server, its trainer and its workers meet on one machine: a directory for each port, for this user only.

TMPDIR/offbeat-tmrl-UID/PORT/
    server/server.json   the server's process, its password (salted and hashed), its protocol, its number of workers
    trainer/             the trainer's lock
    workers/N/           a worker's lock, and how many processes it has had
    models/              the newest model, in memory that processes share (models.py)
    buffers/             buffers of samples that the trainer has not taken
    taken/               buffers that it has taken, and that no checkpoint holds yet

Nothing here is pickled. Every file is written whole, so a process that is killed leaves nothing half done.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from offbeat import durable
from offbeat.errors import OffbeatError, RunBusyError, UsageError
from offbeat.run.lock import Owner, RunLock

SECONDS_TO_CONNECT = 60.0
SECONDS_BETWEEN_CHECKS = 0.5
_PARTS = ("server", "trainer", "workers", "models", "buffers", "taken")


def directory_of(port: int) -> Path:
    """The directory of a port, made if it is missing; OffbeatError unless it is accessible to this user alone."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
        raise UsageError(f"port={port!r} is out of range: it must be a whole number from 1 to 65535")
    if os.name != "posix":
        raise UsageError("Server, Trainer and RolloutWorker need Linux or macOS")
    root = Path(tempfile.gettempdir()) / f"offbeat-tmrl-{os.getuid()}"
    for path in (root, root / str(port), *(root / str(port) / part for part in _PARTS)):
        path.mkdir(mode=0o700, exist_ok=True)
    found = os.lstat(root)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OffbeatError(f"{root} is not a directory of this user alone (mode 700); remove it and start again")
    return root / str(port)


def check_local(server_ip: str | None) -> None:
    """Raises UsageError for an address that is not of this machine."""
    if server_ip is None:
        return
    try:
        found = socket.getaddrinfo(server_ip, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _elsewhere(server_ip) from error
    if not any(_can_bind(family, address[0]) for family, _, _, _, address in found):
        raise _elsewhere(server_ip)


def _can_bind(family: int, address: Any) -> bool:
    """Only an address of this machine can be bound to."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _elsewhere(server_ip: Any) -> UsageError:
    return UsageError(
        f"server_ip={server_ip!r} is not an address of this machine; training over a network arrives with the remote "
        "workers. Until then run server, trainer and workers on one machine, with server_ip='127.0.0.1'"
    )


class ServerPlace:
    """A server's side: it holds the port until it is closed, or until its process ends.

    protocol: values by name, which those who connect must have, too.
    """

    def __init__(self, port: int, password: str, max_workers: int | None, protocol: Mapping[str, Any]) -> None:
        self.directory = directory_of(port)
        self._lock = RunLock(self.directory / "server")
        try:
            self._lock.take()
        except RunBusyError as error:
            raise UsageError(f"port={port} has a Server already ({error}); use another port") from error
        salt = secrets.token_hex(16)
        record = {
            "owner": asdict(Owner.this_process()),
            "salt": salt,
            "password": _hashed(salt, password),
            "max_workers": max_workers,
            "protocol": dict(protocol),
        }
        self._record = self.directory / "server" / "server.json"
        durable.write_file(self._record, json.dumps(record).encode(), sync=False)

    def close(self) -> None:
        durable.remove_file(self._record)
        self._lock.release()


def _hashed(salt: str, password: str) -> str:
    return hashlib.sha256(f"{salt}{password}".encode()).hexdigest()


class Place:
    """The trainer's or a worker's side of a server, once `connect` has found it.

    protocol: values by name, which must be those of the server.
    """

    def __init__(self, port: int, password: str, protocol: Mapping[str, Any]) -> None:
        self.directory, self.port = directory_of(port), port
        self._password, self._protocol = password, dict(protocol)
        self._seconds = SECONDS_TO_CONNECT
        self._next_check = 0.0
        self._lock: RunLock | None = None
        self.number = self.boot = 0

    # Connecting.

    def connect_trainer(self) -> None:
        """Takes the place of the trainer, of which there is one."""
        self._wait_for_server()
        lock = RunLock(self.directory / "trainer")
        try:
            lock.take()
        except RunBusyError as error:
            raise UsageError(f"server_port={self.port} has a Trainer already ({error}); end it first") from error
        self._lock = lock

    def connect_worker(self) -> None:
        """Takes the first free place of a worker; sets `number` and `boot`, which grows with each of its processes."""
        record = self._wait_for_server()
        self.number = 0
        while not self._take_worker_place(self.number):
            self.number += 1
            if record["max_workers"] is not None and self.number >= record["max_workers"]:
                raise UsageError(
                    f"the Server of port {self.port} has max_workers={record['max_workers']}, and as many are "
                    "connected; end one, or start the Server with more"
                )

    def _take_worker_place(self, number: int) -> bool:
        directory = self.directory / "workers" / str(number)
        directory.mkdir(exist_ok=True)
        lock = RunLock(directory)
        try:
            lock.take()
        except RunBusyError:
            return False
        counter = directory / "boots"
        before = int(durable.read_file(counter)) if counter.is_file() else 0
        # By the clock, so that it grows even if this directory was removed, and a resumed trainer knows earlier boots.
        self.boot = max(before + 1, int(time.time()))
        durable.write_file(counter, str(self.boot).encode(), sync=False)
        self._lock = lock
        return True

    def running_workers(self) -> dict[int, int]:
        """The boot of each worker whose process is running."""
        found = {}
        for number in durable.list_names(self.directory / "workers"):
            directory = self.directory / "workers" / number
            with contextlib.suppress(FileNotFoundError, ValueError, TypeError):  # it is just connecting
                if not Owner(**json.loads(durable.read_file(directory / ".lock"))).is_dead:
                    found[int(number)] = int(durable.read_file(directory / "boots"))
        return found

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def connected(self) -> bool:
        return self._lock is not None

    # The server.

    def check_server(self) -> None:
        """Waits for the server where it has ended; OffbeatError if it does not come back. Cheap to call often."""
        if (now := time.monotonic()) >= self._next_check:
            self._next_check = now + SECONDS_BETWEEN_CHECKS
            self._wait_for_server()

    def _wait_for_server(self) -> Any:
        until = time.monotonic() + self._seconds
        while (record := self._server()) is None:
            if time.monotonic() > until:
                raise OffbeatError(
                    f"there is no Server on port {self.port} of this machine (waited {self._seconds:g} s); start one: "
                    f"Server(port={self.port})"
                )
            time.sleep(min(0.05, self._seconds))
        if not hmac.compare_digest(_hashed(record["salt"], self._password), record["password"]):
            raise UsageError(
                f"password is not that of the Server on port {self.port}; pass the same to Server, Trainer and "
                "RolloutWorker"
            )
        for name, value in self._protocol.items():
            if value != record["protocol"][name]:
                raise UsageError(
                    f"{name}={value!r} is not that of the Server on port {self.port}, {record['protocol'][name]!r}; "
                    "pass the same to Server, Trainer and RolloutWorker"
                )
        return record

    def _server(self) -> Any:
        """The record of the server, or None if it is not running."""
        try:
            record = json.loads(durable.read_file(self.directory / "server" / "server.json"))
            return None if Owner(**record["owner"]).is_dead else record
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
