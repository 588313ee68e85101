"""The columns and steps of packed observations, which networks with a memory take; the same for every backend.

A packed observation is (S, B, O + 1 + C): S consecutive steps of B sequences, each with the observation, 1 where the
state does not come from the step before, and the state to begin with there. A packed next observation has O more
columns, the observation to bootstrap from. With n-step returns it also has the n - 1 steps after the sequence, and a
last column that says how many rows after its own that observation follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from offbeat.algorithms.configs.groups import recurrence_of
from offbeat.types import EnvSpec


@dataclass(frozen=True)
class Packing:
    """observation: O. carry: columns of the state to begin with, C; 0 where it is the initial one.

    burn_in: first steps, which are not learned from. ahead: steps after the sequence in a next observation, n - 1 for
    n-step returns.
    """

    observation: int
    carry: int
    burn_in: int = 0
    ahead: int = 0

    @classmethod
    def of(cls, config: Any, spec: EnvSpec, state_size: int) -> Packing:
        """As the settings say. state_size: of the network that acts."""
        recurrence = recurrence_of(config)
        carry = state_size if recurrence.start_state == "stored" else 0
        return cls(spec.observation_size, carry, recurrence.burn_in, getattr(config.returns, "n_step", 1) - 1)

    @property
    def width(self) -> int:
        return self.observation + 1 + self.carry

    def sizes(self, width: int) -> tuple[int, int, int, int, int]:
        """Columns of the observation, the flag, the state to begin with, what to bootstrap from, and its offset.

        width: of all columns. The last two are 0 for an observation that is not a next one.
        """
        more = self.observation, int(self.ahead > 0)
        if width not in (self.width, self.width + sum(more)):
            raise ValueError(
                f"a packed observation has {width} columns; it must have {self.width}, or as a next observation "
                f"{self.width + sum(more)}"
            )
        following, offset = more if width > self.width else (0, 0)
        return self.observation, 1, self.carry, following, offset
