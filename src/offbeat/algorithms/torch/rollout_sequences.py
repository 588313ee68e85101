"""Rollouts for recurrent networks: sequences of consecutive steps of one environment, and minibatches of them.

The actor begins each sequence with the state that acted there, which the rollout holds. The critic's state is not
stored: it begins anew with the rollout, goes on through all its sequences, and begins each of them in a minibatch with
the state that it had there before the turn. Both begin anew where an episode does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from offbeat.algorithms.torch.differentiate import Network
from offbeat.algorithms.torch.memory import Trunk, WithMemory
from offbeat.algorithms.torch.rollout import Minibatch, RolloutTensors, explained_variance, normalised


@dataclass(frozen=True)
class CriticRun:
    """The critic over a rollout: values (T, N), and its states before and after each step (T, N, C)."""

    value: Tensor
    before: Tensor
    after: Tensor


def begins_anew(steps: RolloutTensors, every: int | None = None) -> Tensor:
    """(T, N) bool: steps whose state does not come from the row before. every: so many steps begin a sequence."""
    broken = torch.ones_like(steps.valid)
    broken[1:] = (steps.terminated | steps.truncated | ~steps.valid)[:-1]
    if every is not None:
        broken[::every] = True
    return broken


def packed(obs: Tensor, broken: Tensor, start: Tensor) -> Tensor:
    """(T, N, O + 1 + C): observations as recurrent networks take them."""
    return torch.cat((obs, broken.to(obs.dtype).unsqueeze(-1), start), -1)


def run_critic(critic: Network, steps: RolloutTensors) -> CriticRun:
    """The critic over all steps; its state begins anew with the rollout and with each episode."""
    module = critic.module
    assert isinstance(module, WithMemory)
    broken = begins_anew(steps)
    initial = module.trunk.initial_state(steps.obs.shape[1])
    start = initial.expand(len(steps.obs), *initial.shape)
    with torch.no_grad():
        features, after = cast(Trunk, module.trunk)(steps.obs, initial, broken, start)
        value = module.mlp(features.flatten(0, 1), steps.state.flatten(0, 1)).view_as(steps.reward)
    before = torch.cat((start[:1], after[:-1]))
    return CriticRun(value, torch.where(broken.unsqueeze(2), start, before), after)


def values_after(critic: Network, steps: RolloutTensors, run: CriticRun, rows: Tensor) -> Tensor:
    """V(s') (R,) of these of the T * N rows: one step further, with the observation that followed."""
    module = critic.module
    assert isinstance(module, WithMemory)
    obs, privileged, state = (each.flatten(0, 1)[rows] for each in (steps.next_obs, steps.next_state, run.after))
    with torch.no_grad():
        features, _ = cast(Trunk, module.trunk).step(obs, state)
        value: Tensor = module.mlp(features, privileged).squeeze(1)
    return value


class RolloutSequences:
    """The Q sequences of L steps of a rollout that hold a valid row, side by side, so that an epoch is one gather.

    actor_obs, critic_obs (T, N, O + 1 + C): packed. The other vectors (T, N, ...) and numbers (T, N) are those of
    `RolloutRows`. Rows that are not valid are computed with their sequence, and not learned from.
    """

    def __init__(self, length: int, valid: Tensor, vectors: list[Tensor], numbers: list[Tensor]) -> None:
        """vectors: actor_obs, critic_obs, state, action, mask, policy."""
        self._sizes = [*(each.shape[-1] for each in vectors), *(1 for _ in numbers)]
        columns = torch.cat((*vectors, *(each.unsqueeze(2) for each in numbers)), 2)
        self._rows, self._valid = in_sequences(columns, length), in_sequences(valid.unsqueeze(2), length).squeeze(2)
        kept = self._valid.any(1)
        self._rows, self._valid = self._rows[kept], self._valid[kept]
        self._all_valid = bool(self._valid.all())

    def __len__(self) -> int:
        return len(self._rows)

    def explained_variance(self) -> Tensor:
        return explained_variance(self._rows[..., -2][self._valid], self._rows[..., -1][self._valid])

    def normalise_advantages(self) -> None:
        """Shifts and scales the advantages of all valid rows; see `RolloutRows`."""
        self._rows[..., -3] = torch.where(
            self._valid, normalised(self._rows[..., -3], self._rows[..., -3][self._valid]), 0.0
        )

    def minibatches(self, order: Tensor, count: int) -> Iterator[Minibatch]:
        """All sequences, in this order (Q,), in `count` parts whose sizes differ by one at most."""
        for which in order.tensor_split(count):
            part = self._rows.index_select(0, which).transpose(0, 1).contiguous()  # (L, B, columns)
            actor_obs, critic_obs, state, *others = part.split(self._sizes, 2)
            learned = None
            rows = [each.flatten(0, 1) for each in others]
            if not self._all_valid:
                learned = self._valid.index_select(0, which).T.flatten().nonzero().squeeze(1)
                rows = [each[learned] for each in rows]
            action, mask, policy, *numbers = rows
            behaviour, reference, advantage, target, value = (each.squeeze(1) for each in numbers)
            numbered = {"behaviour": behaviour, "reference": reference, "advantage": advantage}
            numbered |= {"target": target, "value": value, "policy": policy, "critic_obs": critic_obs}
            yield Minibatch(actor_obs, state.flatten(0, 1), action, mask > 0, **numbered, learned=learned)


def in_sequences(column: Tensor, length: int) -> Tensor:
    """(T, N, W) -> (T / L * N, L, W)."""
    steps, envs, width = column.shape
    return column.view(steps // length, length, envs, width).transpose(1, 2).reshape(-1, length, width)
