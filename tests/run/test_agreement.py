"""What two ranks decide by the numbers that both have told, and the data from which both learn."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offbeat.errors import OffbeatError
from offbeat.learn.shared_statistics import GatheredPreprocessor
from offbeat.run.agreement import Agreement

STEPS, STOP, ENDED, CHECKPOINT, READY, UNFINISHED, OLDEST, UPDATES, COUNT, RATE = range(10)


def met(other: dict[int, float], rank: int = 0) -> tuple[Agreement, Any]:
    """After a meeting in which this rank is ready with 5 steps; the other one tells the same, but for these numbers."""

    def gather(row: Any) -> Any:
        theirs = np.array(row, float)
        for index, value in other.items():
            theirs[index] = value
        return np.stack([row, theirs] if rank == 0 else [theirs, row])

    taken: list[Any] = []
    learner = SimpleNamespace(
        updates=7,
        own_rates=lambda: {"actor": 0.1},
        shared=SimpleNamespace(take_fresh=lambda: np.zeros(1)),
        take_rates=lambda rates: taken.append(rates.tolist()),
        merge=lambda found: None,
    )
    experience = SimpleNamespace(ready=lambda: True, unfinished=False)
    training: Any = SimpleNamespace(learner=learner, experience=experience, take_fresh_steps=lambda: 5, steps=100)
    ranks: Any = SimpleNamespace(gather=gather, rank=rank, size=2)
    agreement = Agreement(training, ranks)
    agreement.meet(oldest=6)
    return agreement, SimpleNamespace(steps=training.steps, rates=taken[-1])


def test_wishes_of_one_rank_are_those_of_all() -> None:
    for rank in (0, 1):
        agreement, training = met({}, rank)
        assert not (agreement.stop)
        assert not (agreement.ended)
        assert not (agreement.checkpoint)
        assert not (agreement.unfinished)
        assert (agreement.ready, agreement.oldest, training.steps) == (True, 6, 110)
        for index, name in ((STOP, "stop"), (ENDED, "ended"), (CHECKPOINT, "checkpoint"), (UNFINISHED, "unfinished")):
            assert getattr(met({index: 1}, rank)[0], name)


def test_all_wait_for_a_rank_that_has_nothing_to_learn_from_or_acts_with_old_weights() -> None:
    for rank in (0, 1):
        assert not met({READY: 0}, rank)[0].ready
        assert met({OLDEST: 2}, rank)[0].oldest == 2
        assert met({STEPS: 3}, rank)[1].steps == 108


def test_learning_rates_are_those_of_the_first_rank() -> None:
    assert met({RATE: 0.3}, rank=0)[1].rates == [0.1]
    assert met({RATE: 0.3}, rank=1)[1].rates == [0.3]


def test_ranks_that_have_made_different_numbers_of_updates_end() -> None:
    with pytest.raises(OffbeatError, match=r"different numbers of updates, \[7, 9\]: every rank must call update"):
        met({UPDATES: 9})


def test_ranks_that_are_asked_for_different_numbers_of_updates_end() -> None:
    with pytest.raises(OffbeatError, match=r"different numbers of updates, \['as due', 3\]: every rank must"):
        met({COUNT: 3})


def test_a_users_preprocessor_learns_from_the_rows_of_all_ranks_in_their_order() -> None:
    seen: list[Any] = []
    shared = GatheredPreprocessor(SimpleNamespace(update=lambda rows: seen.append(rows.tolist())))  # type: ignore[arg-type]
    other = io.BytesIO()
    np.save(other, np.full((1, 2), 9.0))
    shared.update(np.ones((1, 2)))
    shared.update(np.zeros((1, 2)))
    assert seen == []
    ranks: Any = SimpleNamespace(gather_bytes=lambda data: [other.getvalue(), data])
    shared.gather(ranks)
    assert seen == [[[9.0, 9.0]], [[1.0, 1.0], [0.0, 0.0]]]
    shared.gather(ranks)
    assert seen[2:] == [[[9.0, 9.0]]]
