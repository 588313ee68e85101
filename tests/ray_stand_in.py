"""A cluster of actors in this process, in the place of Ray's: each call is made at once, in the learner's own thread.

So the learner's side and the actor's side of Ray collectors are tested without Ray, and in little time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import offbeat
from offbeat.collect.collector import Collector
from offbeat.collect.context import CollectorContext
from offbeat.collect.factories import workers
from offbeat.collect.ray_actors import RayActors
from offbeat.collect.ray_worker import RayWorker, failure


class Lost(Exception):
    """What Ray raises when an actor has died, here."""


class StandIn:
    """calls: of every actor, as (actor, method, arguments). held: methods that get no answer. version: of each node."""

    node, head = "here", ("127.0.0.1", 0)

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, tuple[Any, ...]]] = []
        self.workers: list[RayWorker | None] = []
        self.dead: set[int] = set()
        self.held: set[str] = set()
        self.unanswered: list[Future[Any]] = []
        self.stored, self.version, self.closed = 0, offbeat.__version__, False

    def make_actor(self) -> int:
        self.workers.append(None)
        return len(self.workers) - 1

    def call(self, actor: int, method: str, *arguments: Any) -> Future[Any]:
        self.calls.append((actor, method, arguments))
        future: Future[Any] = Future()
        if actor in self.dead:
            future.set_exception(Lost("The actor is dead"))
        elif method in self.held:
            self.unanswered.append(future)
        else:
            future.set_result(self._answer(actor, method, arguments))
        return future

    def _answer(self, actor: int, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
        try:
            if method == "where":
                return "done", (self.version, 1_000 + actor, "127.0.0.1")
            if method == "begin":
                worker = self.workers[actor] = RayWorker(arguments[0], "elsewhere")
                return "done", worker.begun()
            worker = self.workers[actor]
            assert worker is not None
            if method == "collect":
                *numbers, weights = arguments
                return "done", worker.collect(*numbers, (lambda: weights[0]) if weights else None)
            return "done", getattr(worker, method)()
        except Exception as error:
            return failure(error)

    def put(self, value: Any) -> Any:
        self.stored += 1
        return value

    def kill(self, actor: int) -> None:
        self.dead.add(actor)

    def check(self) -> None:
        pass

    def needs(self) -> str:
        return "1 CPU"

    def close(self) -> None:
        self.closed = True


def stand_in(cluster: StandIn | None = None) -> Callable[[CollectorContext], Collector]:
    """Makes collectors in the actors of such a cluster."""

    def make(context: CollectorContext) -> Collector:
        actors: Any = StandIn() if cluster is None else cluster
        return workers(context, RayActors(context, actors))

    return make


def collector(context: CollectorContext) -> Collector:
    """`ray_stand_in:collector` in the settings of a run."""
    return stand_in()(context)
