"""A run that was killed goes on from its checkpoint, and equals one that was never interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import unilab_rollouts as rollouts
from unilab_learner import Ending, Recorder, small, trained

from offbeat.compat.unilab import SACLearner, TD3Learner
from offbeat.compat.unilab.algos.torch.offpolicy.plan import Plan
from offbeat.compat.unilab.algos.torch.offpolicy.state import pack_state, unpack_state
from offbeat.compat.unilab.registry import register_env
from offbeat.errors import CheckpointError, UsageError


def learner_of(kind: str) -> Any:
    torch.manual_seed(0)
    sizes = {"actor_hidden_dim": 8, "critic_hidden_dim": 8}
    if kind == "own":
        return Recorder()
    return SACLearner(3, 1, **sizes) if kind == "sac" else TD3Learner(3, 1, num_envs=4, **sizes)


def train(kind: str, path: Path, fails_at: int = 0, **options: Any) -> Any:
    """Nine iterations of two updates each; the learner, unless the update `fails_at` raises."""
    learner = learner_of(kind)
    update, calls = learner.soft_update_target, []

    def soft_update_target() -> None:
        update()
        calls.append(1)
        if len(calls) == fails_at:
            raise RuntimeError("the power is gone")

    learner.soft_update_target = soft_update_target
    own = {} if kind == "own" else {"actor_hidden_dim": 8}
    runner = small(learner, algo_type="td3" if kind == "td3" else "sac", obs_normalization=True, **own, **options)
    runner.learn(9, 2, str(path), "none")
    return learner, len(calls)


@pytest.mark.parametrize("kind", ["own", "sac", "td3"])
def test_an_interrupted_run_goes_on_and_ends_as_if_nothing_had_happened(kind: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="power"):  # in iteration 6, after the checkpoint of iteration 4
        train(kind, tmp_path / "broken", fails_at=11)
    assert not (tmp_path / "broken" / "model_9.pt").exists()
    resumed, made = train(kind, tmp_path / "broken")
    whole, all_made = train(kind, tmp_path / "whole")
    assert (made, all_made) == (10, 18)
    np.testing.assert_array_equal(pack_state(resumed.get_state_dict()), pack_state(whole.get_state_dict()))
    assert resumed.update_count == 9


def test_a_run_keeps_its_seed_and_refuses_another(tmp_path: Path) -> None:
    first = small(seed=None)
    first.learn(2, 0, str(tmp_path), "none")
    small(seed=None).learn(4, 0, str(tmp_path), "none")
    with pytest.raises(UsageError, match="seed"):
        small(seed=(first.seed or 0) + 1).learn(6, 0, str(tmp_path), "none")
    with pytest.raises(UsageError, match=r"max_iterations=3 is a total, .* has made 4 iterations"):
        small(seed=None).learn(3, 0, str(tmp_path), "none")


def test_a_learner_loads_what_it_has_saved() -> None:
    torch.manual_seed(1)
    for kind in (SACLearner, TD3Learner):
        first, second = (kind(3, 1, actor_hidden_dim=8, critic_hidden_dim=8) for _ in range(2))
        batch = {
            "obs": torch.randn(6, 3),
            "next_obs": torch.randn(6, 3),
            "actions": torch.rand(6, 1),
            "rewards": torch.randn(6),
            "dones": torch.zeros(6),
        }
        first.update_critic(batch)
        first.update_actor(batch)
        first.soft_update_target()
        first.update_count = 3
        second.load_state_dict(unpack_state(pack_state(first.get_state_dict())))
        np.testing.assert_array_equal(pack_state(second.get_state_dict()), pack_state(first.get_state_dict()))


class Hidden(Recorder):
    """Has a part of its state under a name that is no attribute."""

    def get_state_dict(self) -> dict[str, Any]:
        return {"weights": self.actor.state_dict()}


def test_a_learner_that_could_not_be_resumed_is_told_at_once_and_refused_later(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Hidden has no load_state_dict, and no attribute for weights"):
        small(Hidden()).learn(2, 0, str(tmp_path), "none")
    with pytest.warns(UserWarning, match="weights"), pytest.raises(CheckpointError, match="load_state_dict"):
        small(Hidden()).learn(4, 0, str(tmp_path), "none")


class Unsaveable(Recorder):
    def get_state_dict(self) -> dict[str, Any]:
        return {"actor": self.actor.state_dict(), "optimizer": object()}


def test_a_learner_of_another_kind_or_size_is_refused_in_one_sentence(tmp_path: Path) -> None:
    narrow = {"actor_hidden_dim": 16}
    trained(tmp_path, 2, learner=SACLearner(3, 1, critic_hidden_dim=16, **narrow), **narrow)
    other = TD3Learner(3, 1, num_envs=4, critic_hidden_dim=16, **narrow)
    with pytest.raises(UsageError, match=r"algo_type='td3', but the run in .* was trained with 'sac'; use"):
        trained(tmp_path, 4, learner=other, algo_type="td3", **narrow)
    wide = SACLearner(3, 1, critic_hidden_dim=32, **narrow)
    before = {name: tensor.clone() for name, tensor in wide.get_state_dict()["learner"].items()}
    with pytest.raises(CheckpointError, match=r"does not fit this SACLearner: critic.*16\) there and .*32\) here"):
        trained(tmp_path, 4, learner=wide, **narrow)
    for name, tensor in wide.get_state_dict()["learner"].items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_envs": 2}, "num_envs=2 cannot change .*; use 4, or another log_dir than"),
        ({"sync_collection": False}, "sync_collection=False cannot change .*; use True"),
        ({"env_steps_per_sync": 2}, "env_steps_per_sync=2 cannot change .*; use 1"),
        ({"updates_per_step": 4}, "updates_per_step=4 cannot change .*; use 2"),
        ({"actor_hidden_dim": 8}, "actor_hidden_dim=8 cannot change .*; use 512"),
        ({"obs_normalization": True}, "obs_normalization=True cannot change .*; use False"),
        ({"seed": 1}, "seed=1 cannot change .*; use 0"),
        ({"batch_size": 32}, "batch_size=32 and learning_starts=0 begin learning at 32 transitions, but"),
        ({"learning_starts": 20}, "batch_size=8 and learning_starts=20 begin learning at 80"),
        ({"env_name": "Ending-v3"}, "env_name='Ending-v3' cannot change .*; use 'Pendulum-v1'"),
    ],
)
def test_a_run_is_resumed_with_its_own_parameters_and_others_are_refused_by_unilabs_names(
    changes: dict[str, Any], words: str, two_iterations: Path
) -> None:
    register_env("Ending-v3", Ending)
    with pytest.raises(UsageError, match=words):
        trained(two_iterations, 4, **changes)


@pytest.fixture(scope="module")
def two_iterations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("begun")
    trained(path, 2)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"replay_buffer_n": 32, "policy_frequency": 1},
        {"replay_buffer_n": 128, "env_cfg_override": {"g": 9.0}},
        {"sim_backend": "sync", "seed": None, "batch_size": 7},  # which also begins learning after two vector steps
    ],
)
def test_other_parameters_may_change(changes: dict[str, Any], tmp_path: Path) -> None:
    trained(tmp_path, 2)
    assert len(trained(tmp_path, 4, **changes).batches) == 4  # two iterations of two updates


def test_steps_per_sync_change_nothing_where_nothing_is_synchronised() -> None:
    once, twice = (Plan(4, steps, 2, 8, synchronous=False, replay_steps=64).settings(3) for steps in (1, 2))
    assert once == twice
    assert once != Plan(4, 1, 3, 8, synchronous=False, replay_steps=64).settings(3)


def test_what_would_need_pickle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds a object at state.learner.optimizer, .* without pickle"):
        small(Unsaveable()).learn(2, 0, str(tmp_path), "none")


def test_a_state_of_any_shape_is_packed_and_unpacked() -> None:
    state = {"a": torch.arange(3), 4: [1, 2.5, None, ("x", True)], "b": {"c": np.eye(2)}, "n": float("inf")}
    found = unpack_state(pack_state(state))
    assert found.keys() == state.keys()
    assert found[4] == state[4]
    assert found["n"] == float("inf")
    assert torch.equal(found["a"], torch.arange(3))
    np.testing.assert_array_equal(found["b"]["c"], np.eye(2))


# APPO over rollouts made outside.


@pytest.mark.parametrize("through", ["checkpoint", "state dict"])
def test_an_appo_learner_continues_exactly(through: str, tmp_path: Path) -> None:
    options = {"schedule": "adaptive", "tau": 0.4, "target_update_freq": 2, "normalise": True}
    first = rollouts.learner(**options)
    for seed in range(3):
        torch.manual_seed(seed)
        first.update(rollouts.rollout(seed))
    second = rollouts.learner(**options)
    torch.manual_seed(99)
    if through == "checkpoint":
        first.save(tmp_path)
        torch.manual_seed(5)
        assert second.load(tmp_path) == 3
    else:
        second.load_state_dict(unpack_state(pack_state(first.get_state_dict())))
    generator = torch.get_rng_state()
    for learner in (first, second):
        if through == "checkpoint":
            torch.manual_seed(99)
        else:
            torch.set_rng_state(generator)
        learner.update(rollouts.rollout(7))
    np.testing.assert_array_equal(pack_state(first.get_state_dict()), pack_state(second.get_state_dict()))


def test_loading_a_checkpoint_restores_the_order_of_minibatches(tmp_path: Path) -> None:
    first = rollouts.learner()
    torch.manual_seed(11)
    first.update(rollouts.rollout(1))
    first.save(tmp_path)
    wanted = torch.randperm(20)
    torch.manual_seed(0)
    rollouts.learner().load(tmp_path)
    assert torch.equal(torch.randperm(20), wanted)


def test_a_run_without_a_checkpoint_begins_again_and_no_file_of_the_user_is_removed(tmp_path: Path) -> None:
    begun = tmp_path / "run"
    (begun / "checkpoints").mkdir(parents=True)
    (begun / "config.yaml").write_text("seed: 1")
    train("own", tmp_path)  # it was killed before its first checkpoint
    assert (begun / "config.yaml").read_text() != "seed: 1"
    mine = tmp_path / "other" / "run" / "thesis.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("years of work")
    with pytest.raises(UsageError, match=r"holds 'thesis.txt'; use another log_dir"):
        train("own", tmp_path / "other")
    assert mine.read_text() == "years of work"
