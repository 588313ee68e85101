"""The floor: the matrix products of one SAC update at their own shapes, back to back, and nothing else.

A bound for whoever makes these products, and not for smaller ones over blocks of rows that stay in the cache.
Every product writes to memory that is there already. The two critics are either one batched product or two plain ones,
whichever is faster at its shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from worker import calls_per_second

CRITICS = 2
_TRIAL_SECONDS = 0.05


def products(shape: dict[str, Any]) -> Iterator[tuple[int, int, int, int, str]]:
    """(members, rows, inner, columns, which is transposed) of every product of one update.

    Forward products are (B, in) x (in, out), weight gradients (in, B) x (B, out), input gradients (B, out) x (out, in).
    """
    observation, action, batch = shape["observation"], shape["action"], shape["batch"]
    actor = list(itertools.pairwise([observation, *shape["hidden"], 2 * action]))
    critic = list(itertools.pairwise([observation + action, *shape["hidden"], 1]))
    # The actor on observation and next observation at once; target, critic, and critic on the actor's own actions.
    for into, out in actor:
        yield 1, 2 * batch, into, out, ""
    for into, out in critic * 3:
        yield CRITICS, batch, into, out, ""
    for members, layers in ((CRITICS, critic), (1, actor)):
        for into, out in layers:
            yield members, into, batch, out, "left"
        for into, out in layers[1:]:
            yield members, batch, out, into, "right"
    # The actor's gradient through the critic, of which the first layer's ends at the action.
    yield CRITICS, batch, critic[0][1], action, "right"
    for into, out in critic[1:]:
        yield CRITICS, batch, out, into, "right"


def _ready(members: int, rows: int, inner: int, columns: int, transposed: str) -> Callable[[], object]:
    """The product as a call without arguments, in its faster form."""
    left = torch.randn(members, inner, rows).mT if transposed == "left" else torch.randn(members, rows, inner)
    right = torch.randn(members, columns, inner).mT if transposed == "right" else torch.randn(members, inner, columns)
    out = torch.empty(members, rows, columns)
    pairs = list(zip(left, right, out, strict=True))

    def batched() -> None:
        torch.bmm(left, right, out=out)

    def plain() -> None:
        for one, other, result in pairs:
            torch.mm(one, other, out=result)

    forms = (batched, plain)
    for form in forms:
        form()
    return max(forms, key=lambda form: calls_per_second(form, [], _TRIAL_SECONDS))


class Contestant:
    def __init__(self, threads: int, capacity: int, shape: dict[str, Any]) -> None:
        torch.set_num_threads(threads)
        self.versions = {"torch": torch.__version__}
        self.setting = "no sampling, no activation, no optimiser"
        self._calls = [_ready(*product) for product in products(shape)]

    def learn(self, updates: int) -> None:
        with torch.inference_mode():
            for _ in range(updates):
                for call in self._calls:
                    call()
