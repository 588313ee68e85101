"""The torch learner of rollouts: what surrounds an on-policy algorithm's turns with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.algorithms.configs import PPO
from offbeat.algorithms.torch.appo import Prepared, Steps
from offbeat.learn.torch import Learner
from offbeat.types import Array, Chunk


@dataclass(frozen=True)
class Experience:
    """T steps of N environments by column, (T, N, ...), time first. valid (T, N) bool: where there is a row."""

    columns: Mapping[str, Array]
    valid: Array

    @classmethod
    def copied(cls, parts: Sequence[tuple[Array, Array]]) -> Experience:
        """Packed rows (T, N) and valid (T, N) of several collectors as one, their environments side by side."""
        row = parts[0][0].dtype
        # As bytes: NumPy would join them field by field, and without the padding that keeps numbers aligned.
        whole = np.dtype((np.void, row.itemsize))
        rows = np.concatenate([rows.view(whole) for rows, _ in parts], 1).view(row)
        return cls({name: rows[name] for name in row.names or ()}, np.concatenate([valid for _, valid in parts], 1))

    def chunk(self) -> Chunk:
        """Its rows alone, in the order in which they were made."""
        return Chunk({name: np.asarray(column)[self.valid] for name, column in self.columns.items()})


class RolloutLearner(Learner):
    """A learner whose updates come in turns, each with one rollout.

    Statistics of observations take a rollout in when its first turn is over: during it, the observations are normalised
    as they were for who acted, as far as these weights are still those that acted. The very first rollout is taken in
    before its turn, because there are no statistics yet. share_done: of the run's steps, before this turn.
    """

    config: PPO
    share_done = 0.0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._clip, self._entropy = self._schedule("clip_schedule"), self._schedule("entropy_schedule")

    def progress(self) -> float:
        return min(1.0, self.share_done)

    def factors(self) -> dict[str, float]:
        adapted = float(self.state.rate_factor)
        return {group: factor * adapted for group, factor in super().factors().items()}

    def turn(self, rollout: Experience, rng: np.random.Generator, count: int) -> int:
        """Up to `count` updates: all minibatches of all epochs, if they are so many. Returns how many it made."""
        with torch.inference_mode() if self._explicit else torch.no_grad():
            return self._turn(rollout, rng, count)

    def _turn(self, rollout: Experience, rng: np.random.Generator, count: int) -> int:
        with self._own_randomness():
            rows = self.algorithm.prepare(self.state, self.config, self.spec, self._steps(rollout))
            if not len(rows):  # there may be calls that gave no row alone
                return 0
            made, stopped = self._epochs(rows, rng, count)
        self._note({"explained_variance": rows.explained_variance()})
        if self.config.target_kl is not None:
            self._note({"kl_stops": self._tensor(np.asarray(float(stopped)))})
        return made

    def _epochs(self, rows: Prepared, rng: np.random.Generator, count: int) -> tuple[int, bool]:
        """Up to `count` updates with the rows: how many were made, and whether `target_kl` ended the turn."""
        config, made, (rate,) = self._scheduled(), 0, self.rates().values()
        for _ in range(config.epochs):
            order = torch.from_numpy(rng.permutation(len(rows))).to(self.device)
            for batch in rows.minibatches(order, min(config.minibatches, len(rows))):
                if made == count:
                    return made, False
                moved = made > 0 or self.state.target is not None
                metrics, following = self._algorithm_update(self.state, config, self.spec, batch, rate, moved)
                self._note(metrics)
                if following is None:
                    return made, True
                rate, made = following, made + 1
        return made, False

    def _scheduled(self) -> PPO:
        """The settings of this turn, with what follows a schedule as it is now."""
        config, progress = self.config, self.progress()
        if config.clip_schedule == config.entropy_schedule == "constant":
            return config
        return dataclasses.replace(
            config,
            clip=config.clip * self._clip(progress),
            entropy_coefficient=config.entropy_coefficient * self._entropy(progress),
            clip_schedule="constant",
            entropy_schedule="constant",
        )

    def observe_rewards_of(self, rollout: Experience) -> None:
        """Takes statistics of rewards, step after step."""
        if self.returns is not None:
            columns = rollout.columns
            ended = columns["terminated"] | columns["truncated"]
            self.returns.update_steps(columns["env"], columns["episode"], columns["reward"], ended, rollout.valid)

    def _steps(self, rollout: Experience) -> Steps:
        columns, valid = rollout.columns, rollout.valid
        reward = self._tensor(columns["reward"]) * self.reward_scale
        if (largest := self.config.largest_reward) is not None:
            reward = reward.clamp(-largest, largest)
        terminated, truncated = columns["terminated"] & valid, columns["truncated"] & valid
        # Where the next row is of another episode, or there is none, this one was broken off.
        episode = columns["episode"]
        broken = np.zeros_like(valid)
        broken[:-1] = (episode[1:] != episode[:-1]) | ~valid[1:]
        state = ("state", "next_state") if self.spec.state_size else ()
        inputs = {name: self._normalised(name, columns[name]) for name in ("obs", "next_obs", *state)}
        none = reward.new_zeros((*reward.shape, 0))
        return Steps(
            obs=inputs["obs"],
            next_obs=inputs["next_obs"],
            state=inputs.get("state", none),
            next_state=inputs.get("next_state", none),
            action=self._tensor(columns["action"]),
            mask=self._tensor(columns["mask"] | ~valid[..., None]) if self.spec.mask_size else none,
            reward=reward,
            log_prob=self._tensor(columns["log_prob"]),
            terminated=torch.from_numpy(terminated).to(self.device),
            truncated=torch.from_numpy(truncated | (broken & ~terminated)).to(self.device),
            valid=torch.from_numpy(np.array(valid)).to(self.device),
        )

    def _normalised(self, name: str, array: Array) -> Tensor:
        return self._normalise(name.removeprefix("next_"), np.ascontiguousarray(array))

    def arrays(self) -> dict[str, Array]:
        return super().arrays() | {"share_done": np.asarray(self.share_done)}

    def restore(self, arrays: Mapping[str, Any]) -> None:
        super().restore(arrays)
        self.share_done = float(arrays["share_done"])
