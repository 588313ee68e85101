"""An exported policy acts without a learner, and without torch unless it is a user's module."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import offbeat
from offbeat.deploy import export_policy, load_policy
from offbeat.errors import CheckpointError, UsageError
from offbeat.types import EnvSpec, Layout, Leaf
from specs import vector_spec

SMALL = {"hidden": (16, 16), "batch_size": 8, "random_steps": 0}


def _export(agent: offbeat.Agent, directory: Path) -> Path:
    export_policy(directory, agent.publication(), agent.training.policy_description(), agent.spec, {"env": "test"})
    return directory


def _agent(spec: EnvSpec, **settings: object) -> offbeat.Agent:
    agent = offbeat.Agent("sac", spec, **{**SMALL, **settings})  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    rows = rng.normal(2.0, 3.0, (20, spec.observation_size)).astype(np.float32)
    flags = np.zeros(20, bool)
    agent.observe(rows, np.zeros((20, spec.action_size)), np.zeros(20), rows, flags, flags)
    agent.update(2)
    return agent


def test_loaded_policy_acts_as_the_agent_does(tmp_path: Path) -> None:
    agent = _agent(vector_spec(4, 2, low=-3.0, high=5.0), normalise_observations=True, layer_norm=True)
    policy = load_policy(_export(agent, tmp_path / "policy"))
    obs = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    np.testing.assert_allclose(policy.act(obs), agent.act(obs, deterministic=True), atol=1e-6)
    np.testing.assert_allclose(policy.act(obs[0]), policy.act(obs)[0], atol=1e-6)
    assert policy.act(obs[0]).shape == (2,)
    assert policy.version == 2
    noisy = policy.act(obs, deterministic=False, rng=np.random.default_rng(0))
    assert not np.allclose(noisy, policy.act(obs))
    np.testing.assert_allclose(load_policy(tmp_path, acting="torch").act(obs), policy.act(obs), atol=1e-6)


def test_structured_observations_are_flattened_as_in_training(tmp_path: Path) -> None:
    layout = Layout((Leaf(("gear",), "discrete", (3,), "int64"), Leaf(("speed",), "box", (2,), "float32")))
    agent = offbeat.Agent("sac", EnvSpec("car", layout, (-1.0,), (1.0,), (1,)), **SMALL)  # type: ignore[arg-type]
    policy = load_policy(_export(agent, tmp_path / "policy"))
    one = policy.act({"speed": np.array([0.5, 0.1]), "gear": 2})
    stack = policy.act({"speed": np.array([[0.5, 0.1]]), "gear": np.array([2])})
    np.testing.assert_array_equal(one, stack[0])
    assert not np.array_equal(one, policy.act({"speed": np.array([0.5, 0.1]), "gear": 1}))


def test_loading_and_acting_imports_neither_torch_nor_gymnasium(tmp_path: Path) -> None:
    _export(_agent(vector_spec(4, 2)), tmp_path / "policy")
    code = (
        "import sys, numpy, offbeat\n"
        f"action = offbeat.load_policy({str(tmp_path)!r}).act(numpy.zeros(4))\n"
        "print(action.shape, sorted({'torch', 'gymnasium'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "(2,) []"


class OwnActor(nn.Module):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.out = nn.Linear(spec.observation_size, 2 * spec.action_size)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.out(obs)


def test_a_users_module_comes_from_the_caller_and_never_from_a_file(tmp_path: Path) -> None:
    agent = _agent(vector_spec(4, 2), actor=OwnActor, normalise_observations=True)
    _export(agent, tmp_path / "policy")
    obs = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    for actor in (OwnActor, "test_load_policy:OwnActor"):
        policy = load_policy(tmp_path, actor=actor)
        np.testing.assert_allclose(policy.act(obs), agent.act(obs, deterministic=True), atol=1e-6)
    assert "test_load_policy:OwnActor" in (tmp_path / "policy" / "policy.json").read_text()
    with pytest.raises(UsageError, match=r"actor= \(test_load_policy:OwnActor\)"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        ([np.nan, 0, 0, 0], "not finite"),
        ([1.0, 2.0], r"shape \(2,\); it must be \(4,\), or \(N, 4\)"),
        (np.zeros((0, 4)), "stack of N"),
        (np.zeros((2, 3, 4)), "shape"),
        ("north", "shape"),
    ],
)
def test_an_invalid_observation_is_refused(obs: object, words: str, tmp_path: Path) -> None:
    agent = _agent(vector_spec(4, 2))
    policy = load_policy(_export(agent, tmp_path / "policy"))
    for act in (policy.act, agent.act):
        with pytest.raises(UsageError, match=words):
            act(obs)


def test_a_missing_part_of_an_observation_is_named(tmp_path: Path) -> None:
    layout = Layout((Leaf(("gear",), "discrete", (3,), "int64"), Leaf(("speed",), "box", (2,), "float32")))
    agent = offbeat.Agent("sac", EnvSpec("car", layout, (-1.0,), (1.0,), (1,)), **SMALL)  # type: ignore[arg-type]
    policy = load_policy(_export(agent, tmp_path / "policy"))
    with pytest.raises(UsageError, match="'speed'"):
        policy.act({"gear": 1})
    with pytest.raises(UsageError, match="shape"):
        policy.act({"gear": np.array([1, 2]), "speed": np.zeros(2)})


def test_a_new_export_replaces_the_old_one_whole(tmp_path: Path) -> None:
    agent = _agent(vector_spec(4, 2))
    _export(agent, tmp_path / "policy")
    agent.update(3)
    _export(agent, tmp_path / "policy")
    assert load_policy(tmp_path).version == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy"]


def test_a_reader_between_two_renames_finds_the_old_policy(tmp_path: Path) -> None:
    _export(_agent(vector_spec(4, 2)), tmp_path / "policy")
    (tmp_path / "policy").rename(tmp_path / "policy.old")  # as after a crash during an export
    assert load_policy(tmp_path).version == 2


def test_damaged_and_foreign_files_raise_checkpoint_error_and_execute_nothing(tmp_path: Path) -> None:
    directory = _export(_agent(vector_spec(4, 2)), tmp_path / "policy")
    weights, document = directory / "weights.safetensors", directory / "policy.json"
    whole, text = weights.read_bytes(), document.read_text()

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (str(tmp_path / "exploded"),))  # type: ignore[return-value]

    edited = json.loads(text)
    edited["version"] = 7
    for data in (whole[:100], whole[:-4] + b"abcd", b"", pickle.dumps(Bomb())):
        weights.write_bytes(data)
        with pytest.raises(CheckpointError):
            load_policy(tmp_path)
    weights.write_bytes(whole)
    for words in ("{", "[]", "{}", json.dumps(edited), json.dumps({**json.loads(text), "format": 99})):
        document.write_text(words)
        with pytest.raises(CheckpointError):
            load_policy(tmp_path)
    assert not (tmp_path / "exploded").exists()
    with pytest.raises(CheckpointError, match="no policy"):
        load_policy(tmp_path / "nowhere")


def test_exploration_continues_from_the_end_of_training(tmp_path: Path) -> None:
    """Epsilon is that of the last step, not that of the first."""
    run = offbeat.train(
        "dqn",
        "CartPole-v1",
        preset=None,
        total_steps=120,
        warmup_steps=100,
        hidden=(8,),
        exploration={"kind": "epsilon_greedy", "final": 0.0, "steps": 50},
        eval_episodes=1,
        out=str(tmp_path),
        quiet=True,
    )
    policy, obs = offbeat.load_policy(run.path), np.zeros((200, 4), np.float32)
    assert len(set(policy.act(obs, deterministic=False).tolist())) == 1
