"""A training is saved without pickle, and continues as if it had not been interrupted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offbeat.compat.tmrl import buffer as buffers
from offbeat.compat.tmrl import buffer_log, structures
from offbeat.compat.tmrl.networking import Buffer
from offbeat.compat.tmrl.training_offline import TrainingOffline
from offbeat.errors import CheckpointError, OffbeatError, UsageError
from offbeat.replay import chunkfile
from tmrl_parts import SPACES, ListMemory, RegressingAgent, ScriptedInterface, episode, seed_everything

SMALL: dict[str, Any] = {
    "env_cls": SPACES,
    "rounds": 2,
    "steps": 4,
    "sleep_between_buffer_retrieval_attempts": 0.0,
    "update_buffer_interval": 1,
}
OWN = {"memory_cls": ListMemory, "training_agent_cls": RegressingAgent}
OURS = {"memory_cls": None, "training_agent_cls": None}


def interface(start: int = 0) -> ScriptedInterface:
    """Gives episode n at retrieval n."""
    return ScriptedInterface([], more=lambda number: episode((start + number) % 7, steps=3 + number % 2))


class Remembering(ListMemory):
    """A memory with a state_dict."""

    def state_dict(self) -> dict[str, Any]:
        return {"samples": list(self.data)}

    def load_state_dict(self, state: Any) -> None:
        self.data = list(state["samples"])


def logical(training: TrainingOffline) -> dict[str, Any]:
    """What must be equal after a resume."""
    memory = getattr(training.memory, "data", None)
    if memory is None:
        (shard,) = training.memory.shards.values()
        memory = {name: np.array(column) for name, column in shard.read(shard.oldest, shard.committed).columns.items()}
    names = ("epoch", "total_updates", "total_samples", "total_resets")
    counters = {name: getattr(training, name) for name in names}
    agent = training.agent.state_dict()
    agent = {**agent, "notes": None} if "notes" in agent else agent
    return {"agent": agent, "memory": memory, "counters": counters}


def same(first: Any, second: Any) -> bool:
    (one, leaves), (two, others) = structures.flatten(first, "first"), structures.flatten(second, "second")
    return one == two and len(leaves) == len(others) and all(map(np.array_equal, leaves, others))


PARTS = {
    "own": OWN,
    "ours": OURS,
    "own memory with state_dict": {**OWN, "memory_cls": Remembering},
    "own agent": {**OWN, "memory_cls": None},
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_a_resumed_training_equals_one_that_was_not_interrupted(parts: dict[str, Any], tmp_path: Path) -> None:
    def run(epochs: int, start: int, training: TrainingOffline, path: Path) -> TrainingOffline:
        source = interface()
        source.retrievals = start
        for _ in range(epochs):
            training.run_epoch(source)
            training.save(path, {"retrievals": source.retrievals})
        return training

    seed_everything(0)
    whole = TrainingOffline(**SMALL, **parts)
    whole.save(tmp_path / "whole")
    run(4, 0, whole, tmp_path / "whole")

    seed_everything(0)
    begun = TrainingOffline(**SMALL, **parts)
    begun.save(tmp_path / "parts")
    run(2, 0, begun, tmp_path / "parts")
    begun.run_epoch(interface())  # an epoch that is lost with the process
    seed_everything(1)
    resumed = TrainingOffline(**SMALL, **parts)
    received = resumed.load(tmp_path / "parts")
    run(2, received["retrievals"], resumed, tmp_path / "parts")
    assert same(logical(resumed), logical(whole))


def test_the_first_checkpoint_can_be_resumed(tmp_path: Path) -> None:
    training = TrainingOffline(**SMALL, **OWN)
    training.save(tmp_path, {"note": 1})
    assert TrainingOffline(**SMALL, **OWN).load(tmp_path) == {"note": 1}


def test_a_memory_without_state_dict_is_saved_as_what_it_received_and_old_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer_log, "FILE_BYTES", 1_000)
    small = functools.partial(ListMemory, memory_size=12)
    training = TrainingOffline(**SMALL, memory_cls=small, training_agent_cls=RegressingAgent)
    training.save(tmp_path)
    source, names = interface(), []
    for _ in range(4):
        training.run_epoch(source)
        training.save(tmp_path)
        names.append(sorted(each.name for each in (tmp_path / "buffers").iterdir()))
    assert len(names[-1]) < 4
    assert names[0][0] not in names[-1]
    resumed = TrainingOffline(**SMALL, memory_cls=small, training_agent_cls=RegressingAgent)
    resumed.load(tmp_path)
    assert same(resumed.memory.data, training.memory.data)
    assert len(resumed.memory.data) == 12


def test_a_save_that_was_interrupted_is_ignored(tmp_path: Path) -> None:
    training = TrainingOffline(**SMALL, **OWN)
    training.save(tmp_path)
    source = interface()
    training.run_epoch(source)
    training.save(tmp_path)
    saved = logical(training)
    (file,) = (tmp_path / "buffers").iterdir()
    with file.open("ab") as end:
        end.write(b"half of a buffer")
    (tmp_path / "buffers" / "000001.chunks").write_bytes(b"a further one")
    resumed = TrainingOffline(**SMALL, **OWN)
    resumed.load(tmp_path)
    assert same(logical(resumed), saved)
    resumed.run_epoch(source)
    resumed.save(tmp_path)
    again = TrainingOffline(**SMALL, **OWN)
    again.load(tmp_path)
    assert same(logical(again), logical(resumed))


def test_damaged_buffers_are_refused(tmp_path: Path) -> None:
    training = TrainingOffline(**SMALL, **OWN)
    training.save(tmp_path)
    training.run_epoch(interface())
    training.save(tmp_path)
    (file,) = (tmp_path / "buffers").iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="does not match its checkpoint"):
        TrainingOffline(**SMALL, **OWN).load(tmp_path)
    file.unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        TrainingOffline(**SMALL, **OWN).load(tmp_path)


def test_an_agent_that_cannot_be_saved_is_refused_in_words_before_anything_is_written(tmp_path: Path) -> None:
    class Bare:
        def __init__(self, **arguments: Any) -> None: ...

        def train(self, batch: Any) -> dict[str, float]:
            return {}

        def get_actor(self) -> None: ...

    training = TrainingOffline(**SMALL, memory_cls=ListMemory, training_agent_cls=Bare)
    with pytest.raises(UsageError, match=r"training_agent_cls: Bare has no state_dict .* nothing is pickled"):
        training.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_does_not_fit_a_checkpoint_is_named(tmp_path: Path) -> None:
    started = TrainingOffline(**SMALL, **OWN)
    started.run_epoch(interface())
    with pytest.raises(UsageError, match="samples were received before the first save"):
        started.save(tmp_path / "late")
    (tmp_path / "pickle.tcpt").write_bytes(b"\x80\x04")
    with pytest.raises(UsageError, match="is a file, but a checkpoint is a directory"):
        started.save(tmp_path / "pickle.tcpt")
    TrainingOffline(**SMALL, **OWN).save(tmp_path / "own")
    with pytest.raises(CheckpointError, match="resume with the memory_cls of that time"):
        TrainingOffline(**SMALL, **{**OWN, "memory_cls": Remembering}).load(tmp_path / "own")

    class Locked(RegressingAgent):
        def state_dict(self) -> dict[str, Any]:
            return {"parts": [object()]}

    with pytest.raises(UsageError, match=r"the agent's state_dict\['parts'\]\[0\] is a object"):
        TrainingOffline(**SMALL, **{**OWN, "training_agent_cls": Locked}).save(tmp_path / "locked")


# Structures and buffers as bytes

NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text())
VALUES = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(VALUES)
def test_plain_values_survive_a_file_and_a_message(value: Any) -> None:
    assert structures.decode(structures.encode(value, "value"), "file") == value
    structure, arrays = structures.flatten(value, "value", columns=True)
    assert structures.rebuild(structure, arrays, "message") == value


def test_arrays_and_tensors_keep_dtype_and_shape() -> None:
    value = {
        0: np.arange(6, dtype=np.uint8).reshape(2, 3),
        "scalar": np.float32(0.1),
        "tensor": torch.randn(2, 1, requires_grad=True),
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "nested": (torch.tensor(True), [np.zeros((0, 4))], float("nan")),
    }
    found = structures.decode(structures.encode(value, "value"), "file")
    assert found[0].dtype == np.uint8
    assert np.array_equal(found[0], value[0])
    assert (type(found["scalar"]), found["scalar"]) == (np.float32, np.float32(0.1))
    assert torch.equal(found["tensor"], value["tensor"])
    assert found["half"].dtype == torch.bfloat16
    assert torch.equal(found["half"], value["half"])
    assert found["nested"][1][0].shape == (0, 4)
    assert np.isnan(found["nested"][2])
    found[0][0, 0] = 7  # it can be written to


@pytest.mark.parametrize("wrong", [object(), {(1, 2): 3}, np.array(["text"]), np.array([None]), {1, 2}, b"bytes", len])
def test_what_would_need_pickle_is_refused_by_its_place(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"the state\['part'\].* nothing is pickled"):
        structures.flatten({"part": wrong}, "the state")


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UsageError, match="contains itself"):
        structures.flatten(value, "the state")


def test_samples_of_any_form_arrive_as_they_were_sent() -> None:
    sent = Buffer()
    samples: list[Any] = [
        (None, {"image": np.zeros((2, 2), np.uint8), "speed": 0.5}, 0.0, False, False, {}),
        (np.array([1.0]), {"image": np.ones((2, 2), np.uint8), "speed": 0.25}, np.float64(1.0), False, False, {"n": 3}),
        (np.array([2.0]), {"image": np.ones((2, 2), np.uint8), "speed": 0.75}, np.float64(2.0), True, False, {"n": 4}),
        (None, {"image": np.ones((2, 2), np.uint8), "speed": 1.0}, 0.0, False, False, {"text": "first"}),
    ]
    for sample in samples:
        sent.append_sample(sample)
    sent.stat_train_return, sent.stat_train_steps = 3.0, 2
    sent.stat_train_return, sent.stat_train_steps = 5.0, 1
    data = buffers.encode(sent, worker=2, boot=3, sequence=40)
    ((found, chunk),) = buffers.decode(data + b"", "message")
    assert same(found.memory, samples)
    assert (chunk.worker, chunk.boot, chunk.sequence, len(chunk)) == (2, 3, 40, 4)
    assert (found.resets, found.sources) == (2, [((2, 3), 4)])
    assert (found.episodes["train_return"], found.stat_train_return, found.stat_train_steps) == ([3.0, 5.0], 5.0, 1)
    assert [len(each) for each, _ in buffers.decode(data + data, "two")] == [4, 4]


def test_an_info_that_cannot_be_sent_is_named() -> None:
    sent = Buffer()
    sent.append_sample((None, np.zeros(2), 0.0, False, False, {"engine": object()}))
    with pytest.raises(UsageError, match=r"sample 0 of the buffer\[5\]\['engine'\] is a object"):
        buffers.encode(sent)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data[len(data) // 2 :],
        lambda data: data[:60] + b"\0" + data[61:],
        lambda data: next(iter(_records(data))),
        lambda data: list(_records(data))[1],
    ],
)
def test_damaged_messages_are_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(OffbeatError, match="message"):
        list(buffers.decode(change(buffers.encode(episode(1))), "message"))


def _records(data: bytes) -> list[bytes]:
    """The records of a message, whose first holds the header."""
    starts = [index for index in range(len(data)) if data[index : index + 8] == chunkfile.MAGIC]
    return [data[start:stop] for start, stop in zip(starts, [*starts[1:], len(data)], strict=True)]


def test_a_buffer_keeps_its_newest_samples_and_their_sources() -> None:
    kept = Buffer(maxlen=6)
    first, second = episode(1), episode(2)
    first.assign("a")
    second.assign("b")
    kept += first
    kept += second
    assert kept.memory[0][1].tolist() == [1.0, 4.0]
    assert (len(kept), kept.sources, kept.resets) == (6, [("a", 1), ("b", 5)], 1)
    kept.clear()
    assert (len(kept), kept.stat_train_return, kept.episodes["train_return"]) == (0, 2.0, [])
