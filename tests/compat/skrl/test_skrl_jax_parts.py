"""Models, memories, trainers, wrappers and resources of skrl's JAX package, parameter by parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import skrl_jax_agents as small
from offbeat.compat.skrl.agents.jax.sac import SAC
from offbeat.compat.skrl.envs.wrappers.jax import Wrapper, wrap_env
from offbeat.compat.skrl.framework import config
from offbeat.compat.skrl.memories.jax import RandomMemory
from offbeat.compat.skrl.resources.optimizers.jax import Adam
from offbeat.compat.skrl.resources.preprocessors.jax import RunningStandardScaler
from offbeat.compat.skrl.trainers.jax import SequentialTrainer, StepTrainer
from offbeat.compat.skrl.utils import set_seed
from offbeat.compat.skrl.utils.spaces.jax import (
    compute_space_limits,
    flatten_tensorized_space,
    sample_space,
    tensorize_space,
    unflatten_tensorized_space,
    untensorize_space,
)
from offbeat.errors import UsageError

QUIET = {"headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
INPUTS = {"observations": jnp.linspace(-1, 1, 12).reshape(4, 3), "states": None, "key": np.array([1, 2], np.uint32)}


def made(**mixin: Any) -> Any:
    return small.make_models(**mixin)["policy"]


# Models.


def test_each_parameter_of_the_gaussian_mixin() -> None:
    plain, outputs = made().act(INPUTS, role="policy")
    mean, std = outputs["mean_actions"], outputs["stddev"]
    density = jax.scipy.stats.norm.logpdf(plain, mean, std)
    np.testing.assert_allclose(outputs["log_prob"], density.sum(-1, keepdims=True), rtol=1e-5)
    for reduction, reduce in (("mean", jnp.mean), ("prod", jnp.prod)):
        found = made(reduction=reduction).act(INPUTS)[1]["log_prob"]
        np.testing.assert_allclose(found, reduce(density, axis=-1, keepdims=True), rtol=1e-5)
    assert made(reduction="none").act(INPUTS)[1]["log_prob"].shape == (4, 2)
    taken = {**INPUTS, "taken_actions": mean}
    np.testing.assert_allclose(
        made(reduction="none").act(taken)[1]["log_prob"],
        jnp.broadcast_to(jax.scipy.stats.norm.logpdf(0.0, 0.0, std), (4, 2)),
        rtol=1e-5,
    )
    wide = made(min_log_std=2.5, max_log_std=3.0)
    assert float(wide.act(INPUTS)[1]["log_std"].min()) == 2.5
    assert float(made(min_log_std=2.5, clip_log_std=False).act(INPUTS)[1]["log_std"].max()) < 1.0
    assert float(jnp.abs(wide.act(INPUTS)[0]).max()) > 2.0
    assert float(jnp.abs(made(min_log_std=2.5, max_log_std=3.0, clip_actions=True).act(INPUTS)[0]).max()) == 2.0
    tight = made(clip_mean_actions=True)
    tight._limits = np.full(2, -0.1), np.full(2, 0.1)
    assert float(jnp.abs(tight.act(INPUTS)[1]["mean_actions"]).max()) == pytest.approx(0.1)
    np.testing.assert_allclose(plain, made().act(INPUTS)[0])
    np.testing.assert_allclose(made().get_entropy(jnp.ones(2)), 0.5 + 0.5 * np.log(2 * np.pi), rtol=1e-6)
    with pytest.raises(UsageError, match="reduction='max' is unknown"):
        made(reduction="max")


def test_first_values_differ_by_role_and_seed_and_are_repeatable(tmp_path: Path) -> None:
    def first(role: str, seed: int, **options: Any) -> Any:
        set_seed(seed)
        model = small.Critic(observation_space=small.OBSERVATIONS, action_space=small.ACTIONS)
        model.init_state_dict(role=role, **options)
        return np.asarray(model.state_dict.params["params"]["first"]["kernel"])

    assert np.array_equal(first("critic_1", 1), first("critic_1", 1))
    assert not np.array_equal(first("critic_1", 1), first("critic_2", 1))
    assert not np.array_equal(first("critic_1", 1), first("critic_1", 2))
    key = jax.random.PRNGKey(5)
    assert np.array_equal(first("critic_1", 1, key=key), first("critic_2", 2, key=key))
    model = made()
    model.init_biases("constant_", 0.5)
    model.init_weights("zeros")
    layer = model.state_dict.params["params"]["Dense_0"]
    assert np.all(np.asarray(layer["bias"]) == 0.5)
    assert not np.any(np.asarray(layer["kernel"]))
    model.init_parameters("normal", stddev=0.01)
    assert 0 < np.abs(np.asarray(model.state_dict.params["params"]["Dense_0"]["kernel"])).max() < 0.1
    with pytest.raises(UsageError, match="method_name='rubbish' is not a function of flax"):
        model.init_parameters("rubbish")
    model.save(str(tmp_path / "x.flax"))
    other = made()
    other.load(str(tmp_path / "x.flax"))
    third = made()
    before = np.asarray(third.state_dict.params["params"]["Dense_0"]["kernel"])
    third.update_parameters(other, polyak=0.25)
    mine, theirs = (np.asarray(each.state_dict.params["params"]["Dense_0"]["kernel"]) for each in (third, other))
    np.testing.assert_allclose(mine, 0.75 * before + 0.25 * theirs, rtol=1e-5)


# Memory, resources and spaces.


def test_samples_are_jax_arrays_and_the_ring_can_be_shared_and_saved(tmp_path: Path) -> None:
    memory = RandomMemory(memory_size=4, num_envs=2, export_directory=str(tmp_path))
    memory.create_tensor("observations", size=3, dtype=jnp.float32)
    memory.create_tensor("terminated", size=1, dtype=bool)
    for step in range(3):
        memory.add_samples(observations=jnp.full((2, 3), float(step)), terminated=jnp.ones((2, 1), jnp.int8))
    assert len(memory) == 6
    [[rows, flags]] = memory.sample(["observations", "terminated"], batch_size=9)
    assert isinstance(rows, jax.Array)
    assert sorted(rows[:, 0].tolist()) == [0, 0, 1, 1, 2, 2]  # without replacement, so no more than there are
    assert flags.dtype == bool
    memory.replacement = True
    assert memory.sample(["observations"], batch_size=9)[0][0].shape == (9, 3)
    assert isinstance(memory.get_tensor_by_name("observations"), jax.Array)
    memory.share_memory()
    memory.set_tensor_by_name("observations", jnp.full((4, 2, 3), 7.0))
    assert np.all(memory.tensors["observations"] == 7.0)
    memory.save(format="npz")
    [path] = (tmp_path / "memories").iterdir()
    memory.set_tensor_by_name("observations", jnp.zeros((4, 2, 3)))
    memory.load(str(path))
    assert np.all(memory.tensors["observations"] == 7.0)


def test_the_scaler_standardises_by_all_rows_so_far() -> None:
    scaler = RunningStandardScaler(2, epsilon=0.0, clip_threshold=1.5)
    rng = np.random.default_rng(0)
    rows = rng.normal(3.0, 2.0, (4000, 2)).astype(np.float32)
    for part in np.split(rows, 4):
        scaler(jnp.asarray(part), train=True)
    found = np.asarray(scaler(jnp.asarray(rows)))
    expected = np.clip((rows - rows.mean(0)) / rows.std(0), -1.5, 1.5)
    np.testing.assert_allclose(found, expected, atol=5e-3)
    np.testing.assert_allclose(scaler(jnp.ones((1, 2)), inverse=True)[0], rows.mean(0) + rows.std(0), rtol=5e-3)
    assert scaler(None) is None
    before = scaler.running_mean.copy()
    scaler(jnp.zeros((5, 2)))
    assert np.array_equal(scaler.running_mean, before)
    np.testing.assert_allclose(jax.jit(scaler)(jnp.asarray(rows[:3])), found[:3], rtol=1e-5)


def test_adam_steps_a_model_of_the_user() -> None:
    model = made()
    ones = jax.tree.map(jnp.ones_like, model.state_dict.params)
    before = model.state_dict.params
    optimizer = Adam(model=model, lr=0.1).step(grad=ones, model=model)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b - 0.1, atol=1e-6), model.state_dict.params, before)
    optimizer = optimizer.step(grad=ones, model=model, lr=0.2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b - 0.3, atol=1e-5), model.state_dict.params, before)
    assert int(optimizer.state.memory["steps"]) == 2
    clipped = Adam(model=model, grad_norm_clip=1e-9).step(grad=ones, model=model)
    assert float(jnp.linalg.norm(clipped.state.memory["mean"])) == pytest.approx(1e-10, rel=1e-2)
    with pytest.raises(UsageError, match="each step needs its rate; pass lr"):
        Adam(model=model, scale=False).step(grad=ones, model=model)


def test_values_of_spaces_become_jax_arrays_and_back() -> None:
    space = gym.spaces.Dict({"b": gym.spaces.Box(-1, 1, (2, 2)), "a": gym.spaces.Discrete(3)})
    drawn = sample_space(space, batch_size=2)
    flat = flatten_tensorized_space(tensorize_space(space, drawn))
    assert isinstance(flat, jax.Array)
    assert flat.shape == (2, 5)
    back = untensorize_space(space, unflatten_tensorized_space(space, flat))
    np.testing.assert_allclose(back["b"], drawn["b"], rtol=1e-6)
    low, high = compute_space_limits(gym.spaces.Box(-2, np.inf, (2,)), none_if_unbounded="any")
    assert high is None
    assert low.tolist() == [-2, -2]
    assert config.jax.parse_device("cpu:0") == jax.devices("cpu")[0]


# Trainers and environments.


def agent_of(env: Any, directory: Path, envs: int, **settings: Any) -> SAC:
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    models: dict[str, Any] = {"policy": small.Policy(**spaces)}
    models |= {name: small.Critic(**spaces) for name in small.NAMES[1:]}
    for name, model in models.items():
        model.init_state_dict(role=name)
    cfg = {"batch_size": 4, "experiment": {"directory": str(directory), "write_interval": 2}, **settings}
    return SAC(models=models, memory=RandomMemory(memory_size=20, num_envs=envs), cfg=cfg, **spaces)


def test_two_agents_share_a_vector_environment(tmp_path: Path) -> None:
    env = wrap_env(gym.make_vec("Pendulum-v1", num_envs=3), verbose=False)
    assert isinstance(env, Wrapper)
    agents = [agent_of(env, tmp_path, envs, learning_starts=100) for envs in (1, 2)]
    trainer = SequentialTrainer(env=env, agents=agents, scopes=[1, 2], cfg={"timesteps": 5, **QUIET})
    trainer.train()
    assert [len(agent.memory) for agent in agents] == [5, 10]
    stored = [agent.memory.tensors["observations"][:5].reshape(5, -1) for agent in agents]
    assert not np.array_equal(stored[0], stored[1][:, :3])
    env.close()


def test_a_step_trainer_steps_once_per_call_and_evaluates_with_means(tmp_path: Path) -> None:
    env = wrap_env(gym.make("Pendulum-v1"), verbose=False)
    agent = agent_of(env, tmp_path, 1, rewards_shaper=lambda rewards, timestep, timesteps: rewards * 0 + timestep)
    trainer = StepTrainer(env=env, agents=agent, cfg={"timesteps": 9, **QUIET})
    for _ in range(3):
        observations, rewards, terminated, truncated, _ = trainer.train()
    assert observations.shape == (1, 3)
    assert rewards.shape == terminated.shape == truncated.shape == (1, 1)
    assert terminated.dtype == np.int8
    assert agent.memory.tensors["rewards"][:3, 0, 0].tolist() == [1, 2, 3]
    assert agent.learner is not None
    assert agent.learner.updates == 3
    trainer.eval()
    assert len(agent.memory) == 3
