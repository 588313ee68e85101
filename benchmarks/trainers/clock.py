"""Measures when Stable-Baselines3 or sbx reach given steps."""

from __future__ import annotations

import time

from stable_baselines3.common.callbacks import BaseCallback


class Clock(BaseCallback):
    """Records the times of the steps `first` and `last`."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self._awaited = {first, last}
        self.seen: dict[int, float] = {}

    def _on_step(self) -> bool:
        if self.num_timesteps in self._awaited:
            self.seen[self.num_timesteps] = time.perf_counter()
        return True
