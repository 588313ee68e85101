"""Files of SAC in JAX, and runs that were killed."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import flax
import gymnasium as gym
import jax
import numpy as np
import optax
import pytest

import skrl_jax_agents as small
from offbeat.compat.skrl.agents.jax.sac import SAC
from offbeat.compat.skrl.envs.wrappers.jax import wrap_env
from offbeat.compat.skrl.memories.jax import Memory, RandomMemory
from offbeat.compat.skrl.resources.preprocessors.jax import RunningStandardScaler
from offbeat.compat.skrl.trainers.jax import SequentialTrainer
from offbeat.compat.skrl.utils import set_seed
from offbeat.errors import UsageError

EXAMPLE = Path(__file__).parents[3] / "examples" / "coming_from_skrl_jax.py"
ARGUMENTS = ("--timesteps", "300", "--learning-starts", "20", "--checkpoint-interval", "60", "--episodes", "1")
KILLED = """
import os, signal
import coming_from_skrl_jax as example

original = example.SAC.pre_interaction

def deadly(self, *, timestep, timesteps):
    if timestep == 130:
        os.kill(os.getpid(), signal.SIGKILL)
    original(self, timestep=timestep, timesteps=timesteps)

example.SAC.pre_interaction = deadly
example.main()
"""
QUIET = {"headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
STEP = {"timestep": 0, "timesteps": 9}


# Files.


def test_a_saved_agent_goes_on_as_if_it_had_not_been_saved(tmp_path: Path) -> None:
    settings = {
        "learning_rate_scheduler": optax.linear_schedule,
        "learning_rate_scheduler_kwargs": {"init_value": 1e-2, "end_value": 0.0, "transition_steps": 5},
        "observation_preprocessor": RunningStandardScaler,
        "observation_preprocessor_kwargs": {"size": 3},
    }
    one, other = (small.make_agent(tmp_path, models=small.make_models(seed=each), **settings) for each in (0, 1))
    for agent in (one, other):
        agent.memory.add_samples(**small.transitions(20))
    one.update(**STEP)
    path = str(tmp_path / "agent.pickle")
    one.save(path)
    other.load(path)
    other.streams.restore(one.streams.state())
    assert other._rates() == one._rates() == pytest.approx([8e-3] * 3)
    for agent in (one, other):
        agent.update(**STEP)
    mine, theirs = small.weights(one), small.weights(other)
    for name in mine:
        np.testing.assert_allclose(theirs[name], mine[name], rtol=1e-6, atol=1e-7)
    assert float(other.log_entropy_coefficient.value[0]) == float(one.log_entropy_coefficient.value[0])
    assert other.policy_optimizer.state_dict.params["count"] == 2


def test_a_file_of_skrl_is_read_with_its_optimisers(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path)
    params = jax.tree.map(np.ones_like, agent.policy.state_dict.params)
    adam = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    _, state = adam.update(params, adam.init(params), params)
    files = {"policy": params, "policy_optimizer": {"state": state}, "unknown": {"x": np.zeros(1)}}
    path = tmp_path / "skrl.pickle"
    path.write_bytes(pickle.dumps({name: flax.serialization.to_bytes(each) for name, each in files.items()}))
    agent.load(str(path))
    assert all(np.all(np.asarray(each) == 1.0) for each in jax.tree.leaves(agent.policy.state_dict.params))
    found = agent.policy_optimizer.state_dict.params
    assert found["count"] == 1
    scale = optax.tree.norm(params)
    assert all(np.allclose(each, 0.1 / scale) for each in jax.tree.leaves(found["mu"]))


def test_files_that_are_not_weights_are_refused(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path)
    path = tmp_path / "x.pickle"
    with pytest.raises(UsageError, match="there is no file"):
        agent.load(str(path))
    path.write_bytes(pickle.dumps({"policy": os.getcwd}))
    with pytest.raises(UsageError, match=r"has an object of \w+\.getcwd, and only names and bytes are read"):
        agent.load(str(path))
    path.write_bytes(b"nothing")
    with pytest.raises(UsageError, match="not a file of weights that can be read safely"):
        agent.load(str(path))
    path.write_bytes(pickle.dumps([1]))
    with pytest.raises(UsageError, match="holds a list"):
        agent.load(str(path))
    narrow = jax.tree.map(lambda each: each[:1], agent.policy.state_dict.params)
    path.write_bytes(pickle.dumps({"policy": flax.serialization.to_bytes(narrow)}))
    with pytest.raises(UsageError, match=r"'policy' in .* does not fit this agent: .* there and .* here"):
        agent.load(str(path))


def test_modules_are_stored_separately_where_asked_for(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, experiment={"store_separately": True, "checkpoint_interval": 1})
    agent.enable_training_mode(False)
    agent.write_checkpoint(timestep=7, timesteps=9)
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert {"policy_7.pickle", "target_critic_2_7.pickle", "critic_1_optimizer_7.pickle"} <= names
    data = pickle.loads((tmp_path / "run" / "checkpoints" / "policy_7.pickle").read_bytes())
    assert flax.serialization.msgpack_restore(data).keys() == {"params"}


# Resume.


class OwnWrites(Memory):
    """A memory of a user that changes what is added, and draws the newest rows."""

    def add_samples(self, **tensors: Any) -> None:
        super().add_samples(**{**tensors, "rewards": tensors["rewards"] * 0.1})

    def sample(self, names: list[str], *, batch_size: int, **options: Any) -> list[list[Any]]:
        rows = np.arange(batch_size) % len(self)
        return self.sample_by_index(names, indexes=len(self) - 1 - rows)


def trainer(directory: Path, memory: Any, timesteps: int) -> Any:
    set_seed(3)
    env = wrap_env(gym.make("Pendulum-v1"), verbose=False)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    models: dict[str, Any] = {"policy": small.Policy(**spaces)}
    models |= {name: small.Critic(**spaces) for name in small.NAMES[1:]}
    for name, model in models.items():
        model.init_state_dict(role=name)
    cfg = {
        "batch_size": 8,
        "learning_rate_scheduler": optax.exponential_decay,
        "learning_rate_scheduler_kwargs": {"init_value": 1e-3, "transition_steps": 3, "decay_rate": 0.9},
        "observation_preprocessor": RunningStandardScaler,
        "observation_preprocessor_kwargs": {"size": 3},
        "experiment": {"directory": str(directory), "experiment_name": "run", "checkpoint_interval": 15},
    }
    agent = SAC(models=models, memory=memory, device="cpu", cfg=cfg, **spaces)
    return SequentialTrainer(env=env, agents=agent, cfg={"timesteps": timesteps, **QUIET})


@pytest.mark.parametrize("memory", [RandomMemory, pytest.param(OwnWrites, marks=pytest.mark.slow)])
def test_resume_restores_everything_that_learning_depends_on(memory: Any, tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", memory(memory_size=40), 55)
    whole.train()
    trainer(tmp_path / "part", memory(memory_size=40), 49).train()
    rest = trainer(tmp_path / "other", memory(memory_size=40), 55)
    assert rest.agents.resume(str(tmp_path / "part" / "run")) == 45
    rest.train()
    one, other = whole.agents, rest.agents
    mine, theirs = small.weights(one), small.weights(other)
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    assert one._module_states() == other._module_states()
    assert one.learner.updates == other.learner.updates == 55
    assert all(np.array_equal(each, other.memory.tensors[name]) for name, each in one.memory.tensors.items())
    assert one._rates() == other._rates()
    assert one.policy_learning_rate < 1e-3


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


@pytest.mark.slow
def test_a_killed_script_resumes_unchanged_and_ends_like_one_that_was_not_killed(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    process = start(killed, script=script)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL, output
    saved = {path.name for path in (killed / "pendulum" / "checkpoints").iterdir()}
    assert "agent_120.pickle" in saved
    assert "agent_180.pickle" not in saved
    output = finished(start(killed, OFFBEAT_RESUME=str(killed / "pendulum")))
    assert "resumed from" in output
    finished(start(whole))
    assert (killed / "pendulum.pickle").read_bytes() == (whole / "pendulum.pickle").read_bytes()
