"""Trainer: its epochs, its checkpoints and what each parameter does."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tmrl_parts as parts
from offbeat.compat.tmrl import rendezvous
from offbeat.compat.tmrl.envs import GenericGymEnv
from offbeat.compat.tmrl.networking import RolloutWorker, Server, Trainer
from offbeat.compat.tmrl.own_agent import SACActor
from offbeat.compat.tmrl.training_offline import TrainingOffline
from offbeat.errors import RunBusyError, UsageError
from patience import wait_until
from tmrl_parts import (
    PORT,
    SPACES,
    Actor,
    Counting,
    RegressingAgent,
    worker,
)

# Trainer

SMALL = {**parts.SMALL, "epochs": 2, "steps": 4, "update_model_interval": 2, "update_buffer_interval": 1}


def trainer(changes: dict[str, Any] | None = None, **given: Any) -> Trainer:
    return Trainer(functools.partial(TrainingOffline, **{**SMALL, **(changes or {})}), server_port=PORT, **given)


@pytest.fixture
def samples(server: Server) -> RolloutWorker:
    """A worker that has sent enough for four epochs."""
    one = worker()
    one.run(nb_episodes=4, verbose=False, expert=True)
    return one


def test_a_trainer_runs_its_epochs_and_broadcasts(samples: RolloutWorker, tmp_path: Path) -> None:
    made: list[Any] = []

    def training_cls() -> Any:
        made.append(TrainingOffline(**SMALL))
        return made[-1]

    Trainer(training_cls, server_port=PORT, model_path=str(tmp_path / "deep" / "actor.tmod")).run()
    (training,) = made
    assert (training.epoch, training.total_updates, training.total_samples) == (2, 8, 24)
    one = worker(actor_module_cls=Actor)
    assert one.update_actor_weights() == 1
    for ours, theirs in zip(one.actor.parameters(), training.agent.actor.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    saved = Actor(*SPACES).load(tmp_path / "deep" / "actor.tmod", "cpu")
    assert torch.equal(saved.layer.weight, training.agent.actor.layer.weight)


def test_a_trainer_continues_from_its_checkpoint(samples: RolloutWorker, tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    for _, _ in zip(range(1), trainer(checkpoint_path=path).epochs(), strict=False):
        pass  # stopped after the first epoch
    rows = list(trainer({"epochs": 3}, checkpoint_path=path).epochs())
    assert [row[0]["trained"] for row in rows] == [6.5, 10.5]  # the mean of 5..8, and of 9..12
    assert list(trainer({"epochs": 3}, checkpoint_path=path).epochs()) == []


def test_without_a_checkpoint_path_a_trainer_starts_anew(samples: RolloutWorker) -> None:
    assert len(list(trainer({"epochs": 1}).epochs())) == 1
    other = trainer({"epochs": 1}).epochs()
    place = rendezvous.directory_of(PORT)
    send_while_waiting = threading.Thread(target=lambda: _send_when_begun(samples, place))
    send_while_waiting.start()
    (row,) = next(other)
    send_while_waiting.join(300)
    assert row["trained"] == 2.5  # the mean of 1..4: nothing was learned before


def _send_when_begun(sender: RolloutWorker, place: Path) -> None:
    """Sends as soon as the new trainer waits: what was sent before is of an earlier training."""
    sent = place / "buffers" / "000000-000000000000-000000000000000.chunks"
    sent.write_bytes(b"of an earlier training")
    wait_until(lambda: not sent.exists(), "the trainer did not begin")
    sender.run(nb_episodes=4, verbose=False, expert=True)


def test_two_trainers_use_neither_one_server_nor_one_checkpoint(samples: RolloutWorker, tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    running = trainer(checkpoint_path=path).epochs()
    next(running)
    with pytest.raises(UsageError, match=f"server_port={PORT} has a Trainer already"):
        trainer().run()
    other = Server(port=PORT + 1)
    with pytest.raises(RunBusyError, match="is running in process"):
        Trainer(functools.partial(TrainingOffline, **SMALL), server_port=PORT + 1, checkpoint_path=path).run()
    running.close()
    other.close()
    trainer(checkpoint_path=path).run()


def test_own_functions_save_and_load_instead(samples: RolloutWorker, tmp_path: Path) -> None:
    path = tmp_path / "own.pt"
    calls: list[str] = []

    class Bare(RegressingAgent):
        """An agent that only these functions can save."""

        state_dict = load_state_dict = None  # type: ignore[assignment]

    def dump(training: Any, where: str) -> None:
        calls.append("dump")
        state = {"weight": training.agent.actor.state_dict(), "epoch": training.epoch}
        torch.save(state, where)

    def load(where: str) -> Any:
        calls.append("load")
        state = torch.load(where, weights_only=True)
        training = TrainingOffline(**{**SMALL, "training_agent_cls": Bare, "epochs": 3})
        training.agent.actor.load_state_dict(state["weight"])
        training.epoch = state["epoch"]
        return training

    given = {"checkpoint_path": str(path), "dump_run_instance_fn": dump, "load_run_instance_fn": load}
    trainer({"training_agent_cls": Bare}, **given).run()
    assert calls == ["dump"] * 3  # before the first epoch, and after each
    samples.run(nb_episodes=4, verbose=False, expert=True)
    trainer({"training_agent_cls": Bare}, **given).run()
    assert calls[3:] == ["load", "dump"]
    received = json.loads((tmp_path / "own.pt.received.json").read_text())
    assert [position for _, position in received["next"].values()] == [48]
    with pytest.raises(UsageError, match="belong together"):
        trainer(dump_run_instance_fn=dump)


def test_an_agent_that_cannot_be_saved_is_refused_before_the_first_sample(
    samples: RolloutWorker, tmp_path: Path
) -> None:
    class Bare(RegressingAgent):
        state_dict = None  # type: ignore[assignment]

    with pytest.raises(UsageError, match=r"Bare has no state_dict .* dump_run_instance_fn"):
        trainer({"training_agent_cls": Bare}, checkpoint_path=str(tmp_path / "c")).run()
    trainer({"training_agent_cls": Bare}, checkpoint_path=None).run()  # without checkpoints it may be anything


def test_the_updater_gets_what_was_loaded_and_gives_what_is_trained(samples: RolloutWorker, tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    calls: list[Any] = []

    def update(training: Any, training_cls: Any) -> Any:
        calls.append((training.epoch, training_cls))
        training.epochs = 3
        return training

    made = trainer({"epochs": 1}, checkpoint_path=path, updater_fn=update)
    made.run()
    assert calls == []
    assert len(list(made.epochs())) == 2
    assert calls == [(1, made.training_cls)]


def test_wrong_arguments_of_a_trainer_are_named(tmp_path: Path) -> None:
    (tmp_path / "pickle.tcpt").write_bytes(b"\x80")

    class Unsaved:
        def run_epoch(self, interface: Any) -> None: ...

    Trainer(Unsaved)  # without checkpoints it needs no more
    for given, message in (
        ({"training_cls": None}, "training_cls=None"),
        ({"training_cls": 3}, "training_cls=3 is not a class"),
        ({"training_cls": int}, "training_cls: int has no run_epoch"),
        ({"training_cls": Unsaved, "checkpoint_path": str(tmp_path / "c")}, "training_cls: Unsaved has no save, load"),
        ({"training_cls": TrainingOffline, "max_buf_len": 0}, "max_buf_len=0"),
        ({"training_cls": TrainingOffline, "checkpoint_path": str(tmp_path / "pickle.tcpt")}, "is a file"),
    ):
        with pytest.raises(UsageError, match=message):
            Trainer(**given)


def test_statistics_go_to_wandb(samples: RolloutWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []

    class Run:
        def __enter__(self) -> Run:
            return self

        def __exit__(self, *_: Any) -> None: ...

        log = staticmethod(logged.append)

    starts: list[Any] = []
    fake = types.SimpleNamespace(init=lambda **given: starts.append(given) or Run())
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setenv("WANDB_API_KEY", "before")
    trainer().run_with_wandb(entity="us", project="it", run_id="first", key="secret")
    assert [row["trained"] for row in logged] == [2.5, 6.5]
    assert {name: starts[0][name] for name in ("entity", "project", "id")} == {
        "entity": "us",
        "project": "it",
        "id": "first",
    }
    assert os.environ["WANDB_API_KEY"] == "secret"


def test_a_worker_in_a_thread_and_our_sac_train_in_one_process(server: Server, tmp_path: Path) -> None:
    """As in tmrl's tutorial; both classes are None."""
    one = worker(actor_module_cls=None, env_cls=functools.partial(Counting, 20), model_path=str(tmp_path / "w.tmod"))
    assert isinstance(one.actor, SACActor)
    ended = threading.Event()

    def collect() -> None:
        while not ended.is_set():
            one.run(nb_episodes=1, test_episode_interval=1, verbose=False)

    thread = threading.Thread(target=collect)
    thread.start()
    ours = {"memory_cls": None, "training_agent_cls": None, "steps": 20, "start_training": 20}
    try:
        rows = list(trainer({**ours, "sleep_between_buffer_retrieval_attempts": 0.01}).epochs())
    finally:
        ended.set()
        thread.join(300)
    assert len(rows) == 2
    assert all(math.isfinite(row[0][name]) for row in rows for name in ("critic_loss", "actor_loss", "memory_len"))
    assert rows[0][0]["return_test"] == rows[0][0]["return_train"] == 20.0
    one.update_actor_weights()
    reloaded = SACActor(*SPACES).load(one.model_path, "cpu")
    with pytest.warns(UserWarning, match="device='cuda' has no effect on SACActor"):
        SACActor(*SPACES).load(one.model_path, "cuda")
    obs = np.array([0.5, 0.5], np.float32)
    assert np.array_equal(reloaded.act(obs, test=True), one.actor.act(obs, test=True))


def test_the_actor_of_our_sac_acts_at_random_until_it_has_weights() -> None:
    actor = SACActor(*SPACES)
    actions = [float(actor.act(np.zeros(2, np.float32))[0]) for _ in range(50)]
    assert len(set(actions)) == 50
    assert all(-2.0 <= action <= 2.0 for action in actions)
    assert max(actions) > 0.5
    assert min(actions) < -0.5


@pytest.mark.slow
def test_our_parts_learn_to_swing_up_a_pendulum(server: Server) -> None:
    """A random policy's mean return is about -1,200."""
    pendulum = functools.partial(GenericGymEnv, id="Pendulum-v1")
    one = worker(env_cls=pendulum, actor_module_cls=None)
    steps = {"initial_steps": 400, "nb_steps": 8_000, "max_steps_per_update": 60}
    thread = threading.Thread(target=one.run_synchronous, kwargs=steps)
    thread.start()
    ours = {"memory_cls": None, "training_agent_cls": None, "env_cls": pendulum, "epochs": 1, "start_training": 400}
    waits = {"sleep_between_buffer_retrieval_attempts": 0.01, "update_model_interval": 50, "steps": 7_000}
    trainer({**ours, **waits}).run()
    thread.join(300)
    one.update_actor_weights()
    returns = []
    for _ in range(20):
        one.run_episode()
        returns.append(one.buffer.stat_test_return)
    assert np.mean(returns) >= -250
