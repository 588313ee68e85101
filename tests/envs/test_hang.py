"""An environment that hangs: a signal handler raises inside of its code, and nowhere else."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from faulty import Bent, Walk
from gymnasium.vector import SyncVectorEnv
from troubled import LENGTH, Record, Troubled, actions, among_walks, assert_same_rows, fail, first_observation, run

import patience
from offbeat.envs import Vector, make_vector
from offbeat.errors import EnvironmentFault, EnvironmentHung

Watch = Callable[[Vector], None]


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Makes SIGUSR1 raise EnvironmentHung while an environment of the given vectors is running."""
    watched: list[Vector] = []

    def interrupt(*_: Any) -> None:
        if any(vector.stepping for vector in watched):
            raise EnvironmentHung("no answer for 0.05 s")

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield watched.append
    signal.signal(signal.SIGUSR1, before)


def hang(result: Any) -> Any:
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    time.sleep(patience.SECONDS)
    raise AssertionError("nobody interrupted it")


def test_a_hung_step_is_interrupted_and_ends_the_episode_of_its_environment_alone(watch: Watch) -> None:
    record = Record({("step", 4): hang})
    vector = among_walks(record, max_faults=1)
    watch(vector)
    ours, theirs = run(vector, 20), run(make_vector(Walk, 3, seed=3, env_kwargs={"length": LENGTH}), 20)
    for mine, healthy in zip(ours, theirs, strict=True):
        assert_same_rows(mine, healthy, [0, 2])
    step = ours[4]
    assert step.valid.tolist() == [True, False, True]
    assert step.observation.vector[1].tobytes() == first_observation(1, 1).tobytes()
    assert [(fault.env, fault.kind) for fault in step.faults] == [(1, "hung")]
    assert "step 4: step raised EnvironmentHung: no answer for 0.05 s" in str(step.faults[0].error)
    assert record.calls["make"] == 2


@pytest.mark.parametrize(
    ("trouble", "kinds"),
    [
        ({("reset", 0): hang}, ["hung"]),
        ({("reset", 1): hang}, ["hung"]),
        ({("step", 2): fail, ("close", 0): hang}, ["raised"]),
        ({("step", 2): fail, ("make", 1): hang}, ["raised", "hung"]),
    ],
)
def test_a_hang_in_any_other_call_of_an_environment_is_recovered_from(
    trouble: Any, kinds: list[str], watch: Watch
) -> None:
    record = Record(trouble)
    vector = among_walks(record, max_faults=2)
    watch(vector)
    steps = run(vector, 10)
    assert [fault.kind for step in steps for fault in step.faults] == kinds
    assert record.calls["make"] == 2 + (("make", 1) in trouble)
    assert not vector.stepping


def test_a_vector_is_stepping_only_while_an_environments_own_code_runs(watch: Watch) -> None:
    seen: list[bool] = []

    def look(result: Any) -> Any:
        seen.append(vector.stepping)
        return result

    def look_and_fail(result: Any) -> Any:
        look(result)
        return fail(result)

    calls = [("reset", 0), ("step", 0), ("close", 0), ("make", 1), ("close", 1)]
    vector = among_walks(Record({**dict.fromkeys(calls, look), ("step", 1): look_and_fail}), max_faults=1)
    watch(vector)
    between: list[bool] = []
    vector.reset()
    for action in actions(vector, 3):
        between.append(vector.stepping)
        signal.raise_signal(signal.SIGUSR1)
        vector.step(action)
    vector.close()
    assert seen == [True] * 6
    assert [*between, vector.stepping] == [False] * 4


def test_a_vector_env_is_stepping_and_hangs_by_raising_a_fault(watch: Watch) -> None:
    record = Record({("step", 0): hang, ("reset", 1): hang})
    vector = make_vector(SyncVectorEnv([lambda: Troubled(record)]))
    watch(vector)
    vector.reset()
    signal.raise_signal(signal.SIGUSR1)
    with pytest.raises(EnvironmentFault, match=r"step 0: step raised EnvironmentHung: no answer"):
        vector.step(actions(vector, 1)[0])
    assert not vector.stepping
    with pytest.raises(EnvironmentFault, match=r"reset: reset raised EnvironmentHung: no answer"):
        vector.reset()
    assert not vector.stepping


def test_an_interrupted_step_leaves_no_vector_stepping() -> None:
    def interrupt(env: Bent, *values: Any) -> Any:
        raise KeyboardInterrupt

    for vector in (
        make_vector(lambda: Bent(interrupt), max_faults=1),
        make_vector(SyncVectorEnv([lambda: Bent(interrupt)])),
    ):
        vector.reset()
        with pytest.raises(KeyboardInterrupt):
            vector.step(np.zeros((1, 2), np.float32))
        assert not vector.stepping


def test_no_row_is_lost_or_repeated_however_many_signals_come(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    # A signal may hit a finaliser that runs meanwhile. Python ignores what it raises there; pytest's hook, which a
    # further signal may interrupt, would fail the test.
    ignored: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: ignored.append(each.exc_type))
    vector = make_vector(Walk, 3, env_kwargs={"length": LENGTH}, max_faults=10**6)
    watch(vector)
    ended = threading.Event()

    def disturb() -> None:
        while not ended.wait(0.0005):
            os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=disturb)
    vector.reset()
    thread.start()
    try:
        steps = []
        while len(steps) < 2_000 or not any(step.faults for step in steps):  # a signal may arrive late
            steps += [vector.step(action) for action in actions(vector, 1_000)]
    finally:
        ended.set()
        thread.join()
    assert set(ignored) <= {EnvironmentHung}
    assert {fault.kind for step in steps for fault in step.faults} == {"hung"}
    for row in range(3):
        place, lost = (-1, 0), 0
        for step in steps:
            here = int(step.episode[row]), int(step.step[row])
            if here[0] == place[0]:
                assert here[1] == place[1] + 1
            else:
                assert (here[0] > place[0], here[1]) == (True, 0)
            place = here
            lost += not step.valid[row]
        assert lost <= sum(fault.env == row for step in steps for fault in step.faults)
