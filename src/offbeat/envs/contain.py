"""One bad environment among good ones: it alone is restarted, and the others do not notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from offbeat.envs.reader import NotFinite
from offbeat.envs.slot import Slot
from offbeat.errors import EnvironmentFault, EnvironmentHung, PersistentFault
from offbeat.types import Contained, Observation


@dataclass(frozen=True)
class Containment:
    """How faults are contained.

    most: so many of one environment in a row, without a good step in between; the next is raised.
    remake: (its row, the environment that faulted) -> a new environment.
    """

    most: int
    remake: Callable[[int, Any], Any]

    def recover(self, slot: Slot, error: EnvironmentFault, into: Observation) -> tuple[Contained, ...]:
        """Begins the next episode of an environment that faulted, or the first after it that can be begun.

        Its first observation goes into the slot's row. Returns the fault, and those on the way.
        """
        contained: list[Contained] = []
        while True:
            slot.faults += 1
            if slot.faults > self.most:
                raise PersistentFault(
                    f"{slot.faults} faults in a row without a good step in between, but only {self.most} are "
                    f"contained; the last was: {error}"
                ) from error
            kind = _kind(error)
            contained.append(Contained(slot.index, kind, error))
            try:
                # A simulation that blew up once is fine after a reset, and making it anew may take long.
                if kind != "not finite" or slot.faults > 1:
                    slot.replace(self.remake)
                slot.begin(slot.episode + 1, into)
                return tuple(contained)
            except EnvironmentFault as again:
                error = again


def _kind(error: EnvironmentFault) -> Literal["raised", "hung", "not finite"]:
    """What a fault came from; the environment, or what makes it, may have put an exception of its own around that."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, EnvironmentHung):
            return "hung"
        if isinstance(cause, NotFinite):
            return "not finite"
        cause = cause.__cause__
    return "raised"
