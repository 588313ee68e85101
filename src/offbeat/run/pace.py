"""How many updates are due for the steps taken: the update-to-data ratio, the warm-up and the slack."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Pace:
    """Holds `updates_per_step` after `warmup_steps`, whatever the number of environments.

    slack: how many updates the learner may be behind before collection waits; 0 is synchronous training.
    Counts are exact: the ratio is taken as the fraction that was written (0.1 is a tenth).
    """

    updates_per_step: float
    warmup_steps: int
    slack: int = 0

    def planned(self, env_steps: int) -> int:
        """Updates that belong to the first `env_steps` steps."""
        ratio = Fraction(repr(float(self.updates_per_step)))
        return max(0, (env_steps - self.warmup_steps) * ratio.numerator // ratio.denominator)

    def updates_due(self, env_steps: int, updates: int) -> int:
        return max(0, self.planned(env_steps) - updates)

    def may_collect(self, env_steps: int, updates: int) -> bool:
        return self.updates_due(env_steps, updates) <= self.slack
