"""A server, and the way of buffers and models between its workers and its trainer."""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from offbeat.compat.tmrl.networking import Server, Trainer, TrainerInterface
from offbeat.compat.tmrl.rendezvous import Place
from offbeat.compat.tmrl.training_offline import TrainingOffline
from offbeat.errors import OffbeatError, UsageError
from tmrl_parts import (
    PASSWORD,
    PORT,
    SMALL,
    alone,
    interface,
    observations,
    worker,
)

# Server


def test_a_port_has_one_server_and_is_free_again_when_it_is_closed() -> None:
    first = Server(port=PORT)
    with pytest.raises(UsageError, match=f"port={PORT} has a Server already"):
        Server(port=PORT)
    Server(port=PORT + 1).close()
    first.close()
    first.close()
    Server(port=PORT).close()


@pytest.mark.parametrize("port", [0, 70_000, True, "55555"])
def test_a_port_is_a_number_in_its_range(port: Any) -> None:
    with pytest.raises(UsageError, match="port="):
        Server(port=port)


def test_without_a_server_a_worker_says_which_one_it_waited_for() -> None:
    with pytest.raises(OffbeatError, match=rf"no Server on port {PORT} .*Server\(port={PORT}\)"):
        worker().send_and_clear_buffer()


def test_a_worker_notices_when_its_server_has_gone(server: Server) -> None:
    one = worker()
    one.collect_train_episode()
    one.send_and_clear_buffer()
    server.close()
    one.collect_train_episode()
    with pytest.raises(OffbeatError, match="no Server"):
        one.send_and_clear_buffer()
    with pytest.raises(OffbeatError, match="no Server"):
        one.update_actor_weights(blocking=True)


def test_trainer_and_workers_need_the_password_of_their_server() -> None:
    made = Server(port=PORT, password="one")
    worker(password="one").update_actor_weights()
    training = functools.partial(TrainingOffline, **SMALL, epochs=0)
    Trainer(training, server_port=PORT, password="one").run()
    for connect in (
        worker(password="two").update_actor_weights,
        Trainer(training, server_port=PORT, password="two").run,
    ):
        with pytest.raises(UsageError, match=r"password is not that of the Server .* pass the same"):
            connect()
    made.close()


def test_no_more_than_max_workers_are_connected_at_a_time() -> None:
    made = Server(port=PORT, max_workers=2)
    workers = [worker() for _ in range(3)]
    for each in workers[:2]:
        each.update_actor_weights()
    with pytest.raises(UsageError, match=r"max_workers=2, and as many are connected"):
        workers[2].update_actor_weights()
    workers[0].close()
    workers[2].update_actor_weights()
    with pytest.raises(UsageError, match="max_workers=0"):
        Server(port=PORT + 1, max_workers=0)
    made.close()


@pytest.mark.parametrize("address", [None, "127.0.0.1", "localhost"])
def test_samples_travel_between_addresses_of_this_machine(server: Server, address: Any) -> None:
    worker(server_ip=address).run(nb_episodes=1, verbose=False)
    training = functools.partial(TrainingOffline, **SMALL, epochs=1)
    ((row,),) = Trainer(training, server_ip=address, server_port=PORT).epochs()
    assert row["memory_len"] == 5


def test_another_machine_arrives_with_the_remote_workers() -> None:
    for make in (functools.partial(worker), functools.partial(Trainer, TrainingOffline)):
        with pytest.raises(UsageError, match=r"server_ip='203.0.113.7' is not .* arrives with the remote workers"):
            make(server_ip="203.0.113.7")


@pytest.mark.parametrize(("name", "value", "other"), [("header_size", 13, 12), ("security", "TLS", None)])
@pytest.mark.filterwarnings("ignore:security='TLS' encrypts nothing")
def test_trainer_and_workers_need_the_protocol_of_their_server(name: str, value: Any, other: Any) -> None:
    made = Server(port=PORT, **{name: value})
    training = functools.partial(TrainingOffline, **SMALL, epochs=0)
    for given in ({name: value}, {name: other}):
        for connect in (worker(**given).update_actor_weights, Trainer(training, server_port=PORT, **given).run):
            if given[name] == value:
                connect()
                continue
            with pytest.raises(UsageError, match=f"{name}={other!r} is not that of the Server .*, {value!r}; pass the"):
                connect()
    made.close()


def test_security_is_tls_which_encrypts_nothing_on_one_machine_or_none() -> None:
    for make in (functools.partial(Server, port=PORT), functools.partial(Trainer, TrainingOffline), alone):
        with pytest.warns(UserWarning, match="security='TLS' encrypts nothing here"):
            made: Any = make(security="TLS")
        getattr(made, "close", lambda: None)()
        with pytest.raises(UsageError, match=r"security='ssl' is not supported; pass \"TLS\" or None"):
            make(security="ssl")
        with pytest.raises(UsageError, match="header_size=0 is out of range"):
            make(header_size=0)


def test_parameters_for_a_network_are_named_in_a_warning() -> None:
    makers = [
        (functools.partial(Server, port=PORT), {"keys_dir": "keys", "local_port": 1}),
        (
            functools.partial(Trainer, TrainingOffline),
            {"keys_dir": "keys", "local_com_port": 1, "hostname": "host"},
        ),
        (alone, {"keys_dir": "keys", "local_port": 1, "hostname": "host"}),
    ]
    for make, given in makers:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made: Any = make()
            getattr(made, "close", lambda: None)()
        for name, value in given.items():
            with pytest.warns(UserWarning, match=f"{name}={value!r} has no effect"):
                made = make(**{name: value})
            getattr(made, "close", lambda: None)()


def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    Server(port=PORT).close()
    (tmp_path / f"offbeat-tmrl-{os.getuid()}").chmod(0o755)
    with pytest.raises(OffbeatError, match="not a directory of this user alone"):
        Server(port=PORT)


# The way of a buffer


def test_buffers_that_no_checkpoint_holds_are_taken_again_once(server: Server) -> None:
    place, inbox, _ = interface(keep=True)
    inbox.begin()
    one = worker()

    def send() -> None:
        one.collect_train_episode()
        one.send_and_clear_buffer()

    send()
    assert observations(inbox.take())[0] == [1, 0]
    saved = inbox.received
    inbox.commit()
    for _ in range(2):
        send()
        inbox.take()
    send()  # not taken at all
    place.close()  # the trainer is killed

    place, again, _ = interface(keep=True)
    again.resume(saved)
    assert sorted({first for first, _ in observations(again.take())}) == [2, 3, 4]
    assert len(again.take()) == 0
    # Killed between a checkpoint and the removal of what it holds:
    saved = again.received
    place.close()
    _, third, _ = interface(keep=True)
    third.resume(saved)
    assert len(third.take()) == 0
    third.commit()
    assert not list((place.directory / "taken").iterdir())


def test_a_new_training_gets_no_samples_of_an_earlier_one_but_those_of_running_workers(server: Server) -> None:
    one = worker()
    one.run(nb_episodes=1, verbose=False)
    place, inbox, _ = interface(keep=True)
    inbox.begin()
    assert len(inbox.take()) == 6  # no trainer was there before
    one.run(nb_episodes=1, verbose=False)
    one.close()
    two = worker()  # in the place of the first
    two.run(nb_episodes=1, verbose=False)
    place.close()
    _, other, _ = interface(keep=True)
    other.begin()
    got = other.take()
    assert (len(got), other.received["next"]) == (6, {"0": [got.sources[0][0][1], 6]})


def test_a_worker_that_is_started_again_is_another_source(server: Server, tmp_path: Path) -> None:
    _, inbox, _ = interface()
    one = worker()
    one.run(nb_episodes=1, verbose=False)
    one.close()
    again = worker()
    again.run(nb_episodes=1, verbose=False)
    got = inbox.take()
    sources = [source for source, _ in got.sources]
    assert [source[0] for source in sources] == [0, 0]
    assert sources[0][1] < sources[1][1]
    assert inbox.received["lost"] == 0


def test_retrievals_are_limited_by_max_buf_len(server: Server) -> None:
    _, inbox, _ = interface(most=2)
    one = worker()
    one.run(nb_episodes=5, verbose=False)
    assert [len(inbox.take()) for _ in range(4)] == [12, 12, 6, 0]


@pytest.mark.parametrize(("given", "transitions"), [({"max_buf_len": 1}, 10), ({}, 20)])
def test_max_buf_len_of_a_trainer_limits_each_of_its_retrievals(server: Server, given: Any, transitions: int) -> None:
    worker().run(nb_episodes=4, verbose=False)
    training = functools.partial(TrainingOffline, **{**SMALL, "steps": 1}, epochs=1)
    ((row,),) = Trainer(training, server_port=PORT, **given).epochs()
    assert row["memory_len"] == transitions  # one retrieval waits for samples, one is before the first training step


@pytest.mark.parametrize("keep", [False, True])
def test_retrieved_buffers_are_kept_until_a_checkpoint_holds_them(server: Server, keep: bool) -> None:
    worker().run(nb_episodes=1, verbose=False)
    place = Place(PORT, PASSWORD, {})
    end = TrainerInterface(place, None, max_buf_len=10, keep=keep)
    assert len(end.retrieve_buffer()) == 6
    assert len(list((place.directory / "taken").iterdir())) == keep
    end.close()
