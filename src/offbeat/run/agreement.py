"""What all ranks of a run know: steps, statistics and wishes of each, gathered at the same moments on all.

Between two meetings every rank decides by the same numbers, so that all make the same updates, and end together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from offbeat.errors import OffbeatError, UsageError
from offbeat.ranks import Ranks

if TYPE_CHECKING:
    from offbeat.run.training import Training

_NEVER = 2.0**53
_DUE = -(2.0**53)


class Agreement:
    """The result of the last meeting.

    stop: a rank was asked to stop. ended: a callback ended the run. checkpoint: a callback asked for one. ready: all
    have something to learn from. unfinished: a rank has begun a rollout. oldest: the oldest version that acts on any
    rank.
    """

    def __init__(self, training: Training, ranks: Ranks) -> None:
        self._training, self._ranks = training, ranks
        self.stop = self.ended = self.checkpoint = self.ready = self.unfinished = False
        self.oldest: int | None = None

    def meet(
        self,
        *,
        stop: bool = False,
        ended: bool = False,
        checkpoint: bool = False,
        oldest: int | None = None,
        count: int | None = None,
    ) -> None:
        """Waits for all ranks, gathers what each has to tell, and merges new steps and statistics.

        count: of the updates that a loop of the user's own asks for.
        """
        training, learner = self._training, self._training.learner
        experience, shared = training.experience, learner.shared
        assert shared is not None
        told: list[float] = [
            training.take_fresh_steps(),
            stop,
            ended,
            checkpoint,
            experience.ready(),
            experience.unfinished,
        ]
        told += [_NEVER if oldest is None else oldest, learner.updates, _DUE if count is None else count]
        rates = list(learner.own_rates().values())
        found = self._ranks.gather(np.concatenate((told, rates, shared.take_fresh())))
        columns = found.T
        self.stop, self.ended, self.checkpoint = (bool(columns[index].any()) for index in (1, 2, 3))
        self.ready, self.unfinished = bool(columns[4].all()), bool(columns[5].any())
        least = float(columns[6].min())
        self.oldest = None if least == _NEVER else int(least)
        training.steps += int(columns[0].sum())
        learner.take_rates(found[0, len(told) : len(told) + len(rates)])
        learner.merge(found[:, len(told) + len(rates) :])
        if (columns[7] != columns[7][0]).any():
            raise OffbeatError(
                f"the learners have made different numbers of updates, {columns[7].astype(int).tolist()}: every rank "
                "must call update equally often, with the same count"
            )
        if (columns[8] != columns[8][0]).any():
            counts = ["as due" if each == _DUE else int(each) for each in columns[8]]
            raise OffbeatError(
                f"the learners were asked for different numbers of updates, {counts}: every rank must call update "
                "equally often, with the same count"
            )

    def asked(self, count: int | None) -> int | None:
        """Meets for a loop of the user's own that asks for so many updates, and returns how many all can make."""
        self.meet(count=count)
        if self.ready or count is None or count < 0:
            return count
        if count > 0 and self._training.algorithm.learns_from == "replay":
            raise UsageError(
                f"update: count={count}, but the replay of a rank does not hold enough yet; observe more first"
            )
        return 0  # a rollout is not complete

    def rows(self, own: int) -> tuple[int, int]:
        """The least number of rows in the rollout of a rank, and that of all rollouts together."""
        found = self._ranks.gather(np.array([own]))[:, 0]
        return int(found.min()), int(found.sum())

    def of_first(self, done: bool) -> bool:
        """What rank 0 says; that something was broken off there also stops the others."""
        done = bool(self._ranks.gather(np.array([done]))[0, 0])
        self.stop = self.stop or not done
        return done
