"""Memories: rows in and out, every parameter, and files."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from offbeat.compat.skrl import Memory, RandomMemory
from offbeat.errors import UsageError


def filled(rows: int, kind: Any = RandomMemory, **options: Any) -> Any:
    """A memory with rows 0, 1, 2, ..., added one by one for num_envs=1, else num_envs at a time."""
    memory = kind(**{"memory_size": 8, **options})
    memory.create_tensor(name="observations", size=2, dtype=torch.float32)
    memory.create_tensor(name="marks", size=1, dtype=torch.int64)
    each = memory.num_envs
    for start in range(0, rows, each):
        numbers = torch.arange(start, start + each).unsqueeze(1)
        memory.add_samples(observations=numbers.float().expand(each, 2), marks=numbers, unknown=numbers)
    return memory


def test_rows_are_in_the_order_of_time_and_environment() -> None:
    memory = filled(6, memory_size=4, num_envs=2)
    assert (memory.memory_index, memory.env_index, memory.filled, len(memory)) == (3, 0, False, 6)
    assert memory.tensors["marks"].shape == (4, 2, 1)
    assert memory.tensors["marks"][:3, :, 0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert memory.tensors_view["observations"][:6, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_the_oldest_rows_are_overwritten() -> None:
    memory = filled(11)
    assert (memory.memory_index, memory.filled, len(memory)) == (3, True, 8)
    assert memory.get_tensor_by_name("marks")[:, 0, 0].tolist() == [8, 9, 10, 3, 4, 5, 6, 7]
    memory.reset()
    assert (memory.memory_index, memory.filled, len(memory)) == (0, False, 0)


def test_fewer_rows_than_environments_move_the_second_index() -> None:
    memory = RandomMemory(memory_size=4, num_envs=3)
    memory.create_tensor(name="rewards", size=1, dtype=torch.float32)
    memory.add_samples(rewards=torch.ones(2, 1))
    assert (memory.memory_index, memory.env_index, len(memory)) == (0, 2, 2)
    memory.add_samples(rewards=torch.tensor([5.0]))
    assert (memory.memory_index, memory.env_index, len(memory)) == (1, 0, 3)
    assert memory.get_tensor_by_name("rewards")[0, :, 0].tolist() == [1.0, 1.0, 5.0]


def test_many_rows_at_once_with_one_environment_stay_aligned() -> None:
    memory = filled(0, memory_size=4)
    memory.add_samples(observations=torch.arange(12.0).reshape(6, 2), marks=torch.arange(6).unsqueeze(1))
    assert memory.get_tensor_by_name("marks")[:, 0, 0].tolist() == [4, 5, 2, 3]
    assert memory.get_tensor_by_name("observations")[:, 0, 0].tolist() == [8.0, 10.0, 4.0, 6.0]


def test_sampling_with_and_without_replacement() -> None:
    torch.manual_seed(0)
    without = filled(6)
    for _ in range(20):
        (marks, missing), *_ = without.sample(["marks", "nothing"], batch_size=5)
        assert missing is None
        assert len(set(marks.flatten().tolist())) == 5
    assert len(without.sample(["marks"], batch_size=50)[0][0]) == 6
    many = filled(6, replacement=True).sample(["marks"], batch_size=600)[0][0].flatten()
    assert many.bincount(minlength=6).min() > 50
    assert len(many) == 600


def test_mini_batches_and_sequences() -> None:
    memory = filled(12, memory_size=8, num_envs=2, replacement=True)
    batches = memory.sample(["marks"], batch_size=6, mini_batches=3)
    assert [len(batch[0]) for batch in batches] == [2, 2, 2]
    sequences = memory.sample(["marks"], batch_size=40, sequence_length=3)[0][0].reshape(40, 3)
    assert (sequences[:, 1:] - sequences[:, :-1] == 2).all()  # the next step of the same environment
    assert memory.get_sampling_indexes().shape == (120,)
    full = filled(20, memory_size=8, num_envs=2, replacement=True)  # the oldest row is in the middle of the ring
    sequences = full.sample(["marks"], batch_size=200, sequence_length=3)[0][0].reshape(200, 3)
    assert (sequences[:, 1:] - sequences[:, :-1] == 2).all()
    assert (sequences.min(), sequences.max()) == (4, 19)
    rows = memory.sample_by_index(["marks"], indexes=np.array([3, 1]))[0][0]
    assert rows.flatten().tolist() == [3, 1]


def test_sample_all_by_time_or_by_environment() -> None:
    memory = filled(8, memory_size=4, num_envs=2)
    assert memory.sample_all(["marks"])[0][0].flatten().tolist() == list(range(8))
    (marks, observations), *_ = memory.sample_all(["marks", "observations"])
    assert (marks.shape, observations.shape) == ((8, 1), (8, 2))  # in the order of the names
    halves = memory.sample_all(["marks"], mini_batches=2)
    assert [half[0].flatten().tolist() for half in halves] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    by_env = memory.sample_all(["marks"], sequence_length=4)[0][0].flatten().tolist()
    assert by_env == [0, 2, 4, 6, 1, 3, 5, 7]


def test_create_tensor_by_space_dtype_and_shape() -> None:
    memory = Memory(memory_size=3)
    assert memory.create_tensor(name="a", size=gym.spaces.Box(0, 1, (2, 3)), dtype=torch.float64)
    assert memory.create_tensor(name="b", size=[2, 2], keep_dimensions=True)
    assert memory.create_tensor(name="nothing", size=None) is False
    assert memory.create_tensor(name="a", size=6) is False
    assert memory.get_tensor_names() == ["a", "b"]
    assert memory.get_tensor_by_name("a").shape == (3, 1, 6)
    assert memory.get_tensor_by_name("a").dtype == torch.float64
    assert memory._tensor_b.shape == (3, 1, 2, 2)
    with pytest.raises(UsageError, match="exists"):
        memory.create_tensor(name="a", size=5)
    with pytest.raises(UsageError, match="keep_dimensions"):
        memory.create_tensor(name="c", size=4, keep_dimensions=True)
    with pytest.raises(KeyError):
        memory.get_tensor_by_name("missing")
    memory.set_tensor_by_name("a", torch.full((3, 1, 6), 2.0))
    assert float(memory.tensors["a"].sum()) == 36.0


@pytest.mark.parametrize("format", ["pt", "npz", "csv"])
def test_a_full_memory_is_exported_and_read_again(format: str, tmp_path: Path) -> None:
    memory = filled(8, export=True, export_format=format, export_directory=str(tmp_path))
    (path,) = (tmp_path / "memories").iterdir()
    assert path.suffix == f".{format}"
    if format == "csv":
        header, *lines = list(csv.reader(path.open()))
        assert header == ["marks.0", "observations.0", "observations.1"]
        assert [line[0] for line in lines] == [str(number) for number in range(8)]
        with pytest.raises(UsageError, match="neither pt nor npz"):
            memory.load(str(path))
        return
    other = filled(3)
    other.load(str(path))
    assert len(other) == 8
    assert other.get_tensor_by_name("marks")[:, 0, 0].tolist() == list(range(8))
    memory.save(str(tmp_path / "by_hand"), format=format)
    assert len(list((tmp_path / "by_hand" / "memories").iterdir())) == 1


def test_samples_are_on_the_memorys_device() -> None:
    assert filled(4, device="cpu").sample(["marks"], batch_size=2)[0][0].device == torch.device("cpu")


def test_a_memory_travels_to_another_process_with_its_rows() -> None:
    memory = filled(11)
    memory.share_memory()
    copied = pickle.loads(pickle.dumps(memory))
    assert (copied.memory_index, len(copied)) == (3, 8)
    assert torch.equal(copied.get_tensor_by_name("marks"), memory.get_tensor_by_name("marks"))


def test_a_base_memory_does_not_sample() -> None:
    with pytest.raises(NotImplementedError, match="has no method sample"):
        filled(4, kind=Memory).sample(["marks"], batch_size=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_size": 0}, "memory_size=0 is not a positive integer"),
        ({"memory_size": 4, "num_envs": 0}, "num_envs=0 is not a positive integer"),
        ({"memory_size": 4, "export_format": "txt"}, "export_format='txt' is unknown; use pt, npz, csv"),
        ({"memory_size": 10**15}, "memory_size=1000000000000000"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        filled(1, **options)


def test_bad_rows() -> None:
    memory = filled(0, memory_size=4, num_envs=2)
    with pytest.raises(UsageError, match="no tensor of this memory was given"):
        memory.add_samples(other=torch.zeros(2, 1))
    with pytest.raises(UsageError, match="observations has shape"):
        memory.add_samples(observations=torch.zeros(2, 3), marks=torch.zeros(2, 1))
    with pytest.raises(UsageError, match="3 rows do not fit num_envs=2"):
        memory.add_samples(observations=torch.zeros(3, 2))
    with pytest.raises(UsageError, match="too few for sequence_length=3"):
        memory.sample(["marks"], batch_size=1, sequence_length=3)
