"""How many updates are due for the steps taken, and how far collectors may run ahead of them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, Protocol

ENDLESS = 1 << 62
"""More steps, or updates, than any run makes."""

LARGEST_DENOMINATOR = 10**9
"""Ratios are taken as the nearest fraction with at most this denominator, so that 8 / 12288 has a whole number of
updates after 12288 steps."""

PaceMode = Literal["held", "ceiling", "free"]


class Pace(Protocol):
    """Ties updates to environment steps.

    synchronous: whether every update that is due is made before the next vector step. group: updates that belong
    together. by_steps: whether schedules follow the steps taken, because the number of updates cannot be planned.
    """

    @property
    def synchronous(self) -> bool: ...

    @property
    def group(self) -> int: ...

    @property
    def by_steps(self) -> bool: ...

    def due(self, steps: int, updates: int, oldest_version: int | None = None) -> int:
        """Updates to make now, if there is something to learn from.

        oldest_version: of the weights that act at this moment; the updates leave them not too far behind.
        """
        ...

    def ahead(self, updates: int) -> int:
        """Environment steps that may be taken before more than `updates` updates are made."""
        ...

    def planned(self, steps: int) -> int:
        """Updates that a run of so many steps makes, or about as many; 0 where it is too short to learn."""
        ...

    def end(self, steps: int) -> int:
        """Steps at which a run of `steps` ends: what has been begun is finished."""
        ...

    def ratio(self, steps: int, updates: int) -> float | None:
        """Updates made per step so far; None before the first that counts."""
        ...

    def why_none(self) -> str:
        """Why no update would be made, as the end of a sentence that begins with the number of steps; and remedies."""
        ...


@dataclass(frozen=True)
class RatioPace:
    """`updates_per_step` after `warmup_steps`, whatever the number of environments.

    mode: "held" makes both sides wait for each other, `slack` steps apart at most. "ceiling" pauses the learner above
    the ratio and never the collectors, for robots. "free" lets neither wait. max_policy_lag: updates by which acting
    weights may be behind. every: updates are due after whole groups of so many steps, where the ratio holds ("held",
    "ceiling"). Counts are exact: the ratio is taken as the fraction that was written (0.1 is a tenth).
    """

    updates_per_step: float
    warmup_steps: int
    mode: PaceMode = "held"
    slack: int = 0
    total_steps: int = ENDLESS
    max_policy_lag: int | None = None
    synchronous: bool = True
    every: int = 1

    group = 1

    @property
    def by_steps(self) -> bool:
        return self.mode != "held"

    @cached_property
    def _ratio(self) -> tuple[int, int]:
        """Updates, and the steps that they belong to."""
        written = Fraction(repr(float(self.updates_per_step)))
        return (written.limit_denominator(LARGEST_DENOMINATOR) or written).as_integer_ratio()

    def due(self, steps: int, updates: int, oldest_version: int | None = None) -> int:
        if self.mode == "free":
            due = ENDLESS if self.warmup_steps <= steps < self.total_steps else 0
        else:
            due = max(0, self.planned(steps) - updates)
        most = self.max_policy_lag
        if most is None:
            return due
        return min(due, most, due if oldest_version is None else max(0, oldest_version + most - updates))

    def ahead(self, updates: int) -> int:
        return self.covered(updates) + self.slack if self.mode == "held" else ENDLESS

    def planned(self, steps: int) -> int:
        numerator, denominator = self._ratio
        counted = (steps - self.warmup_steps) // self.every * self.every
        return max(0, counted * numerator // denominator)

    def covered(self, updates: int) -> int:
        """The most steps to which no more than `updates` updates belong."""
        numerator, denominator = self._ratio
        groups = -(-(updates + 1) * denominator // (numerator * self.every))
        return self.warmup_steps + groups * self.every - 1

    def end(self, steps: int) -> int:
        return steps

    def ratio(self, steps: int, updates: int) -> float | None:
        return updates / (steps - self.warmup_steps) if steps > self.warmup_steps else None

    def why_none(self) -> str:
        return (
            f"with warmup_steps={self.warmup_steps} and updates_per_step={self.updates_per_step:g} makes no update: "
            f"use total_steps >= {self.covered(0) + 1}, or fewer warmup_steps"
        )


@dataclass(frozen=True)
class RolloutPace:
    """A turn of `group` updates with each rollout of `steps` steps in `num_envs` environments, `reuse` turns at most.

    Collectors are held by the room in their queues alone.
    """

    steps: int
    num_envs: int
    group: int
    reuse: int = 1
    synchronous: bool = True

    by_steps = True

    @property
    def size(self) -> int:
        """Environment steps of one rollout."""
        return self.steps * self.num_envs

    def due(self, steps: int, updates: int, oldest_version: int | None = None) -> int:
        return self.group

    def ahead(self, updates: int) -> int:
        return ENDLESS

    def planned(self, steps: int) -> int:
        return 0 if steps < self.size else self.end(steps) // self.size * self.group * self.reuse

    def end(self, steps: int) -> int:
        return -(-steps // self.size) * self.size

    def ratio(self, steps: int, updates: int) -> float | None:
        return updates / steps if steps else None

    def why_none(self) -> str:
        size = f"rollout_steps={self.steps} of {self.num_envs} environment(s)"
        return f"does not make one rollout, {size}: use total_steps >= {self.size}, or fewer rollout_steps"
