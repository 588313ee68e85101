"""The learner's side of Ray collectors, with actors in this process: what is asked for, what is lost, what is told."""

from __future__ import annotations

import signal
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest

from collectors import TakenRollouts, collect, columns, make_context, publication, settle, start
from counting import Counting
from counting import make as make_counting
from logged import compare, make, read_log
from offbeat.collect.ray_actors import call_seconds
from offbeat.collect.ray_worker import RayWorker, failure
from offbeat.envs import make_vector
from offbeat.errors import ProcessFault
from offbeat.trace import NO_TRACE
from offbeat.types import EnvSpec
from offbeat.weights.publication import Publication
from ray_stand_in import Lost, StandIn, stand_in


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> EnvSpec:
    return make_vector(make, 1, env_kwargs={"log_dir": str(tmp_path_factory.mktemp("spec"))}).spec


def steps_of(cluster: StandIn) -> list[int]:
    return [arguments[0] for _, method, arguments in cluster.calls if method == "collect"]


def begin(spec: EnvSpec, log_dir: Path, **options: Any) -> tuple[Any, Any, StandIn, list[str]]:
    """A collector with one actor of two environments, its slot, its cluster and its notes."""
    cluster, notes = StandIn(), list[str]()
    options = {"collectors": 1, "num_envs": 2, "capacity": 10_000, **options}
    collector, [slot, *_] = start(
        make, spec, make=stand_in(cluster), note=notes.append, log_dir=str(log_dir), **options
    )
    collector.poll(0.0)
    return collector, slot, cluster, notes


def test_a_lost_actor_is_replaced_and_its_unfinished_chunks_are_counted(spec: EnvSpec, tmp_path: Path) -> None:
    collector, slot, cluster, notes = begin(spec, tmp_path)
    collect(collector, 100)
    settle(collector, [slot])
    arrived = slot.store.committed
    cluster.held.add("collect")
    collector.allow(10**9)
    collector.poll(0.0)
    assert len(cluster.unanswered) == 2
    cluster.held.clear()
    for future in cluster.unanswered:
        future.set_exception(Lost("The actor is dead because its node has died."))
    collector.poll(0.0)
    collector._supervise()
    assert collector.report().lost["abandoned_chunks"] == 2
    assert "collector 0 was lost (Lost: The actor is dead because its node has died.)" in notes[0]
    assert slot.store.committed == arrived
    collect(collector, 300)
    settle(collector, [slot])
    rows = columns(slot)
    assert compare([rows], read_log(tmp_path), run_seed=3) == 0
    last = [np.flatnonzero(rows["env"][:arrived] == env)[-1] for env in (0, 1)]
    assert (rows["terminated"] | rows["truncated"])[last].all(), "an episode goes on in another actor"
    assert collector.report().restarts == 1
    collector.close()


def test_calls_are_few_and_large_while_the_learner_works(spec: EnvSpec, tmp_path: Path) -> None:
    collector, _, cluster, _ = begin(spec, tmp_path, collect_ahead=40)
    host = collector._host
    host.least = 10
    for allowed in range(0, 60, 2):  # two environments: a vector step more each time
        collector.allow(allowed)
        collector.poll(0.0)
    collector.poll(0.0)
    assert steps_of(cluster) == [10, 10, 10]
    collector.allow(66)
    assert collector.poll(0.0) == []  # 4 steps are permitted, which is too few for a call
    assert len(collector.poll(0.01)) == 1  # but the learner waits
    assert steps_of(cluster)[-1] == 4
    cluster.held.add("collect")
    for _ in range(3):
        collector.allow(10**9)
        collector.poll(0.0)
    assert steps_of(cluster)[4:] == [20, 20], "collect_ahead in two calls, and no third"
    for future in cluster.unanswered:
        future.set_exception(Lost("The actor is dead"))
    collector.close()


def test_permits_of_a_call_that_is_not_answered_are_not_given_again(spec: EnvSpec, tmp_path: Path) -> None:
    collector, slot, cluster, _ = begin(spec, tmp_path, collect_ahead=40)
    cluster.held.add("collect")
    for allowed in (10, 11, 16, 17):  # two environments: 6 vector steps, and 3 more
        collector.allow(allowed)
        for _ in range(2):
            collector.poll(0.0)
            collector._host.exchange(idle=True)
    assert sum(steps_of(cluster)) == slot.control.permit == 9
    for future in cluster.unanswered:
        future.set_exception(Lost("The actor is dead"))
    collector.close()


def test_a_rollout_has_the_weights_of_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it takes several calls, between which there are others."""
    monkeypatch.setattr("offbeat.collect.ray_actors.CALL_SECONDS", (0.0, 0.0))
    spec, cluster = make_vector(make_counting, 1).spec, StandIn()
    experience = TakenRollouts(spec, 5)
    context = make_context(make_counting, spec, experience, num_envs=1, collectors=1)
    collector = stand_in(cluster)(context)
    collector.connect(note=print, trace=NO_TRACE, stop=lambda: False)
    for version in range(40):  # more often than a rollout has steps
        collector.publish(Publication(version, {"actor/0/weight": np.full(3, version, np.float32)}))
        collector.allow(10**9)
        collector.poll(0.0)
    assert len(experience.rollouts) > 2
    for rows, _ in experience.rollouts:
        assert len(set(rows["log_prob"][:, 0].tolist())) == len(set(rows["version"][:, 0].tolist())) == 1
        assert rows["log_prob"][0, 0] == rows["version"][0, 0]
    assert len({float(rows["version"][0, 0]) for rows, _ in experience.rollouts}) > 1
    collector.close()


def test_an_actor_knows_how_many_rows_the_others_have_made(spec: EnvSpec, tmp_path: Path) -> None:
    """By the rows of all, its policy knows when the first random steps are over."""
    collector, _, cluster, _ = begin(spec, tmp_path, collectors=2, num_envs=2)
    collect(collector, 100)
    told = {actor: arguments[2] for actor, method, arguments in cluster.calls if method == "collect"}
    assert sorted(told) == [0, 1]
    assert all(rows > 20 for rows in told.values())
    collector.close()


def test_a_lost_head_ends_the_collector(spec: EnvSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        raise ProcessFault("the head does not answer")

    collector, _, cluster, _ = begin(spec, tmp_path)
    monkeypatch.setattr(cluster, "check", check)
    with pytest.raises(ProcessFault, match="the head does not answer"):
        collector.poll(0.0)
    collector.close()


def test_weights_are_stored_once_for_each_publication_that_is_used(spec: EnvSpec, tmp_path: Path) -> None:
    collector, slot, cluster, _ = begin(spec, tmp_path, collectors=2, num_envs=2)
    collector.publish(publication(3))
    collect(collector, 100)
    assert cluster.stored == 1
    for version in (4, 5, 6):
        collector.publish(publication(version))
    collect(collector, 200)
    assert cluster.stored == 2
    assert set(columns(slot)["version"]) == {3, 6}
    collector.close()


def test_weights_of_the_same_version_are_loaded_when_they_are_published_again() -> None:
    """As before the first update, when only the statistics of a normaliser change."""
    spec, cluster = make_vector(make_counting, 1).spec, StandIn()
    experience = TakenRollouts(spec, 5)
    context = make_context(make_counting, spec, experience, num_envs=1, collectors=1)
    collector = stand_in(cluster)(context)
    collector.connect(note=print, trace=NO_TRACE, stop=lambda: False)
    for value in (1.0, 2.0):
        collector.publish(Publication(0, {"actor/0/weight": np.full(3, value, np.float32)}))
        collect(collector, collector.polled_rows + 15)
    acted = [float(rows["log_prob"][0, 0]) for rows, _ in experience.rollouts]
    assert acted[0] == 1.0
    assert acted[-1] == 2.0
    collector.close()


def test_the_version_that_acts_is_known_while_a_chunk_is_being_made(spec: EnvSpec, tmp_path: Path) -> None:
    collector, _, cluster, _ = begin(spec, tmp_path)
    collect(collector, 10)
    cluster.held.add("collect")
    collector.publish(publication(5))
    collector.allow(10**9)
    collector.poll(0.0)
    collector.publish(publication(9))
    collector.allow(2 * 10**9)
    collector.poll(0.0)
    assert collector.oldest_version() == 5
    for future in cluster.unanswered:
        future.set_exception(Lost("The actor is dead"))
    collector.close()
    assert collector.report().lost["abandoned_chunks"] == 2


def test_an_actor_that_never_ran_is_placed_again_and_is_no_crash(spec: EnvSpec, tmp_path: Path) -> None:
    collector, slot, cluster, notes = begin(spec, tmp_path, begin=False, max_crashes=1)
    cluster.held.add("where")
    collector.publish(publication(0))
    cluster.unanswered[-1].set_exception(Lost("The actor never ran"))
    cluster.held.clear()
    collector._supervise()
    assert "The actor never ran" in notes[0]
    slot.child.starts.postpone(0.0)
    collect(collector, 10)
    assert slot.child.starts.crashes_in_a_row == 0
    collector.close()


def test_an_actor_that_waits_for_a_place_is_told_of_and_not_killed(
    spec: EnvSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.collect.ray_actors.SECONDS_UNTIL_NOTE", 0.05)
    collector, _, cluster, notes = begin(spec, tmp_path, begin=False, hang_seconds=0.01)
    cluster.held.add("where")
    collector.publish(publication(0))
    collector._supervise()
    assert notes == []
    for _ in range(3):
        time.sleep(0.05)
        collector._supervise()
    [note] = notes
    assert "for a place in the Ray cluster: it needs 1 CPU" in note
    assert cluster.dead == set()
    collector.close()


def test_a_call_that_is_not_answered_ends_in_another_actor(spec: EnvSpec, tmp_path: Path) -> None:
    collector, slot, cluster, notes = begin(spec, tmp_path, hang_seconds=0.05)
    collect(collector, 10)
    cluster.held.add("collect")
    collector.allow(10**9)
    collector.poll(0.0)
    time.sleep(0.15)
    collector._supervise()
    assert "has not moved for 0 s and is killed" in notes[-1]
    assert 0 in cluster.dead
    cluster.held.clear()
    for future in cluster.unanswered:
        future.set_exception(Lost("The actor was killed"))
    collect(collector, 100)
    assert slot.child.starts.boots == 2
    collector.close()


def test_another_version_on_a_node_ends_the_run_in_words(spec: EnvSpec, tmp_path: Path) -> None:
    collector, _, cluster, _ = begin(spec, tmp_path, begin=False)
    cluster.version = "0.0.1"
    collector.publish(publication(0))
    with pytest.raises(ProcessFault, match=r"has Offbeat 0.0.1 on node 127.0.0.1, but the learner has"):
        collector._supervise()
    collector.close()


def only_here() -> Any:
    """A factory in a module that only this process has."""
    module = sys.modules["only_here"] = ModuleType("only_here")
    exec("def make(**kwargs):\n    raise AssertionError", module.__dict__)
    return module.__dict__["make"]


def test_a_module_that_a_node_does_not_have_ends_the_run_in_words(spec: EnvSpec, tmp_path: Path) -> None:
    cluster = StandIn()
    collector, _ = start(
        only_here(), spec, collectors=1, num_envs=1, capacity=1_000, make=stand_in(cluster), begin=False
    )
    cluster.held.add("begin")
    collector.publish(publication(0))
    [job] = [arguments[0] for _, method, arguments in cluster.calls if method == "begin"]
    del sys.modules["only_here"]
    try:
        RayWorker(job, "there")
    except Exception as error:
        cluster.unanswered[0].set_result(failure(error))
    with pytest.raises(ProcessFault, match=r"No module named 'only_here'[^\n]*--ray-working-dir"):
        collector._supervise()
    collector.close()


slept = list[int]()


class Sleeping(Counting):
    """The third step of the first one takes an hour."""

    def step(self, action: np.ndarray) -> Any:
        if not slept and self.step_index == 2:
            slept.append(1)
            time.sleep(3_600)
        return super().step(action)


def sleeping(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return Sleeping(length=5, **kwargs)


def test_an_actor_interrupts_its_own_environment_when_that_hangs() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    cluster, notes = StandIn(), list[str]()
    spec = make_vector(sleeping, 1).spec
    collector, [slot] = start(
        sleeping,
        spec,
        collectors=1,
        num_envs=1,
        capacity=1_000,
        hang_seconds=0.2,
        make=stand_in(cluster),
        note=notes.append,
    )
    try:
        collect(collector, 20)
        assert any("it took too long, and was interrupted" in note for note in notes)
        assert collector.report().restarted_environments == 1
        assert columns(slot)["truncated"][1], "the episode ended at its last good step"
    finally:
        collector.close()
        for worker in cluster.workers:
            worker._step_began = None
        signal.signal(signal.SIGUSR1, before)


def test_a_slow_environment_sends_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call returns in time even if the permitted steps take longer, and a rollout goes on in the next call."""
    monkeypatch.setattr("offbeat.collect.ray_actors.CALL_SECONDS", (0.0, 0.0))
    spec, cluster = make_vector(make_counting, 1).spec, StandIn()
    experience = TakenRollouts(spec, 5)
    context = make_context(make_counting, spec, experience, num_envs=2, collectors=1, collect_ahead=8)
    collector = stand_in(cluster)(context)
    collector.connect(note=print, trace=NO_TRACE, stop=lambda: False)
    collector.publish(publication(0))
    collect(collector, 20)
    assert len(steps_of(cluster)) >= 10  # one vector step in each
    assert [valid.shape for _, valid in experience.rollouts[:2]] == [(5, 2), (5, 2)]
    collector.close()


def test_more_episodes_than_the_ring_holds_wait_for_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.collect.control._EPISODES", 4)
    spec, cluster = make_vector(make_counting, 1).spec, StandIn()
    collector, [slot] = start(
        make_counting, spec, collectors=1, num_envs=3, capacity=1_000, make=stand_in(cluster), length=1
    )
    assert slot.control.episode_capacity == 4
    finished = []
    while collector.polled_rows < 60:
        collector.allow(59)
        finished += [(each.env, each.episode) for chunk in collector.poll(0.01) for each in chunk.finished]
    assert len(set(finished)) == len(finished) == collector.polled_rows == 60
    collector.close()


def test_calls_last_longer_the_more_collectors_there_are() -> None:
    """The learner takes some 2,000 answers a second; a hang is noticed by answers that do not come."""
    assert [call_seconds(collectors, 60.0) for collectors in (1, 50, 400, 10_000)] == [0.1, 0.1, 0.8, 2.0]
    assert call_seconds(10_000, 1.0) == 0.25


def test_futures_of_a_stand_in_are_as_those_of_ray() -> None:
    cluster = StandIn()
    actor = cluster.make_actor()
    assert isinstance(cluster.call(actor, "where"), Future)
    assert cluster.call(actor, "collect", 1, 0.1, 0, 0, [{}]).result()[0] == "failed"
    cluster.kill(actor)
    assert isinstance(cluster.call(actor, "where").exception(), Lost)
