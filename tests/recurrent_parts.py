"""Recurrent configs, packed sequences and a user's recurrent module, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat import flat
from offbeat.algorithms.torch.batch import Batch
from offbeat.types import EnvSpec


def config_of(kind: type, **settings: Any) -> Any:
    """Settings with small networks: 6 recurrent units below one hidden layer of 8."""
    small = {"hidden": (8,), "network": "gru", "recurrent_size": 6, "sequence_length": 4}
    if settings.get("network", "gru") not in ("rnn", "gru", "lstm"):
        del small["recurrent_size"]
    return flat.overlay(kind(), {**small, **settings})


class OwnGRU(nn.Module):
    """A user's recurrent module: a GRU cell whose state begins at `initial`."""

    def __init__(self, spec: EnvSpec, size: int = 6, initial: float = 0.0) -> None:
        super().__init__()
        self.cell, self.initial = nn.GRUCell(spec.observation_size, size), initial

    def initial_state(self, batch: int) -> Tensor:
        return torch.full((batch, self.cell.hidden_size), self.initial)

    def forward(self, x: Tensor, state: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(x, mask * state + (1.0 - mask) * self.initial)  # the library has begun anew already
        return state, state


@dataclass(frozen=True)
class Sequences:
    """B sequences of S steps, of which the last L are learned from. following (S, B, O): after each step."""

    obs: Tensor
    broken: Tensor
    start: Tensor
    following: Tensor

    @property
    def packed(self) -> Tensor:
        return torch.cat((self.obs, self.broken.to(self.obs.dtype).unsqueeze(2), self.start), 2)

    @property
    def next_packed(self) -> Tensor:
        return torch.cat((self.packed, self.following), 2)


def random_sequences(steps: int, rows: int, observation: int, carry: int, seed: int = 0) -> Sequences:
    rng = np.random.default_rng(seed)
    broken = rng.random((steps, rows)) < 0.25
    broken[0] = True
    sizes = observation, carry, observation
    obs, start, following = (torch.from_numpy(rng.standard_normal((steps, rows, size))) for size in sizes)
    return Sequences(obs, torch.from_numpy(broken), start, following)


def sequence_batch(spec: EnvSpec, sequences: Sequences, learned: int, seed: int = 0) -> Batch:
    """A batch of these sequences with random rewards and actions for the last `learned` steps."""
    rng, count = np.random.default_rng(seed), learned * sequences.obs.shape[1]
    normal = lambda *shape: torch.from_numpy(rng.standard_normal(shape))  # noqa: E731
    action = (
        normal(count, spec.action_size).tanh()
        if spec.choices is None
        else torch.from_numpy(spec.random_actions(rng, count))
    )
    discount = torch.from_numpy(np.where(rng.random(count) < 0.2, 0.0, 0.99))
    state, following = normal(count, spec.state_size), normal(count, spec.state_size)
    return Batch(sequences.packed, action.double(), normal(count), discount, sequences.next_packed, state, following)
