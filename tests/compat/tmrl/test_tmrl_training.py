"""TrainingOffline: what each documented parameter does, and what `run_epoch` returns."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from offbeat.compat.tmrl import training_offline
from offbeat.compat.tmrl.networking import Buffer
from offbeat.compat.tmrl.own_agent import SACAgent
from offbeat.compat.tmrl.own_memory import ReplayMemory
from offbeat.compat.tmrl.training_offline import TorchTrainingOffline, TrainingOffline
from offbeat.errors import UsageError
from tmrl_parts import SMALL, SPACES, ListMemory, RegressingAgent, ScriptedInterface, episode, with_sleep


def training(**changes: Any) -> TrainingOffline:
    return TrainingOffline(**{**SMALL, **changes})


def plenty() -> ScriptedInterface:
    """Enough samples at once."""
    return ScriptedInterface([episode(1, steps=50)])


# env_cls


def test_a_class_of_environments_is_made_once_for_its_spaces_and_closed() -> None:
    made = []

    class Dummy(gymnasium.Env[Any, Any]):
        observation_space, action_space = SPACES
        closed = False

        def __init__(self) -> None:
            made.append(self)

        def close(self) -> None:
            self.closed = True

    found = training(env_cls=Dummy)
    assert [each.closed for each in made] == [True]
    assert (found.agent.observation_space, found.agent.action_space) == SPACES


def test_a_pair_of_spaces_takes_the_place_of_an_environment() -> None:
    found = training(env_cls=SPACES)
    assert (found.agent.observation_space, found.agent.action_space) == SPACES


@pytest.mark.parametrize("wrong", [None, 3, (SPACES[0],), ("a", "b"), object])
def test_anything_else_as_env_cls_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(UsageError, match="env_cls"):
        training(env_cls=wrong)


# memory_cls, training_agent_cls, device


def test_memory_and_agent_are_constructed_as_in_tmrl() -> None:
    calls: dict[str, Any] = {}

    def memory_cls(**arguments: Any) -> Any:
        calls["memory"] = arguments
        return ListMemory(**arguments)

    def agent_cls(**arguments: Any) -> Any:
        calls["agent"] = arguments
        return RegressingAgent(**arguments)

    training(memory_cls=memory_cls, training_agent_cls=agent_cls, steps=7, device="cpu")
    assert calls["memory"] == {"nb_steps": 7, "device": "cpu"}
    assert calls["agent"] == {"observation_space": SPACES[0], "action_space": SPACES[1], "device": "cpu"}


def test_none_means_our_replay_and_our_sac() -> None:
    found = training(memory_cls=None, training_agent_cls=None)
    assert isinstance(found.memory, ReplayMemory)
    assert isinstance(found.agent, SACAgent)
    before = found.agent.training.learner.arrays()
    found.run_epoch(plenty())
    after = found.agent.training.learner.arrays()
    assert int(after["updates"]) == 3
    assert any(not np.array_equal(before[name], after[name]) for name in before if "actor" in name)


def test_our_replay_serves_an_own_agent_and_our_agent_an_own_memory() -> None:
    own_agent = training(memory_cls=None)
    own_agent.run_epoch(plenty())
    assert own_agent.agent.trained == 3
    own_memory = training(training_agent_cls=None)
    own_memory.run_epoch(plenty())
    assert own_memory.agent.training.learner.updates == 3


def test_a_batch_of_our_replay_is_the_documented_tuple() -> None:
    found = training(memory_cls=functools.partial(_replay, batch_size=64))
    found.run_epoch(ScriptedInterface([episode(1, steps=4)], more=episode))
    previous, action, reward, observation, terminated, truncated = found.agent.batches[0]
    assert [tuple(each.shape) for each in found.agent.batches[0]] == [(64, 2), (64, 1), (64,), (64, 2), (64,), (64,)]
    assert {each.dtype for each in found.agent.batches[0]} == {torch.float32}
    # Observation (episode, step) and action step / 10 of the scripted episodes say which rows belong together.
    assert torch.equal(previous[:, 0], observation[:, 0])
    assert torch.equal(previous[:, 1] + 1, observation[:, 1])
    assert torch.allclose(action[:, 0] * 10, observation[:, 1])
    assert torch.equal(reward, torch.ones(64))
    assert torch.equal(terminated, torch.zeros(64))
    assert torch.equal(truncated, (observation[:, 1] == 4).float())


def _replay(**arguments: Any) -> ReplayMemory:
    return ReplayMemory(**arguments, observation_space=SPACES[0], action_space=SPACES[1])


def test_our_replay_follows_the_episodes_of_each_worker_when_buffers_cut_them() -> None:
    first, second = episode(1), episode(2)
    parts = []
    for source, each in (("first", first), ("second", second)):
        for start, stop in ((0, 3), (3, 5)):
            part = Buffer()
            part.memory = each.memory[start:stop]
            part.assign(source)
            parts.append(part)
    mixed = Buffer()
    for part in (parts[0], parts[2], parts[1], parts[3]):  # the second worker's samples stand between the first's
        mixed += part
    memory = _replay(nb_steps=1, device="cpu", batch_size=256)
    memory.append(mixed)
    assert len(memory) == 8
    previous, _, _, observation, _, _ = next(iter(memory))
    assert torch.equal(previous[:, 0], observation[:, 0])
    assert torch.equal(previous[:, 1] + 1, observation[:, 1])


def test_terminated_ends_the_value_and_truncated_does_not() -> None:
    def rewarding(terminated: bool) -> Buffer:
        buffer = Buffer()
        for number in range(20):
            first = np.array([number / 20, 0], np.float32)
            buffer.append_sample((None, first, 0.0, False, False, {}))
            step = (np.zeros(1, np.float32), first, 1.0, terminated, not terminated, {})
            buffer.append_sample(step)
        return buffer

    values = {}
    for terminated in (True, False):
        agent = functools.partial(SACAgent, batch_size=32, hidden=(32,), learning_rate=3e-3, gamma=0.9)
        memory = functools.partial(_replay, batch_size=32)
        interface = ScriptedInterface([rewarding(terminated)])
        found = training(
            memory_cls=memory, training_agent_cls=agent, steps=500, max_training_steps_per_env_step=math.inf
        )
        found.run_epoch(interface)
        values[terminated] = found.run_epoch(interface)[0]["q"]
    assert abs(values[True] - 1.0) < 0.2  # every episode pays 1 and ends
    assert values[False] > 2.0  # it goes on behind the truncation


def test_the_device_reaches_memory_and_agent_and_is_automatic_in_the_torch_variant() -> None:
    assert (training(device="meta").memory.device, training(device="meta").agent.device) == ("meta", "meta")
    assert training().memory.device is None
    automatic = TorchTrainingOffline(**SMALL)
    assert automatic.device == automatic.memory.device == ("cuda" if torch.cuda.is_available() else "cpu")
    assert TorchTrainingOffline(**{**SMALL, "device": "meta"}).agent.device == "meta"
    with pytest.raises(UsageError, match="device='nowhere'"):
        training(memory_cls=None, training_agent_cls=None, device="nowhere")


# epochs, rounds, steps


def test_an_epoch_has_rounds_of_steps_and_one_row_for_each_round() -> None:
    found = training(rounds=3, steps=5)
    rows = found.run_epoch(plenty())
    assert len(rows) == 3
    assert (found.total_updates, found.agent.trained, found.epoch) == (15, 15, 1)
    assert [row["trained"] for row in rows] == [3.0, 8.0, 13.0]  # the mean of 1..5, 6..10, 11..15


def test_epochs_says_how_many_a_trainer_runs() -> None:
    assert training(epochs=4).epochs == 4
    assert training(epochs=math.inf).epochs == math.inf


def test_a_memory_that_never_ends_is_iterated_for_steps_batches() -> None:
    class Endless(ListMemory):
        def __iter__(self) -> Any:
            return (self.sample() for _ in itertools.count())

    found = training(memory_cls=Endless, steps=4)
    found.run_epoch(plenty())
    assert found.total_updates == 4


# update_model_interval, update_buffer_interval


def test_models_are_broadcast_every_update_model_interval_training_steps() -> None:
    interface = plenty()
    found = training(rounds=2, steps=5, update_model_interval=4)
    found.run_epoch(interface)
    assert interface.actors == [found.agent.actor] * 2  # after steps 4 and 8 of 10


def test_buffers_are_retrieved_every_update_buffer_interval_training_steps() -> None:
    interface = plenty()
    training(rounds=2, steps=5, update_buffer_interval=4).run_epoch(interface)
    assert interface.retrievals == 1 + 3  # the wait for the first samples; then before steps 0, 4 and 8


# max_training_steps_per_env_step, sleep_between_buffer_retrieval_attempts, start_training


def test_training_pauses_above_the_ratio_and_goes_on_with_new_samples() -> None:
    interface = ScriptedInterface([episode(1, steps=4)])
    waits: list[int] = []

    def more(number: int) -> Buffer:
        waits.append(found.total_updates)
        return episode(number, steps=4) if len(waits) % 3 == 0 else Buffer()

    interface.more = more
    found = training(steps=10, max_training_steps_per_env_step=0.5, update_buffer_interval=1_000)
    found.run_epoch(interface)
    # 4 environment steps allow 2 training steps and the one that goes above: then 2 more for each 4 steps.
    assert [count for count in waits if count] == [3, 3, 5, 5, 5, 7, 7, 7, 9, 9, 9]
    assert found.env_steps == 4 * (1 + len(waits) // 3)


def test_the_first_sample_of_an_episode_is_no_environment_step() -> None:
    interface = ScriptedInterface([episode(number, steps=1) for number in range(4)])
    found = training(steps=1, update_buffer_interval=1, start_training=4)
    found.run_epoch(interface)
    assert (found.total_samples, found.env_steps) == (8, 4)


def test_it_sleeps_between_attempts_while_it_waits_for_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(training_offline, "time", with_sleep(sleeps.append))
    interface = ScriptedInterface([Buffer(), Buffer(), episode(1, steps=20)])
    training(sleep_between_buffer_retrieval_attempts=0.7).run_epoch(interface)
    assert sleeps == [0.7, 0.7]


def test_training_starts_when_the_memory_holds_start_training_samples() -> None:
    lengths: list[int] = []

    class Watching(RegressingAgent):
        def train(self, batch: Any) -> Any:
            lengths.append(len(found.memory))
            return super().train(batch)

    interface = ScriptedInterface([episode(number) for number in range(9)])
    found = training(training_agent_cls=Watching, start_training=17, update_buffer_interval=1_000)
    found.run_epoch(interface)
    assert lengths[0] == 24  # 5 episodes of 4 to start, and one more from the retrieval before the first step
    assert found.total_updates == 3


def test_samples_that_the_memory_dropped_do_not_count_for_start_training() -> None:
    """tmrl's code counts what was ever received; its document says samples in the replay buffer."""
    retrievals: list[int] = []

    class Halving(ListMemory):
        def append_buffer(self, buffer: Any) -> None:
            retrievals.append(len(buffer))
            super().append_buffer(buffer)
            if len(retrievals) < 3:
                self.data = []

    training(memory_cls=Halving, start_training=4).run_epoch(ScriptedInterface([episode(n) for n in range(9)]))
    assert len(retrievals) == 4  # two of them dropped, one that starts the training, one before its first step


def test_a_start_above_the_memory_is_refused_because_training_would_never_start() -> None:
    with pytest.raises(UsageError, match=r"start_training=50 is more than .*memory_size=49"):
        training(memory_cls=functools.partial(ListMemory, memory_size=49), start_training=50)


# profiling, agent_scheduler


def test_profiling_prints_one_profile_at_the_end_of_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    found = training(profiling=True, rounds=2)
    found.run_epoch(plenty())
    printed = capsys.readouterr().out
    assert printed.count("profile of epoch 0") == 1
    assert "(train)" in printed
    training().run_epoch(plenty())
    assert "profile" not in capsys.readouterr().out


def test_the_scheduler_gets_agent_and_epoch_at_the_start_of_each_epoch() -> None:
    calls: list[Any] = []

    def schedule(agent: Any, epoch: int) -> None:
        calls.append((agent, epoch, agent.trained))

    found = training(agent_scheduler=schedule)
    for _ in range(3):
        found.run_epoch(ScriptedInterface([episode(1, steps=50)]))
    assert calls == [(found.agent, 0, 0), (found.agent, 1, 3), (found.agent, 2, 6)]


# Statistics


def test_a_row_has_the_memory_the_times_the_metrics_and_the_episodes() -> None:
    found = training()
    (row,) = found.run_epoch(plenty())
    assert list(row) == [
        *("memory_len", "round_time", "idle_time", "loss", "trained"),
        *("return_test", "return_train", "episode_length_test", "episode_length_train"),
        *("sampling_duration", "training_step_duration"),
    ]
    assert all(type(value) in (int, float) for value in row.values())
    assert row["memory_len"] == 50
    assert 0 < row["idle_time"] <= row["round_time"]


def test_returns_and_lengths_are_means_over_all_episodes_received() -> None:
    both = Buffer()
    for number, steps in ((1, 4), (2, 6), (6, 5)):
        both += episode(number, steps)
    both.stat_test_return, both.stat_test_steps = 10.0, 3
    both.stat_test_return, both.stat_test_steps = 20.0, 5
    (row,) = training().run_epoch(ScriptedInterface([both]))
    assert (row["return_train"], row["episode_length_train"]) == (3.0, 5.0)
    assert (row["return_test"], row["episode_length_test"]) == (15.0, 4.0)
    (without,) = training().run_epoch(ScriptedInterface([episode(1, steps=9)]))
    assert math.isnan(without["return_test"])


def test_idle_time_has_the_waits_within_a_round_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count()  # every reading of the clock is a second later
    monkeypatch.setattr(training_offline.time, "monotonic", lambda: float(next(now)))
    interface = ScriptedInterface([Buffer(), episode(1, steps=4)], more=lambda number: episode(number, steps=4))
    found = training(steps=20, update_buffer_interval=1_000)
    (row,) = found.run_epoch(interface)
    # One wait before the first training step, and three within the round, each for 4 more environment steps.
    assert row["idle_time"] == 1.0 + 3.0


def test_an_interface_of_the_users_own_may_give_an_own_kind_of_buffer() -> None:
    class Own:
        def __init__(self, memory: list[Any]) -> None:
            self.memory = memory
            self.stat_train_return, self.stat_train_steps = 7.0, 50
            self.stat_test_return, self.stat_test_steps = 0.0, 0

        def __len__(self) -> int:
            return len(self.memory)

    (row,) = training().run_epoch(ScriptedInterface([Own(episode(1, steps=50).memory)]))
    assert (row["return_train"], row["episode_length_train"]) == (7.0, 50.0)


def test_our_replay_as_a_class_or_with_sizes_gets_the_spaces() -> None:
    for memory_cls, size in ((ReplayMemory, 1_000_000), (functools.partial(ReplayMemory, memory_size=70), 70)):
        training = TrainingOffline(env_cls=SPACES, memory_cls=memory_cls)
        assert (training.memory.memory_size, training.memory.spec.action_size) == (size, SPACES[1].shape[0])
