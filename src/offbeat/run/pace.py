"""How many updates are due for the steps taken: the update-to-data ratio and the warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Pace:
    """Holds `updates_per_step` after `warmup_steps`, whatever the number of environments.

    Counts are exact: the ratio is taken as the fraction that was written (0.1 is a tenth).
    """

    updates_per_step: float
    warmup_steps: int

    def planned(self, env_steps: int) -> int:
        """Updates that belong to the first `env_steps` steps."""
        ratio = Fraction(repr(float(self.updates_per_step)))
        return max(0, (env_steps - self.warmup_steps) * ratio.numerator // ratio.denominator)

    def covered(self, updates: int) -> int:
        """The most steps to which no more than `updates` updates belong."""
        ratio = Fraction(repr(float(self.updates_per_step)))
        return self.warmup_steps + -(-(updates + 1) * ratio.denominator // ratio.numerator) - 1

    def updates_due(self, env_steps: int, updates: int) -> int:
        return max(0, self.planned(env_steps) - updates)
