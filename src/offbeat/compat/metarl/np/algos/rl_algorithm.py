"""What every algorithm has."""

from __future__ import annotations

import abc
from typing import Any


class RLAlgorithm(abc.ABC):
    """An algorithm that a runner trains. `sampler_cls`, where it has one, makes the runner's sampler."""

    @abc.abstractmethod
    def train(self, runner: Any) -> Any:
        """Obtains samples from the runner and learns from them, epoch after epoch of `runner.step_epochs()`."""
