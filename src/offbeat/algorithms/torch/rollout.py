"""Rollouts as tensors: the steps, the rows that a turn learns from, and minibatches of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from offbeat.algorithms.torch import across

NO_POLICY = torch.zeros((1, 0))


@dataclass(frozen=True)
class RolloutTensors:
    """T consecutive steps of N environments as tensors on the learner's device, normalised and scaled.

    obs, next_obs (T, N, O); state, next_state (T, N, S); action (T, N, A); reward (T, N). log_prob (T, N): under the
    policy that acted. mask (T, N, K): 1 for actions that were allowed, 0 for others; K = 0 for none. terminated,
    truncated, valid (T, N) bool; truncated also where an episode was broken off. carry (T, N, C): the recurrent state
    that acted, before each step; None without one.
    """

    obs: Tensor
    next_obs: Tensor
    state: Tensor
    next_state: Tensor
    action: Tensor
    mask: Tensor
    reward: Tensor
    log_prob: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    carry: Tensor | None = None


def explained_variance(target: Tensor, value: Tensor) -> Tensor:
    """The share of the value targets' variance that the values before the turn explain; 0 where there is none."""
    variance = target.var(correction=0)
    return torch.where(variance > 0, 1.0 - (target - value).var(correction=0) / variance, 0.0)


def normalised(advantage: Tensor, among: Tensor) -> Tensor:
    """Shifted and scaled so that `among` (R,) has mean 0 and standard deviation 1; for one row, as it is.

    Both moments are those of all ranks.
    """
    if not across.several():
        return (advantage - among.mean()) / (among.std() + 1e-8) if len(among) > 1 else advantage
    mean, variance, _ = across.mean_and_variance(among)
    return (advantage - mean) / (variance.sqrt() + 1e-8)


class RolloutRows:
    """The R valid rows of a rollout, packed side by side, so that an epoch is one gather.

    policy (R, P): the reference's distributions, as a head's `parameters`; P = 0 where they are not needed. numbers,
    (R,) each: log-probability under the policy that acted and under the reference, advantage, value target, and the
    critic's value before the turn.
    """

    def __init__(
        self, obs: Tensor, state: Tensor, action: Tensor, mask: Tensor, policy: Tensor, *numbers: Tensor
    ) -> None:
        vectors = obs, state, action, mask, policy
        self._sizes = [*(each.shape[1] for each in vectors), *(1 for _ in numbers)]
        self._rows = torch.cat((*vectors, *(each.unsqueeze(1) for each in numbers)), 1)

    def __len__(self) -> int:
        return len(self._rows)

    def explained_variance(self) -> Tensor:
        return explained_variance(self._rows[:, -2], self._rows[:, -1])

    def normalise_advantages(self) -> None:
        """Shifts and scales the advantages of all rows to mean 0 and standard deviation 1; one row stays as it is."""
        advantage = self._rows[:, -3]
        self._rows[:, -3] = normalised(advantage, advantage)

    def minibatches(self, order: Tensor, count: int) -> Iterator[Minibatch]:
        """All rows, in this order (R,), in `count` parts whose sizes differ by one at most."""
        rows = self._rows.index_select(0, order)
        for part in rows.tensor_split(count):
            obs, state, action, mask, policy, *numbers = part.split(self._sizes, 1)
            columns = [obs, state, action, mask > 0, *(each.squeeze(1) for each in numbers), policy]
            yield Minibatch(*columns)


@dataclass(frozen=True)
class Minibatch:
    """B rows of a rollout: obs (B, O), state (B, S), action (B, A), mask (B, K) bool, the five numbers (B,), and the
    reference's distributions (B, P), where they are needed.

    Of sequences (see `RolloutSequences`), obs and critic_obs are packed, (L, Q, ...), and state has all L Q rows. The
    other columns have those that are learned from, of which `learned` (B,) gives the positions; None means all.
    """

    obs: Tensor
    state: Tensor
    action: Tensor
    mask: Tensor
    behaviour: Tensor
    reference: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor
    policy: Tensor = NO_POLICY
    critic_obs: Tensor | None = None
    learned: Tensor | None = None

    def of_learned(self, out: Tensor) -> Tensor:
        """A network's outputs in the rows that are learned from."""
        return out if self.learned is None else out[self.learned]

    def for_all(self, gradient: Tensor, out: Tensor) -> Tensor:
        """The gradient at a network's outputs `out`: 0 in the rows that are not learned from."""
        return gradient if self.learned is None else torch.zeros_like(out).index_copy_(0, self.learned, gradient)
