"""What each setting of Ray collectors changes: with a Ray that only notes what it is asked for, so in no time."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import offbeat
from offbeat.collect.ray_cluster import RaySettings, connect
from offbeat.errors import OffbeatError, ProcessFault, UsageError
from offbeat.settings import make_config


class NotedRay(ModuleType):
    """started: options of `init`. placed: options of each actor. refuses: what `init` raises."""

    def __init__(self, connected: bool = False, refuses: Exception | None = None) -> None:
        super().__init__("ray")
        self.started: dict[str, Any] | None = None
        self.placed: list[dict[str, Any]] = []
        self.connected, self.refuses, self.ended = connected, refuses, 0

    def is_initialized(self) -> bool:
        return self.connected

    def init(self, **options: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as Ray does
        self.started = options
        if self.refuses is not None:
            raise self.refuses

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "node", gcs_address="127.0.0.1:1")

    def remote(self, kind: type) -> Any:
        def options(**given: Any) -> Any:
            self.placed.append(given)
            return SimpleNamespace(remote=lambda paths: (kind, paths))

        return SimpleNamespace(options=options)

    def shutdown(self) -> None:
        self.ended += 1


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> NotedRay:
    ray = NotedRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


def begun(noted: NotedRay, **settings: Any) -> dict[str, Any]:
    """What a run asks Ray for before it begins; Ray is then not there."""
    noted.refuses = ConnectionError("nobody answers\nat all")
    with pytest.raises(UsageError, match=r"ConnectionError: nobody answers\)"):
        offbeat.train("sac", "Pendulum-v1", collector="ray", collectors=2, num_envs=2, quiet=True, **settings)
    assert noted.started is not None
    return noted.started


def test_ray_address_names_a_cluster_and_without_it_one_is_started(noted: NotedRay) -> None:
    here = begun(noted)
    assert (here["address"], here["num_cpus"], here["include_dashboard"]) == ("local", 2, False)
    assert here["object_store_memory"] >= 512 << 20
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        there = begun(noted, ray_address=address)
    assert there["address"] == address
    assert "num_cpus" not in there


def test_an_address_at_which_nothing_answers_is_refused_before_ray_tries_it_for_minutes(noted: NotedRay) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for address in (f"127.0.0.1:{port}", "127.0.0.1:99999", f"[::1]:{port}"):
        settings = RaySettings(address=address)
        with pytest.raises(
            UsageError, match=r"there is no cluster to connect to \(.*start one with `ray start --head`"
        ):
            connect(settings, 1, 0)
    assert noted.started is None


def test_ray_cpus_and_ray_resources_are_what_a_cluster_here_has_for_each_collector(noted: NotedRay) -> None:
    started = begun(noted, ray_cpus=1.5, ray_resources={"simulator": 2})
    assert (started["num_cpus"], started["resources"]) == (3, {"simulator": 4})


def test_ray_working_dir_is_sent_with_offbeat(noted: NotedRay, tmp_path: Path) -> None:
    assert begun(noted)["runtime_env"] is None
    sent = begun(noted, ray_working_dir=str(tmp_path))["runtime_env"]
    assert sent == {"working_dir": str(tmp_path), "py_modules": [os.path.dirname(offbeat.__file__)]}
    with pytest.raises(UsageError, match="ray_working_dir=nowhere is not a directory"):
        connect(RaySettings(working_dir="nowhere"), 1, 0)


def test_actors_reserve_what_is_set_and_are_placed_as_is_set(noted: NotedRay) -> None:
    connect(RaySettings(cpus=0.5, resources={"gpu_sim": 1}), 2, 0).make_actor()
    connect(RaySettings(placement="pack"), 2, 0).make_actor()
    first, second = noted.placed
    assert (first["num_cpus"], first["resources"], first["scheduling_strategy"]) == (0.5, {"gpu_sim": 1}, "SPREAD")
    assert (second["num_cpus"], second["resources"], second["scheduling_strategy"]) == (1.0, None, "DEFAULT")
    assert first["max_restarts"] == second["max_restarts"] == 0


def test_settings_of_a_run_reach_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RaySettings] = []

    def noted_connect(settings: RaySettings, *others: Any) -> Any:
        seen.append(settings)
        raise UsageError("noted")

    monkeypatch.setattr("offbeat.collect.factories.connect", noted_connect)
    own = {"ray_address": "auto", "ray_cpus": 0.5, "ray_resources": {"gpu_sim": 1.0}, "ray_placement": "pack"}
    with pytest.raises(UsageError, match="noted"):
        offbeat.train("sac", "Pendulum-v1", collector="ray", collectors=1, quiet=True, ray_working_dir=".", **own)
    assert seen == [RaySettings("auto", 0.5, {"gpu_sim": 1.0}, "pack", ".")]


def test_a_run_keeps_its_own_reaction_to_sigterm(noted: NotedRay) -> None:
    before = signal.getsignal(signal.SIGTERM)
    mine = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        own = signal.getsignal(signal.SIGTERM)
        connect(RaySettings(), 1, 0)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    assert mine is before


def test_a_cluster_that_the_run_has_not_joined_is_not_left_by_it(noted: NotedRay) -> None:
    cluster = connect(RaySettings(), 1, 0)
    cluster.close()
    cluster.close()
    assert noted.ended == 1
    noted.connected = True
    connect(RaySettings(address="auto"), 1, 0).close()
    assert noted.ended == 1
    with pytest.raises(UsageError, match=r"ray_address=10.0.0.1:6379, but this process has called ray.init"):
        connect(RaySettings(address="10.0.0.1:6379"), 1, 0)
    with pytest.raises(UsageError, match=r"ray_working_dir=\. is sent when a run connects"):
        connect(RaySettings(working_dir="."), 1, 0)


def test_a_lost_head_ends_the_run_in_words(noted: NotedRay, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("offbeat.collect.ray_cluster.time", SimpleNamespace(monotonic=lambda: clock.now))
    cluster = connect(RaySettings(), 1, 0)  # nothing listens at its address
    own = cluster.head

    def check(at: float, head: Any = own) -> None:
        clock.now, cluster.head = at, head
        cluster.check()

    for pause in (100.0, 200.0):  # as after an evaluation, in which nobody has asked
        for after in (0.0, 5.0, 9.0):
            check(pause + after)  # it may come back
    with socket.create_server(("127.0.0.1", 0)) as back:
        check(218.0, back.getsockname())
    for at in (220.0, 225.0, 230.0):
        check(at)
    with pytest.raises(ProcessFault, match=r"Ray cluster, 127.0.0.1:1, has not answered for 11 s .* resume"):
        check(231.0)


def test_without_ray_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'offbeat\[ray\]'"):
        offbeat.train("sac", "Pendulum-v1", collector="ray", collectors=1, quiet=True)


def test_a_node_without_offbeat_says_so(noted: NotedRay, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The class of an actor is sent by value, so that it runs where Offbeat cannot be imported."""
    kind, paths = connect(RaySettings(), 1, 0).make_actor()
    before = sys.path.copy()
    try:
        actor = kind([*paths, str(tmp_path), "/nowhere"])
        assert sys.path == [*before, str(tmp_path)], "the node's own paths come first"
    finally:
        sys.path[:] = before
    monkeypatch.setitem(sys.modules, "offbeat.collect.ray_worker", None)
    status, sentence = actor.call("where")
    assert status == "failed permanently"
    assert f"node {os.uname().nodename} of the Ray cluster cannot import Offbeat" in sentence
    assert "<locals>" in kind.__qualname__


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"collector": "ray"}, "collector=ray needs collectors >= 1"),
        ({"collector": "rays", "collectors": 1}, "neither processes nor ray nor module:callable.*did you mean"),
        ({"collectors": 1, "ray_cpus": 2.0}, "ray_cpus=2.0 has no effect, because collector is not ray"),
        ({"collector": "ray", "collectors": 1, "ray_resources": {"gpu": "a"}}, "gpu='a' is no amount"),
        ({"collector": "ray", "collectors": 1, "ray_cpus": -1.0}, "ray_cpus=-1.0 is out of range"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OffbeatError, match=sentence):
        make_config("sac", {"env": "Pendulum-v1", **settings})


def test_the_learner_does_not_join_as_a_client(noted: NotedRay) -> None:
    with pytest.raises(UsageError, match=r"ray_address=ray://head:10001 is one of Ray's client"):
        connect(RaySettings(address="ray://head:10001"), 1, 0)
