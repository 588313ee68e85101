"""The same matrix products, but each is repeated before the next one, so that its operands are in the cache."""

from __future__ import annotations

import torch

from learners import products


class Contestant(products.Contestant):
    def learn(self, updates: int) -> None:
        with torch.inference_mode():
            for index, calls in enumerate(self._calls):
                repeats = len(range(index, updates, len(self._calls)))
                for call in calls:
                    for _ in range(repeats):
                        call()
