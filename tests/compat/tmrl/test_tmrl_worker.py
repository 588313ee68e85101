"""RolloutWorker: what each parameter and each way of collecting does."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offbeat.compat.tmrl import models, rollout_worker, spool
from offbeat.compat.tmrl.actor import ActorModule
from offbeat.compat.tmrl.networking import Server
from offbeat.errors import OffbeatError, UsageError
from tmrl_parts import (
    SPACES,
    Actor,
    Counting,
    ListMemory,
    alone,
    episode,
    interface,
    model,
    observations,
    with_sleep,
    worker,
)

# RolloutWorker on its own


def test_an_episode_is_a_reset_and_its_steps() -> None:
    one = alone()
    one.collect_train_episode()
    assert observations(one.buffer) == [[1, step] for step in range(6)]
    assert [sample[0] is None for sample in one.buffer.memory] == [True] + [False] * 5
    assert [sample[2:5] for sample in one.buffer.memory[-2:]] == [(1.0, False, False), (1.0, True, False)]
    assert (one.buffer.stat_train_return, one.buffer.stat_train_steps, one.buffer.resets) == (5.0, 5, 1)


def test_max_samples_per_episode_truncates() -> None:
    one = alone(max_samples_per_episode=3)
    one.collect_train_episode()
    assert one.buffer.memory[-1][3:5] == (False, True)
    assert one.buffer.stat_train_steps == 3
    one.collect_train_episode(max_samples=2)
    assert one.buffer.stat_train_steps == 2
    with pytest.raises(UsageError, match="max_samples_per_episode=0"):
        alone(max_samples_per_episode=0)


def test_test_episodes_act_without_exploration_and_leave_no_samples() -> None:
    one = alone()
    one.run_episodes(nb_episodes=2)
    assert (len(one.buffer), one.buffer.episodes["test_return"], one.buffer.stat_test_steps) == (0, [5.0, 5.0], 5)
    assert [float(each[0]) for each in one.env.actions] == [-1.0] * 10
    one.run_episodes(max_samples_per_episode=2, nb_episodes=1, train=True)
    assert [float(each[0]) for each in one.env.actions[10:]] == [0.0, 0.0]
    assert (one.buffer.episodes["train_steps"], len(one.buffer)) == ([2.0], 0)


def test_samples_are_compressed_and_observations_preprocessed() -> None:
    def compress(act: Any, obs: Any, rew: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return act, obs[1:], rew, terminated, truncated, info

    one = alone(sample_compressor=compress, obs_preprocessor=lambda obs: obs * 10)
    one.collect_train_episode()
    assert observations(one.buffer) == [[10.0 * step] for step in range(6)]


def test_the_device_reaches_the_actor() -> None:
    assert alone(device="meta").actor.devices == ["meta"]
    torch_actor = alone(actor_module_cls=Actor, device="cpu")
    torch_actor.collect_train_episode()
    assert torch_actor.buffer.memory[1][0].shape == (1,)


def test_the_first_model_is_loaded_from_model_path(tmp_path: Path) -> None:
    (tmp_path / "first.tmod").write_bytes(model(3.0, tmp_path))
    assert alone(model_path=str(tmp_path / "first.tmod")).actor.value == 3.0
    assert alone(model_path=str(tmp_path / "none.tmod")).actor.value == 0.0


def test_a_real_time_environment_sends_its_default_action_with_a_reset() -> None:
    class RealTime(Counting):
        default_action = np.zeros(1, np.float32)

    one = alone(env_cls=RealTime)
    one.collect_train_episode()
    assert one.buffer.memory[0][0] is RealTime.default_action
    assert one.buffer.resets == 1


def test_a_standalone_worker_has_no_server() -> None:
    for call in (alone().send_and_clear_buffer, alone().update_actor_weights):
        with pytest.raises(UsageError, match="standalone=True: this worker has no server"):
            call()


def test_a_benchmark_asks_the_environment(caplog: pytest.LogCaptureFixture) -> None:
    class Measured(Counting):
        def benchmarks(self) -> list[float]:
            return [float(action[0]) for action in self.actions]

    with caplog.at_level("INFO"):
        assert alone(env_cls=Measured).run_env_benchmark(3, verbose=False) == [0.0, 0.0, 0.0]
        assert caplog.messages == []
        assert alone(env_cls=Measured).run_env_benchmark(2, test=True) == [-1.0, -1.0]
        assert caplog.messages == ["benchmark: [-1.0, -1.0]"]
    with pytest.raises(UsageError, match="nb_steps=inf"):
        alone(env_cls=Measured).run_env_benchmark(math.inf)  # type: ignore[arg-type]


def test_crc_debug_finds_a_memory_that_changes_samples() -> None:
    class Wrong(ListMemory):
        def get_transition(self, item: int) -> Any:
            previous, action, reward, obs, *rest = super().get_transition(item)
            return (previous, action, reward, obs + 1, *rest)

    class Exact(ListMemory):
        def get_transition(self, item: int) -> Any:
            start = self._starts()[item]
            action, obs, reward, terminated, truncated, info = self.data[start + 1]
            return self.data[start][1], action, reward, obs, terminated, truncated, info

    one = alone(crc_debug=True)
    one.collect_train_episode()
    for memory, right in ((Exact(1, "cpu", crc_debug=True), True), (Wrong(1, "cpu", crc_debug=True), False)):
        memory.append(one.buffer)
        if right:
            assert len(list(memory)) == 1
        else:
            with pytest.raises(OffbeatError, match=r"the (observation|reward) of step \[?\(?\d+, \d+"):
                memory.sample()
    plain = Exact(1, "cpu", crc_debug=True)
    plain.append(episode(1))
    with pytest.raises(UsageError, match="crc_debug=True of the memory needs"):
        plain.sample()


def test_an_actor_that_cannot_be_saved_is_refused_in_words(tmp_path: Path) -> None:
    class Bare(ActorModule):
        def act(self, obs: Any, test: bool = False) -> Any:
            return np.zeros(1)

    bare = Bare(*SPACES)
    for call in (lambda: bare.save(tmp_path / "x"), lambda: bare.load(tmp_path / "x", "cpu")):
        with pytest.raises(UsageError, match=r"the actor Bare has no .*nothing is pickled here"):
            call()
    with pytest.raises(UsageError, match="actor_module_cls: dict has no act"):
        alone(actor_module_cls=dict)


def test_a_torch_actor_survives_its_file(tmp_path: Path) -> None:
    first, second = Actor(*SPACES), Actor(*SPACES)
    first.save(tmp_path / "actor")
    assert b"pickle" not in (tmp_path / "actor").read_bytes()
    loaded = second.load(tmp_path / "actor", "cpu")
    obs = np.array([0.3, -0.2], np.float32)
    assert np.array_equal(loaded.act_(obs, test=True), first.act_(obs, test=True))


# RolloutWorker with a server


def test_samples_arrive_once_and_models_come_back(server: Server, tmp_path: Path) -> None:
    _, inbox, publisher = interface()
    one, two = worker(), worker(model_path=str(tmp_path / "worker.tmod"))
    for each in (one, two):
        each.collect_train_episode()
        each.send_and_clear_buffer()
        assert len(each.buffer) == 0
    got = inbox.take()
    assert (len(got), got.resets, got.episodes["train_return"]) == (12, 2, [5.0, 5.0])
    assert [count for _, count in got.sources] == [6, 6]
    assert len(inbox.take()) == 0
    assert one.update_actor_weights(verbose=False) == 0
    for value in (1.0, 2.0, 3.0):
        publisher.publish(model(value, tmp_path))
    assert (one.update_actor_weights(verbose=False), one.actor.value) == (3, 3.0)
    assert (two.ignore_actor_weights(), two.actor.value) == (3, 0.0)
    publisher.publish(model(4.0, tmp_path))
    assert two.update_actor_weights(blocking=True) == 1
    assert (tmp_path / "worker.tmod").read_bytes() == model(4.0, tmp_path)


def test_a_worker_that_connects_later_gets_the_newest_model_as_one(server: Server, tmp_path: Path) -> None:
    _, _, publisher = interface()
    for value in (1.0, 2.0, 3.0):
        publisher.publish(model(value, tmp_path))
    late = worker()
    assert (late.update_actor_weights(), late.actor.value) == (1, 3.0)
    assert late.update_actor_weights() == 0


def test_a_model_that_needs_more_room_and_a_trainer_that_starts_again_are_received(server: Server) -> None:
    place, _, publisher = interface()
    reader = models.ModelReader(place.directory / "models")
    sizes = (10, 15, 1_000, 20)
    for size in sizes:
        publisher.publish(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
        new, data = reader.receive()
        assert (new, len(data)) == (1, size)
    again = models.ModelPublisher(place.directory / "models")
    assert reader.receive() == (0, b"")
    again.publish(b"after the restart")
    again.publish(b"and once more")
    assert reader.receive() == (2, b"and once more")
    assert len(list((place.directory / "models").iterdir())) == 2  # the newest memory, and the pointer to it


def test_every_nth_model_is_kept_in_the_history(server: Server, tmp_path: Path) -> None:
    _, _, publisher = interface()
    one = worker(model_history=2, model_path_history=str(tmp_path / "history" / "kept_"))
    for value in range(5):
        publisher.publish(model(float(value), tmp_path))
        one.update_actor_weights(verbose=False)
    kept = sorted((tmp_path / "history").iterdir())
    assert sorted(path.name.rpartition("_")[2] for path in kept) == ["2.tmod", "4.tmod"]
    assert {path.read_bytes() for path in kept} == {model(1.0, tmp_path), model(3.0, tmp_path)}
    with pytest.raises(UsageError, match="model_history=2 needs model_path_history"):
        worker(model_history=2)


def test_sending_waits_while_max_buf_len_buffers_are_not_taken(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    _, inbox, _ = interface()
    one = worker(max_buf_len=2)
    pauses: list[int] = []

    def pause(seconds: float) -> None:
        pauses.append(len(inbox.take()))

    monkeypatch.setattr(spool, "time", with_sleep(pause))
    for number in range(3):
        assert len(pauses) == 0, number
        one.collect_train_episode()
        one.send_and_clear_buffer()
    assert pauses == [12]  # the third waited until the first two were taken


def test_run_sends_every_episode_and_takes_over_models(server: Server, tmp_path: Path) -> None:
    _, inbox, publisher = interface()
    publisher.publish(model(2.0, tmp_path))
    one = worker()
    one.run(nb_episodes=3, verbose=False)
    got = inbox.take()
    assert observations(got) == [[number, step] for number in (1, 2, 3) for step in range(6)]
    actions = [float(sample[0][0]) for sample in got.memory if sample[0] is not None]
    assert actions == [0.0] * 5 + [2.0] * 10  # the model arrives between two episodes
    assert got.episodes["test_return"] == []


def test_run_has_test_episodes_between_training_episodes(server: Server) -> None:
    _, inbox, _ = interface()
    worker().run(test_episode_interval=2, nb_episodes=4, verbose=False)
    got = inbox.take()
    assert (len(got.episodes["train_return"]), len(got.episodes["test_return"])) == (4, 2)


def test_an_expert_keeps_its_model_and_runs_no_tests(server: Server, tmp_path: Path) -> None:
    _, inbox, publisher = interface()
    publisher.publish(model(2.0, tmp_path))
    one = worker()
    one.run(test_episode_interval=1, nb_episodes=2, verbose=False, expert=True)
    assert (one.actor.value, inbox.take().episodes["test_return"]) == (0.0, [])


def test_verbose_says_whether_it_logs(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, _, publisher = interface()
    publisher.publish(model(1.0, tmp_path))
    with caplog.at_level("INFO"):
        worker().run(nb_episodes=1, verbose=False)
        assert caplog.messages == []
        worker().run(nb_episodes=1, verbose=True)
        assert "training episode 0" in caplog.messages
        for verbose in (False, True):
            logged = ["the model was updated"] * verbose
            caplog.clear()
            assert worker().update_actor_weights(verbose=verbose) == 1
            assert caplog.messages == logged
            caplog.clear()
            worker().run_synchronous(nb_steps=1, verbose=verbose)
            assert caplog.messages == logged


class ModelsOnDemand:
    """Publishes a model whenever a worker waits for one, and records how many samples had arrived by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        _, self.inbox, publisher = interface()
        self.received: list[int] = []
        total = 0

        def pause(seconds: float) -> None:
            nonlocal total
            total += len(self.inbox.take())
            self.received.append(total)
            publisher.publish(model(float(len(self.received)), tmp_path))

        monkeypatch.setattr(rollout_worker, "time", with_sleep(pause))


def test_run_synchronous_waits_for_models_and_has_sent_everything_before(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waits = ModelsOnDemand(monkeypatch, tmp_path)
    one = worker(env_cls=functools.partial(Counting, 1_000))
    one.run_synchronous(nb_steps=20, initial_steps=3, max_steps_per_update=5, end_episodes=False)
    # The first model allows 5 steps: 3 initial ones, and 5 after them; then each model 5 more. 1 sample is the reset.
    assert waits.received == [4 + 5, 4 + 10, 4 + 15]
    assert len(waits.inbox.take()) == 5
    assert len(one.env.actions) == 23


def test_run_synchronous_waits_after_the_initial_steps_if_they_were_too_many(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waits = ModelsOnDemand(monkeypatch, tmp_path)
    one = worker(env_cls=functools.partial(Counting, 1_000))
    one.run_synchronous(nb_steps=1, initial_steps=9, max_steps_per_update=5, end_episodes=False)
    assert waits.received == [10]  # (9 + 1) / 2 models is not above 5
    one.run_synchronous(nb_steps=1, initial_steps=14, max_steps_per_update=5, end_episodes=False)
    assert len(waits.received) == 3


def test_run_synchronous_ends_episodes_before_it_waits(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waits = ModelsOnDemand(monkeypatch, tmp_path)
    one = worker()  # episodes of 5 steps
    one.run_synchronous(test_episode_interval=2, nb_steps=12, initial_steps=1, max_steps_per_update=8)
    # An initial episode, and three more; before the third of those, 11 steps are above 8 for one model.
    assert waits.received == [6 + 12]
    last = waits.inbox.take()
    assert (len(last), len(one.env.actions)) == (6, (1 + 3) * 5 + 2 * 5)
    with pytest.raises(UsageError, match="test_episode_interval needs end_episodes=True"):
        one.run_synchronous(test_episode_interval=1, end_episodes=False)
    with pytest.raises(UsageError, match="max_steps_per_update=0"):
        one.run_synchronous(max_steps_per_update=0)


def test_run_synchronous_records_returns_of_whole_episodes_only(server: Server) -> None:
    _, inbox, _ = interface()
    one = worker(max_samples_per_episode=4)
    one.run_synchronous(nb_steps=6, initial_steps=3, end_episodes=False)
    got = inbox.take()
    assert (got.episodes["train_return"], got.episodes["train_steps"]) == ([4.0, 4.0], [4.0, 4.0])
    assert len(got) == 9 + 3


def test_a_worker_that_waits_long_for_a_model_says_so_once(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, publisher = interface()
    one, pauses = worker(), []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            publisher.publish(model(1.0, tmp_path))

    monkeypatch.setattr(rollout_worker, "SECONDS_TO_WARNING", -1.0)
    monkeypatch.setattr(rollout_worker, "time", with_sleep(pause))
    assert one.update_actor_weights(blocking=True) == 1
    assert [message for message in caplog.messages if "start_training" in message] == caplog.messages
    assert len(caplog.messages) == 1
