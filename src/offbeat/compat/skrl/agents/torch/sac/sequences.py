"""What recurrent models are given: the specification of their states, and inputs of whole sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from offbeat.compat.skrl.agents.sac.sequence_draws import FLAGS
from offbeat.compat.skrl.agents.sac.settings import Sizes
from offbeat.errors import UsageError

_RULE = (
    'write it as {"rnn": {"sequence_length": L, "sizes": [(layers, num_envs, hidden), ...]}} with positive integers, '
    "and the same num_envs in all sizes"
)


@dataclass(frozen=True)
class Recurrence:
    """A policy's `get_specification`: length L of sequences, and sizes (layers, num_envs, hidden) of its states."""

    length: int
    sizes: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, policy: Any) -> Recurrence | None:
        """None where the policy has no states. UsageError for a specification that is not as documented."""
        read = getattr(policy, "get_specification", None)
        found = read() if callable(read) else {}
        own = found.get("rnn") if isinstance(found, Mapping) else found
        if not own:
            return None
        sizes = own.get("sizes", ()) if isinstance(own, Mapping) else None
        if sizes is None or not all(isinstance(size, Sequence) and len(size) == 3 for size in sizes):
            raise UsageError(f"get_specification of models['policy'] gave {found!r}; {_RULE}")
        numbers = [own.get("sequence_length", 1), *(each for size in sizes for each in size)]
        positive = all(isinstance(each, int) and not isinstance(each, bool) and each >= 1 for each in numbers)
        if not positive or len({size[1] for size in sizes}) > 1:
            raise UsageError(f"get_specification of models['policy'] gave {found!r}; {_RULE}")
        return cls(numbers[0], tuple((size[0], size[1], size[2]) for size in sizes)) if sizes else None

    @property
    def num_envs(self) -> int:
        return self.sizes[0][1]

    @property
    def names(self) -> list[str]:
        """Of the states' tensors in a memory, as skrl names them."""
        return [f"rnn_policy_{index}" for index in range(len(self.sizes))]

    def zeros(self, count: int, like: Tensor) -> list[Tensor]:
        """First states (layers, count, hidden)."""
        return [like.new_zeros(layers, count, hidden) for layers, _, hidden in self.sizes]

    def checked(self, outputs: Any, count: int) -> list[Tensor]:
        """The states that a policy returned; UsageError for other shapes than those of the specification."""
        found = outputs.get("rnn") if isinstance(outputs, Mapping) else None
        shapes = [tuple(each.shape) for each in found or () if isinstance(each, Tensor)]
        wanted = [(layers, count, hidden) for layers, _, hidden in self.sizes]
        if shapes != wanted:
            gave = f"states of shape {shapes}" if shapes else "no states"
            raise UsageError(
                f"models['policy'] gave {gave} in outputs['rnn']; by its get_specification they must be {wanted}: "
                "return the new states there, or correct the specification"
            )
        return list(found or ())


class SequenceInputs:
    """Packs what models get for a row, and unpacks it: observations and states, two flags, C numbers of RNN states.

    For next observations, C more numbers: for the policy the states after the step, as far as the sequence has them.
    The target critics get the same states as the critics, because models for skrl take those of a sequence's second
    step.
    """

    def __init__(self, sizes: Sizes, recurrence: Recurrence) -> None:
        self._sizes, self._recurrence = sizes, recurrence
        self._flags = sizes.observation + sizes.state
        self._width = sum(layers * hidden for layers, _, hidden in recurrence.sizes)

    def pack(self, joined: Tensor, next_joined: Tensor, extras: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The inputs at observations and at next ones, from those of a memoryless SAC and a batch's own columns."""
        rows = len(joined)
        states = torch.cat([extras[name].reshape(rows, -1) for name in self._recurrence.names], 1)
        flags = torch.stack([extras[name].reshape(rows) for name in FLAGS], 1)
        own = flags.to(joined.dtype), states.to(joined.dtype)
        following = self._following(own[1], flags.any(1))
        return torch.cat((joined, *own), 1), torch.cat((next_joined, *own, following), 1)

    def _following(self, states: Tensor, ended: Tensor) -> Tensor:
        """States (R, C) after each step: those before the sequence's next step; a row's own where there is none."""
        following = states.view(-1, self._recurrence.length, self._width).clone()
        going_on = ~ended.view(-1, self._recurrence.length)[:, :-1, None]
        following[:, :-1] = torch.where(going_on, following[:, 1:].clone(), following[:, :-1])
        return following.view(-1, self._width)

    def split(self, packed: Tensor, role: str) -> dict[str, Any]:
        """A model's inputs: rnn as a list of (layers, R, hidden), terminated and truncated (R, 1) bool."""
        start, rows = self._flags + len(FLAGS), len(packed)
        flags = {name: packed[:, self._flags + index, None] > 0 for index, name in enumerate(FLAGS)}
        if role == "policy" and packed.shape[1] > start + self._width:
            start += self._width
        shapes = [(layers, hidden) for layers, _, hidden in self._recurrence.sizes]
        parts = packed[:, start : start + self._width].split([math.prod(shape) for shape in shapes], 1)
        pairs = zip(parts, shapes, strict=True)
        states = [part.reshape(rows, *shape).transpose(0, 1).contiguous() for part, shape in pairs]
        found = self._sizes.split(packed[:, : self._flags].contiguous())
        return {**found, "rnn": states, **flags}
