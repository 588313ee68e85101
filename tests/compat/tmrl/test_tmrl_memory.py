"""Memory, collating and the generic environment: what each parameter does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from offbeat.compat.tmrl.envs import GenericGymEnv
from offbeat.compat.tmrl.own_memory import ReplayMemory
from offbeat.compat.tmrl.util import collate_torch
from offbeat.errors import UsageError
from tmrl_parts import SPACES, ListMemory, episode


def filled(**changes: Any) -> ListMemory:
    memory = ListMemory(**{"nb_steps": 3, "device": "cpu", **changes})
    memory.append(episode(1))
    return memory


def test_iterating_draws_nb_steps_batches_of_batch_size_on_the_device() -> None:
    batches = list(filled(batch_size=5))
    assert len(batches) == 3
    assert [tuple(part.shape) for part in batches[0]] == [(5, 2), (5, 1), (5,), (5, 2), (5,), (5,)]
    assert {part.device.type for part in next(iter(filled(device="meta")))} == {"meta"}


def test_flags_are_float32_and_an_empty_buffer_is_not_appended() -> None:
    memory = filled()
    assert {part.dtype for part in memory.sample()[4:]} == {torch.float32}
    assert (memory.stat_train_return, memory.stat_train_steps, memory.appended) == (1.0, 4, [5])
    empty = episode(2)
    empty.memory = []
    memory.append(empty)
    assert (memory.stat_train_return, memory.appended) == (1.0, [5])


def test_the_preprocessor_changes_each_drawn_transition() -> None:
    def doubled(previous: Any, action: Any, reward: Any, observation: Any, terminated: Any, truncated: Any) -> Any:
        return previous, action, reward * 2, observation, terminated, truncated

    assert torch.equal(filled(sample_preprocessor=doubled).sample()[2], torch.full((4,), 2.0))


def test_the_memory_keeps_memory_size_samples() -> None:
    memory = filled(memory_size=3)
    assert len(memory.data) == 3


def test_dataset_path_is_a_directory_without_a_pickled_dataset(tmp_path: Path) -> None:
    assert filled(dataset_path=str(tmp_path)).path == tmp_path
    (tmp_path / "data.pkl").write_bytes(b"\x80")
    with pytest.raises(UsageError, match=r"dataset_path=.* has a data.pkl, which is not read"):
        filled(dataset_path=str(tmp_path))


def test_nested_observations_are_collated_by_leaf() -> None:
    sample = {"image": np.zeros((2, 2), np.uint8), "pair": (1.0, torch.ones(3))}
    found = collate_torch([sample, sample, sample], "cpu")
    assert (found["image"].shape, found["image"].dtype) == ((3, 2, 2), torch.uint8)
    assert [part.shape for part in found["pair"]] == [(3,), (3, 3)]


def test_our_replay_keeps_memory_size_transitions_repeats_with_its_seed_and_draws_to_its_device() -> None:
    spaces = {"observation_space": SPACES[0], "action_space": SPACES[1]}
    first, second, third = (
        ReplayMemory(nb_steps=1, device=None, memory_size=6, batch_size=32, seed=seed, **spaces) for seed in (1, 1, 2)
    )
    for memory in (first, second, third):
        for number in range(3):
            memory.append(episode(number))
        assert len(memory) == 6
    drawn = [memory.sample()[0] for memory in (first, second, third)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    elsewhere = ReplayMemory(nb_steps=2, device="meta", batch_size=4, **spaces)
    elsewhere.append(episode(1))
    assert [{part.device.type for part in batch} for batch in elsewhere] == [{"meta"}] * 2
    with pytest.raises(UsageError, match="batch_size=0"):
        ReplayMemory(nb_steps=1, device=None, batch_size=0, **spaces)


def test_the_generic_environment_is_made_with_its_arguments() -> None:
    plain = GenericGymEnv(id="Pendulum-v1", gym_kwargs={"g": 3.0})
    assert plain.unwrapped.g == 3.0  # type: ignore[attr-defined]
    scaled = GenericGymEnv(id="Pendulum-v1", obs_scale=10.0)
    first, second = plain.reset(seed=1)[0], scaled.reset(seed=1)[0]
    assert np.allclose(second, first * 10)
    assert np.allclose(scaled.observation_space.high, plain.observation_space.high * 10)  # type: ignore[attr-defined]
    double = GenericGymEnv(id="InvertedPendulum-v5")
    single = GenericGymEnv(id="InvertedPendulum-v5", to_float32=True)
    assert (double.reset(seed=1)[0].dtype, single.reset(seed=1)[0].dtype) == (np.float64, np.float32)
    assert isinstance(single.observation_space, gymnasium.spaces.Box)
    assert single.observation_space.dtype == np.float32
