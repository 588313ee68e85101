"""The floor: only the matrix products of one update at their shapes, one after the other.

Each product has its own operands, and together they exceed the second-level cache. An update that reuses recent
results, or works on blocks of rows, can be faster.
Products write to preallocated memory. Each takes the fastest of three forms: one batched product of both critics, two
plain ones, or two by oneDNN, whose results are copied.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from worker import calls_per_second

CRITICS = 2
_TRIAL_SECONDS = 0.05


Product = tuple[int, int, int, int, str]
"""(members, rows, inner, columns, which is transposed): forward products are (B, in) x (in, out), weight gradients
(in, B) x (B, out), input gradients (B, out) x (out, in)."""


def sac(shape: dict[str, Any]) -> Iterator[Product]:
    """The matrix products of one update of SAC."""
    observation, action, batch = shape["observation"], shape["action"], shape["batch"]
    actor = list(itertools.pairwise([observation, *shape["hidden"], 2 * action]))
    critic = list(itertools.pairwise([observation + action, *shape["hidden"], 1]))
    # The actor on observation and next observation in one pass; target, critic, and critic on the actor's actions.
    for into, out in actor:
        yield 1, 2 * batch, into, out, ""
    for into, out in critic * 3:
        yield CRITICS, batch, into, out, ""
    for members, layers in ((CRITICS, critic), (1, actor)):
        for into, out in layers:
            yield members, into, batch, out, "left"
        for into, out in layers[1:]:
            yield members, batch, out, into, "right"
    # The gradient of the actor through the critic; in the first layer only to the action.
    yield CRITICS, batch, critic[0][1], action, "right"
    for into, out in critic[1:]:
        yield CRITICS, batch, out, into, "right"


def td3(shape: dict[str, Any], actor_learns: bool) -> Iterator[Product]:
    """The matrix products of one update of TD3; `actor_learns` is true in every second update."""
    observation, action, batch = shape["observation"], shape["action"], shape["batch"]
    actor = list(itertools.pairwise([observation, *shape["hidden"], action]))
    critic = list(itertools.pairwise([observation + action, *shape["hidden"], 1]))
    # The target's action and its values, and the critics.
    forward = [(1, layer) for layer in actor] + [(CRITICS, layer) for layer in critic * 2]
    backward = [(CRITICS, critic)]
    if actor_learns:  # also forward through the first critic, and back through it to the action
        forward += [(1, layer) for layer in actor + critic]
        backward += [(1, actor)]
        yield 1, batch, critic[0][1], action, "right"
        for into, out in critic[1:]:
            yield 1, batch, out, into, "right"
    for members, (into, out) in forward:
        yield members, batch, into, out, ""
    for members, layers in backward:
        for into, out in layers:
            yield members, into, batch, out, "left"
        for into, out in layers[1:]:
            yield members, batch, out, into, "right"


def _ready(members: int, rows: int, inner: int, columns: int, transposed: str) -> Callable[[], object]:
    """The product as a function without arguments, in its faster form."""
    left = torch.randn(members, inner, rows).mT if transposed == "left" else torch.randn(members, rows, inner)
    right = torch.randn(members, columns, inner).mT if transposed == "right" else torch.randn(members, inner, columns)
    out = torch.empty(members, rows, columns)
    pairs = list(zip(left, right, out, strict=True))

    def batched() -> None:
        torch.bmm(left, right, out=out)

    def plain() -> None:
        for one, other, result in pairs:
            torch.mm(one, other, out=result)

    def by_onednn() -> None:
        for one, other, result in pairs:
            result.copy_(torch.ops.mkldnn._linear_pointwise(one, other.T, None, "none", [], ""))

    forms = (batched, plain, by_onednn)
    for form in forms:
        form()
    return max(forms, key=lambda form: calls_per_second(form, [], _TRIAL_SECONDS))


class Contestant:
    def __init__(self, threads: int, capacity: int, shape: dict[str, Any]) -> None:
        torch.set_num_threads(threads)
        self.versions = {"torch": torch.__version__}
        self.setting = "no sampling, no activation, no optimiser"
        lists = [sac(shape)] if shape["algorithm"] == "sac" else [td3(shape, False), td3(shape, True)]
        self._calls = [[_ready(*product) for product in each] for each in lists]

    def learn(self, updates: int) -> None:
        with torch.inference_mode():
            for update in range(updates):
                for call in self._calls[update % len(self._calls)]:
                    call()
