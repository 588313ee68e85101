"""The protocol of a collector: what the runner drives, wherever the environments are stepped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from offbeat.errors import OffbeatError
from offbeat.trace import Trace
from offbeat.types import Array, Chunk
from offbeat.weights.publication import Publication

Returned = TypeVar("Returned")


@dataclass(frozen=True)
class CollectorState:
    """Where a collector stands, between two of its steps.

    arrays, values (JSON): for `restore`. chunks: stored rows up to that point that no `poll` has returned yet. ends:
    one past the last row of each shard that belongs to this state; None where that is all that the shard holds.
    """

    arrays: dict[str, Array]
    values: dict[str, Any]
    chunks: list[Chunk] = field(default_factory=list)
    ends: dict[str, int] | None = None


@dataclass(frozen=True)
class CollectorReport:
    """What a collector tells of itself.

    numbers: for each log line. processes: for status.json, each with name, pid, state and heartbeat. waits: seconds, by
    who waited. restarts: of processes; restarted_environments: of single environments. lost: data lost, by kind.
    """

    numbers: Mapping[str, float] = field(default_factory=dict)
    processes: list[dict[str, Any]] = field(default_factory=list)
    waits: Mapping[str, float] = field(default_factory=dict)
    restarts: int = 0
    restarted_environments: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)


class Collector(Protocol):
    """Steps environments with published weights and stores what comes of it.

    num_envs: environments that are stepped now.
    """

    @property
    def num_envs(self) -> int: ...

    def connect(self, *, note: Callable[[str], None], trace: Trace, stop: Callable[[], bool]) -> None:
        """Called once, before anything else. note: tells the user something. stop: whether the run is to stop."""
        ...

    def publish(self, publication: Publication) -> None:
        """New weights to act with; the first ones start the collector."""
        ...

    def allow(self, steps: int) -> None:
        """Lets it begin vector steps while at most `steps` environment steps are made; -1 pauses it.

        A rollout is begun as a whole: a collector that fills rollouts completes what it has begun.
        """
        ...

    def poll(self, timeout: float) -> list[Chunk]:
        """Chunks that were stored since the last call; waits up to `timeout` seconds for the first."""
        ...

    def oldest_version(self) -> int | None:
        """The oldest version that acts now or acted in rows that are not polled yet; None where it does not matter."""
        ...

    def snapshot(self) -> CollectorState: ...

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> list[str]:
        """Continues from a snapshot, before the first `publish`; a sentence for whatever is not exact.

        Without values, the stores hold rows that others collected, which count as polled; all episodes begin anew.
        """
        ...

    def report(self) -> CollectorReport: ...

    def close(self) -> None: ...


def checked(returned: Returned, kind: type, method: str) -> Returned:
    """What a method of a collector has returned; OffbeatError if it is of another kind."""
    if not isinstance(returned, kind):
        raise OffbeatError(f"{method} of the collector returned a {type(returned).__name__}; return a {kind.__name__}")
    return returned
