"""The connection to a Ray cluster: an existing one, or one that is started here. Ray is imported by `connect` alone."""

from __future__ import annotations

import math
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from offbeat.collect.children import PACKAGE
from offbeat.errors import ProcessFault, UsageError

STORE_BYTES = 512 << 20
"""Object store of a cluster that is started here, at least."""
SECONDS_BETWEEN_CHECKS, CONNECT_SECONDS, SECONDS_WITHOUT_HEAD = 1.0, 0.5, 10.0
"""Ray itself ends the process after a minute without the head, so it is noticed before."""
FIRST_CONNECT_SECONDS = 10.0
"""Ray itself would try for many minutes to reach an address at which nothing answers."""


@dataclass(frozen=True)
class RaySettings:
    """How to connect, and what each collector reserves.

    address: None starts Ray on this machine. cpus, resources: of each collector. placement: spread divides collectors
    over the nodes, pack fills one after the other. working_dir: is sent to every node, with Offbeat itself.
    """

    address: str | None = None
    cpus: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    placement: Literal["spread", "pack"] = "spread"
    working_dir: str | None = None


class RayCluster:
    """A connected cluster. own: it was connected to here, and is left at `close`."""

    def __init__(self, ray: Any, settings: RaySettings, own: bool) -> None:
        self._ray, self._settings, self._own = ray, settings, own
        context = ray.get_runtime_context()
        self.node: str = context.get_node_id()
        self.head = _parts(context.gcs_address)
        self._silent_since: float | None = None
        self._checked = time.monotonic()
        self._actor = ray.remote(_actor_class())

    def make_actor(self) -> Any:
        """A new actor, which belongs to this process's job: it ends with it."""
        own = self._settings
        options = {
            "num_cpus": own.cpus,
            "resources": dict(own.resources) or None,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD" if own.placement == "spread" else "DEFAULT",
        }
        return self._actor.options(**options).remote(sys.path)

    def call(self, actor: Any, *arguments: Any) -> Future[Any]:
        future: Future[Any] = actor.call.remote(*arguments).future()
        return future

    def put(self, value: Any) -> Any:
        return self._ray.put(value)

    def kill(self, actor: Any) -> None:
        self._ray.kill(actor)

    def check(self) -> None:
        """Raises ProcessFault if the head has not answered for some seconds."""
        now = time.monotonic()
        if now - self._checked < SECONDS_BETWEEN_CHECKS:
            return
        try:
            socket.create_connection(self.head, CONNECT_SECONDS).close()
            self._silent_since = None
        except OSError as error:
            # From the first of the attempts that failed. After a pause, as during an evaluation, they are counted anew.
            if self._silent_since is None or now - self._checked > SECONDS_WITHOUT_HEAD:
                self._silent_since = now
            if now - self._silent_since > SECONDS_WITHOUT_HEAD:
                raise ProcessFault(
                    f"the head of the Ray cluster, {self.head[0]}:{self.head[1]}, has not answered for "
                    f"{now - self._silent_since:.0f} s ({error}); start the cluster again and resume the run"
                ) from error
        self._checked = time.monotonic()

    def needs(self) -> str:
        """What a collector reserves, in words."""
        own = self._settings
        return ", ".join(f"{amount:g} {name}" for name, amount in {"CPU": own.cpus, **own.resources}.items())

    def close(self) -> None:
        if self._own:
            self._own = False
            self._ray.shutdown()


def connect(settings: RaySettings, collectors: int, store_bytes: int) -> RayCluster:
    """Connects to the cluster that the settings name, or to that of this process, or starts one.

    store_bytes: that objects may take on their way, which a cluster that is started here has room for twice.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            f"collector=ray needs Ray, which cannot be imported ({error}): pip install 'offbeat[ray]'"
        ) from error
    if (settings.address or "").startswith("ray://"):
        raise UsageError(
            f"ray_address={settings.address} is one of Ray's client: the learner has to run on a machine of the "
            "cluster; start it there and use auto, or the address of the head (host:port)"
        )
    if ray.is_initialized():
        _check_same(ray, settings)
        return RayCluster(ray, settings, own=False)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "runtime_env": _runtime(settings)}
    if settings.address is None:
        # As many as are asked for, whatever the machine has: the system divides its cores among processes.
        cpus = max(1, math.ceil(collectors * settings.cpus))
        resources = {name: amount * collectors for name, amount in settings.resources.items()}
        options |= {"address": "local", "num_cpus": cpus, "resources": resources or None}
        options |= {"include_dashboard": False, "object_store_memory": max(STORE_BYTES, 2 * store_bytes)}
    else:
        _try_address(settings)
        options["address"] = settings.address
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except Exception as error:
        raise UsageError(_why_not(settings, error)) from error
    finally:
        if main:
            signal.signal(signal.SIGTERM, handler)  # Ray replaces it, and a run saves itself at this signal
    return RayCluster(ray, settings, own=True)


def _parts(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, where the host may be an IPv6 address in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _try_address(settings: RaySettings) -> None:
    """Raises UsageError if nothing answers at host:port."""
    if re.fullmatch(r".+:\d+", settings.address or ""):
        try:
            socket.create_connection(_parts(settings.address or ""), FIRST_CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise UsageError(_why_not(settings, error)) from error


def _why_not(settings: RaySettings, error: Exception) -> str:
    reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    if settings.address is None:
        return f"collector=ray: Ray could not be started on this machine ({reason}); use collector=processes"
    return (
        f"ray_address={settings.address}: there is no cluster to connect to ({reason}); start one with `ray start "
        "--head` on its first machine, or leave ray_address out to start one here"
    )


def _check_same(ray: Any, settings: RaySettings) -> None:
    """Raises UsageError if this process is connected already, and to something else."""
    connected = ray.get_runtime_context().gcs_address
    if settings.address not in (None, "auto", connected):
        raise UsageError(
            f"ray_address={settings.address}, but this process has called ray.init and is connected to {connected}: "
            "leave ray_address out, or do not call ray.init"
        )
    if settings.working_dir is not None:
        raise UsageError(
            f"ray_working_dir={settings.working_dir} is sent when a run connects, but this process has called ray.init "
            "already: give it runtime_env={'working_dir': ...}, or do not call ray.init"
        )


def _runtime(settings: RaySettings) -> dict[str, Any] | None:
    if settings.working_dir is None:
        return None
    if not Path(settings.working_dir).is_dir():
        raise UsageError(f"ray_working_dir={settings.working_dir} is not a directory of this machine; use one")
    return {"working_dir": settings.working_dir, "py_modules": [str(PACKAGE)]}


def _actor_class() -> type:
    """The actor's class, made here so that Ray sends it by value: a node without Offbeat can then say so."""

    class Collector:
        def __init__(self, paths: list[str]) -> None:
            import os
            import sys

            # The learner's own paths come last. They exist on its machine, and where file systems are shared.
            sys.path += [path for path in paths if path not in sys.path and os.path.isdir(path)]
            self._worker: Any = None

        def call(self, method: str, *arguments: Any) -> tuple[str, Any]:
            """`done` and the result, or how it failed. Weights come as references, in a list."""
            import os

            import ray

            try:
                from offbeat import __version__
                from offbeat.collect.ray_worker import RayWorker, failure
            except ImportError as error:
                where = os.uname().nodename
                return "failed permanently", (
                    f"node {where} of the Ray cluster cannot import Offbeat ({error}): install it there, with what it "
                    "needs, or send it with ray_working_dir"
                )
            try:
                if method == "where":
                    return "done", (__version__, os.getpid(), ray.util.get_node_ip_address())
                if method == "begin":
                    self._worker = RayWorker(arguments[0], ray.get_runtime_context().get_node_id())
                    return "done", self._worker.begun()
                if method == "collect":
                    *numbers, references = arguments
                    weights = (lambda: ray.get(references[0])) if references else None
                    return "done", self._worker.collect(*numbers, weights)
                return "done", getattr(self._worker, method)()
            except BaseException as error:
                return failure(error)

    return Collector
