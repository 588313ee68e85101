"""Recovery from environment faults: only the faulty environment is restarted; the others keep their episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from offbeat.envs.env_slot import EnvSlot
from offbeat.envs.reader import NotFinite
from offbeat.errors import EnvironmentFault, EnvironmentHung, PersistentFault
from offbeat.types import Observation, RecoveredFault


@dataclass(frozen=True)
class FaultRecovery:
    """Restarts environments that fault.

    max_faults: faults in a row of one environment, without a valid step in between; one more raises PersistentFault.
    remake: (row, the environment that faulted) -> a new environment.
    """

    max_faults: int
    remake: Callable[[int, Any], Any]

    def recover(self, slot: EnvSlot, error: EnvironmentFault, into: Observation) -> tuple[RecoveredFault, ...]:
        """Starts the next episode of an environment that faulted; if that faults, too, tries the one after it.

        Writes the first observation into the slot's row of `into`. Returns all faults, `error` first.
        """
        recovered: list[RecoveredFault] = []
        while True:
            slot.faults += 1
            if slot.faults > self.max_faults:
                raise PersistentFault(
                    f"{slot.faults} faults in a row without a valid step in between, but the limit is "
                    f"{self.max_faults}; the last was: {error}"
                ) from error
            kind = _kind(error)
            recovered.append(RecoveredFault(slot.index, kind, error))
            try:
                # After a first non-finite value a reset is enough; creating a new environment may be slow.
                if kind != "not finite" or slot.faults > 1:
                    slot.replace(self.remake)
                slot.begin(slot.episode + 1, into)
                return tuple(recovered)
            except EnvironmentFault as again:
                error = again


def _kind(error: EnvironmentFault) -> Literal["raised", "hung", "not finite"]:
    """The kind of a fault, from its chain of causes: the environment may have wrapped the original exception."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, EnvironmentHung):
            return "hung"
        if isinstance(cause, NotFinite):
            return "not finite"
        cause = cause.__cause__
    return "raised"
