"""A run that was killed is continued from the checkpoint that our core wrote, and ends as if it had not been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

import skrl_agents as small
from offbeat.compat import skrl
from offbeat.errors import UsageError

EXAMPLE = Path(__file__).parents[3] / "examples" / "coming_from_skrl.py"
ARGUMENTS = ("--timesteps", "700", "--learning-starts", "20", "--checkpoint-interval", "70", "--episodes", "1")
KILLED = """
import os, signal
import coming_from_skrl as example

original = example.SAC.pre_interaction

def deadly(self, *, timestep, timesteps):
    if timestep == 150:
        os.kill(os.getpid(), signal.SIGKILL)
    original(self, timestep=timestep, timesteps=timesteps)

example.SAC.pre_interaction = deadly
example.main()
"""
QUIET = {"headless": True, "disable_progressbar": True, "close_environment_at_exit": False}


def start(directory: Path, script: Path = EXAMPLE, **environment: str) -> subprocess.Popen[str]:
    environment["PYTHONPATH"] = os.pathsep.join((str(EXAMPLE.parents[1] / "src"), str(EXAMPLE.parent)))
    command = [sys.executable, str(script), "--directory", str(directory), *ARGUMENTS]
    return subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def final_weights(directory: Path) -> Any:
    return torch.load(directory / "pendulum.pt", weights_only=True)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    return bool(one == other)


def test_a_killed_script_resumes_unchanged_and_ends_like_one_that_was_not_killed(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    process = start(killed, script=script)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL, output
    saved = sorted(path.name for path in (killed / "pendulum" / "checkpoints").iterdir())
    assert "agent_140.pt" in saved
    assert "agent_210.pt" not in saved
    assert not (killed / "pendulum.pt").exists()
    output = finished(start(killed, OFFBEAT_RESUME=str(killed / "pendulum")))
    assert "resumed from" in output
    finished(start(whole))
    assert equal(final_weights(killed), final_weights(whole))
    assert (killed / "pendulum" / "checkpoints" / "agent_700.pt").exists()


class OwnMemory(skrl.Memory):
    """A memory of a user that draws the newest rows."""

    def sample(self, names: list[str], *, batch_size: int, **options: Any) -> list[list[Any]]:
        return self.sample_by_index(names, indexes=torch.arange(max(0, len(self) - batch_size), len(self)))


class OwnWrites(OwnMemory):
    """A memory of a user that changes what is added."""

    def add_samples(self, **tensors: Any) -> None:
        super().add_samples(**{**tensors, "rewards": tensors["rewards"] * 0.1})


def trainer(directory: Path, memory: Any, timesteps: int, kind: Any = skrl.SequentialTrainer) -> Any:
    skrl.set_seed(3)
    env = skrl.wrap_env(gym.make("Pendulum-v1"), verbose=False)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    classes = small.model_classes()
    models = {"policy": classes.Policy(**spaces), **{name: classes.Critic(**spaces) for name in small.NAMES[1:]}}
    agent = skrl.SAC(
        models=models,
        memory=memory,
        device="cpu",
        cfg={
            "batch_size": 8,
            "learning_rate_scheduler": torch.optim.lr_scheduler.StepLR,
            "learning_rate_scheduler_kwargs": {"step_size": 3, "gamma": 0.9},
            "observation_preprocessor": skrl.RunningStandardScaler,
            "observation_preprocessor_kwargs": {"size": 3, "device": "cpu"},
            "experiment": {"directory": str(directory), "experiment_name": "run", "checkpoint_interval": 15},
        },
        **spaces,
    )
    return kind(env=env, agents=agent, cfg={"timesteps": timesteps, **QUIET})


@pytest.mark.parametrize("memory", [skrl.RandomMemory, OwnMemory, OwnWrites])
def test_resume_restores_everything_that_learning_depends_on(memory: Any, tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", memory(memory_size=40), 75)
    whole.train()
    trainer(tmp_path / "part", memory(memory_size=40), 67).train()
    rest = trainer(tmp_path / "other", memory(memory_size=40), 75)
    assert rest.agents.resume(str(tmp_path / "part" / "run")) == 60
    rest.train()
    one, other = whole.agents, rest.agents
    assert equal(small.weights(one), small.weights(other))
    assert equal(one._module_states(), other._module_states())
    assert one.learner.updates == other.learner.updates == 75
    assert equal(dict(one.memory.tensors), dict(other.memory.tensors))
    assert one.policy_optimizer.rate == other.policy_optimizer.rate < 1e-3


def test_a_step_trainer_resumes(tmp_path: Path) -> None:
    first = trainer(tmp_path, skrl.RandomMemory(memory_size=40), 100, skrl.StepTrainer)
    for _ in range(20):
        first.train()
    rest = trainer(tmp_path, skrl.RandomMemory(memory_size=40), 100, skrl.StepTrainer)
    assert rest.agents.resume() == 15
    rest.train()
    assert len(rest.agents.memory) == 15


def test_edited_rows_are_saved_again(tmp_path: Path) -> None:
    first = trainer(tmp_path, skrl.RandomMemory(memory_size=40), 30)
    first.train()
    first.agents.memory.set_tensor_by_name("rewards", torch.full((40, 1, 1), 5.0))
    first.agents.write_checkpoint(timestep=31, timesteps=40)
    rest = trainer(tmp_path, skrl.RandomMemory(memory_size=40), 40)
    assert rest.agents.resume() == 31
    assert rest.agents.memory.get_tensor_by_name("rewards")[:30].unique().tolist() == [5.0]


def test_without_a_checkpoint_nothing_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="has no checkpoint to resume from"):
        trainer(tmp_path, skrl.RandomMemory(memory_size=40), 10).agents.resume()
    monkeypatch.setenv("OFFBEAT_RESUME", str(tmp_path / "run"))
    with pytest.raises(UsageError, match="has no checkpoint to resume from"):
        trainer(tmp_path, skrl.RandomMemory(memory_size=40), 10).train()
