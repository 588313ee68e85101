"""Networks of a user's own in JAX: they learn, act, repeat, resume, and are refused in words where they cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import offbeat
from driven_learner import Learner
from offbeat.errors import CheckpointError, UsageError
from offbeat.run.checkpoint import Checkpoints, digest
from offbeat.settings import make_learner_config
from offbeat.types import EnvSpec
from own_parts.flax_networks import Actor, Critic, actor, critic
from short_runs import SETTINGS
from small_learners import SPEC, make, same, updated
from specs import choice_spec, vector_spec

OWN: dict[str, Any] = {"actor": actor, "critic": critic, "backend": "jax"}


class Pair(NamedTuple):
    """Functions that go with params of dicts, lists and tuples."""

    init: Any
    apply: Any


def linear(inputs: int, outputs: int) -> Pair:
    def init(key: Any, *inputs_: Any) -> Any:
        return [{"weight": 0.1 * jax.random.normal(key, (inputs, outputs))}, (jnp.zeros(outputs),)]

    return Pair(init, lambda params, *parts: jnp.concatenate(parts, -1) @ params[0]["weight"] + params[1][0])


def test_own_networks_learn_and_are_saved_by_the_paths_of_their_params() -> None:
    learner = make(**OWN)
    before = learner.arrays()
    wanted = {"actor/Dense_0/kernel", "actor/Dense_1/bias", "critic/0/Dense_0/kernel", "target/1/Dense_1/bias"}
    assert wanted <= before.keys()
    assert not np.array_equal(before["critic/0/Dense_0/kernel"], before["critic/1/Dense_0/kernel"])
    after = updated(learner, 2).arrays()
    for name in wanted:
        assert not np.array_equal(before[name], after[name]), name
    other = make(**OWN)
    assert same(other, make(**OWN)), "first weights come from the run's seed"
    other.restore(after)
    assert same(other, learner)


def test_a_pair_of_init_and_apply_is_the_network_that_torch_has_with_its_weights() -> None:
    """One update each from the same weights, batch and noise."""

    class Linear(torch.nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(inputs, outputs))
            self.bias = torch.nn.Parameter(torch.zeros(outputs))

        def forward(self, *parts: torch.Tensor) -> torch.Tensor:
            return torch.cat(parts, -1) @ self.weight + self.bias

    own = make(backend="jax", actor=lambda spec: linear(5, 4), critic=lambda spec: linear(7, 1))
    theirs = make(actor=lambda spec: Linear(5, 4), critic=lambda spec: Linear(7, 1))
    arrays = own.arrays()
    names = {"actor/weight": "actor/0/weight", "actor/bias": "actor/1/0"}
    for network in ("critic", "target"):
        for member in range(2):
            names |= {f"{network}/members.{member}.weight": f"{network}/{member}/0/weight"}
            names |= {f"{network}/members.{member}.bias": f"{network}/{member}/1/0"}
    theirs.restore(theirs.arrays() | {there: arrays[here] for there, here in names.items()})
    found, wanted = updated(own).arrays(), updated(theirs).arrays()
    for there, here in names.items():
        np.testing.assert_allclose(found[here], wanted[there], rtol=1e-9, atol=1e-12, err_msg=here)


class Sampling(Actor):
    """Draws its actions itself."""

    def sample(self, obs: Any, noise: Any) -> Any:
        mean, _ = self(obs)
        return jnp.tanh(mean + noise), -jnp.square(noise).sum(1)


@pytest.mark.slow
def test_own_actor_may_supply_its_own_sample(tmp_path: Path) -> None:
    learner = updated(make(backend="jax", actor=lambda spec: Sampling(spec.action_size)), 2)
    assert learner.drain()["entropy"] > 0
    agent = offbeat.Agent("sac", SPEC, backend="jax", actor=lambda spec: Sampling(spec.action_size), random_steps=0)
    obs = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    mean, _ = Sampling(2).apply(_params(agent), obs)
    np.testing.assert_allclose(agent.act(obs, deterministic=True), np.tanh(mean), rtol=1e-5)
    assert not np.array_equal(agent.act(obs), agent.act(obs))


def _params(agent: offbeat.Agent) -> Any:
    params: dict[str, Any] = {}
    for name, array in agent.learner.backend.weights().items():
        _, layer, part = name.split("/")
        params.setdefault(layer, {})[part] = array
    return {"params": params}


@pytest.mark.parametrize("algorithm", ["sac", "td3", "ppo", "sac of choices", "dqn", "ppo of choices"])
def test_the_policy_computes_what_the_learner_computes(algorithm: str) -> None:
    spec = SPEC if algorithm in ("sac", "td3", "ppo") else choice_spec(5, 3)
    key = "critic" if algorithm == "dqn" else "actor"
    outputs = {"sac": 4, "td3": 2, "ppo": 2}.get(algorithm, 3)
    own: dict[str, Any] = {key: lambda spec: flax.Dense(outputs), "backend": "jax"}
    own |= {} if algorithm.startswith("ppo") else {"random_steps": 0}
    agent = offbeat.Agent(algorithm.split()[0], spec, **own)
    obs = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    out = agent.learner.backend.acting_outputs(obs)
    wanted = {"sac": np.tanh(out[:, :2]), "td3": out.clip(-1, 1), "ppo": out.clip(-1, 1)}.get(algorithm, out.argmax(1))
    np.testing.assert_allclose(agent.act(obs, deterministic=True), wanted, rtol=1e-5, atol=1e-6)


def test_a_run_with_own_networks_is_evaluated_loaded_and_resumed(tmp_path: Path) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "hidden"} | {"max_episode_steps": 50}
    whole, half = (
        offbeat.train("sac", "Pendulum-v1", out=str(tmp_path / name), name="run", total_steps=steps, **OWN, **rest)
        for name, steps in (("whole", 120), ("half", 60))
        for rest in [{key: value for key, value in settings.items() if key != "total_steps"}]
    )
    offbeat.resume(half.path, total_steps=120, quiet=True)
    assert digest(half.path) == digest(whole.path)
    returns = offbeat.evaluate(whole.path, episodes=2).returns
    policy = offbeat.load_policy(whole.path, actor=actor)
    assert offbeat.evaluate(policy, "Pendulum-v1", episodes=2, max_episode_steps=50).returns == pytest.approx(returns)
    with pytest.raises(UsageError, match=r"it needs its code: pass actor= \(own_parts.flax_networks:actor\)"):
        offbeat.load_policy(whole.path)
    with pytest.raises(
        CheckpointError, match=r"pass the actor that was trained: Dense_0/kernel is \(8, 2\) there and \(4"
    ):
        offbeat.load_policy(whole.path, actor=lambda spec: Actor(spec.action_size, hidden=4))


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_ppo_learns_with_own_networks(env: str, tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "actor": lambda spec: flax.Dense(sum(spec.counts) or 1),
        "critic": lambda spec: flax.Dense(1),
    }
    settings = {"rollout_steps": 32, "minibatches": 2, "epochs": 2, "total_steps": 64, "eval_episodes": 1}
    settings |= {"preset": "none", "quiet": True, "logger": (), "backend": "jax", "max_episode_steps": 30}
    run = offbeat.train("ppo", env, out=str(tmp_path), **own, **settings)
    first = offbeat.Agent("ppo", env, **own, rollout_steps=32, minibatches=2, epochs=2, backend="jax").learner.arrays()
    last = Checkpoints(run.path).load("latest").arrays
    for name in ("actor/kernel", "critic/bias"):
        assert not np.array_equal(last[f"learner/{name}"], first[name]), name


def test_own_networks_act_in_collector_processes(tmp_path: Path) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "hidden"}
    run = offbeat.train("sac", "Pendulum-v1", out=str(tmp_path), collectors=1, **OWN, **settings)
    assert run.status == "finished"


class Normed(flax.Module):
    @flax.compact
    def __call__(self, obs: Any) -> Any:
        return flax.Dense(4)(flax.BatchNorm(use_running_average=False)(obs))


class Dropping(flax.Module):
    @flax.compact
    def __call__(self, obs: Any) -> Any:
        return flax.Dropout(0.5, deterministic=False)(flax.Dense(4)(obs))


class Branching(flax.Module):
    @flax.compact
    def __call__(self, obs: Any) -> Any:
        out = flax.Dense(4)(obs)
        return out if out.sum() > 0 else -out


class Labelled(flax.Module):
    @flax.compact
    def __call__(self, *inputs: Any) -> Any:
        return {"values": flax.Dense(3)(inputs[0])}


class WithStd(flax.Module):
    @flax.compact
    def __call__(self, obs: Any) -> Any:
        return flax.Dense(2)(obs) + self.param("log_std", flax.initializers.zeros, (2,))


CHOICES = choice_spec(5, 3)


@pytest.mark.parametrize(
    ("algorithm", "spec", "settings", "words"),
    [
        (
            "sac",
            SPEC,
            {"actor": lambda spec: Normed()},
            r"variables beside its params: batch_stats.* use layers without",
        ),
        ("sac", SPEC, {"actor": lambda spec: Dropping()}, "your actor raised InvalidRngError on two rows of zeros"),
        ("sac", SPEC, {"actor": lambda spec: Branching()}, "your actor raised TracerBoolConversionError on two rows"),
        (
            "sac",
            SPEC,
            {"actor": lambda spec: flax.Dense(3)},
            r"your actor gave \(2, 3\) for 2 rows: return \(mean, log",
        ),
        ("sac", SPEC, {"critic": lambda spec: flax.Dense(1)}, "your critic raised TypeError on two rows of zeros"),
        (
            "sac",
            SPEC,
            {"critic": lambda spec: Labelled()},
            "your critic gave a dict for a batch of 2; return one value",
        ),
        ("sac", SPEC, {"critic": lambda spec: linear(7, 2)}, r"your critic gave \(2, 2\) for a batch of 2; return one"),
        ("sac", SPEC, {"actor": lambda spec: Labelled()}, r"your actor returned a dict: return \(mean, log_std\)"),
        ("sac", CHOICES, {"actor": lambda spec: Labelled()}, "your actor returned a dict: return one logit per action"),
        ("sac", CHOICES, {"actor": lambda spec: Sampling(3)}, "sample, which SAC and REDQ with Discrete actions never"),
        (
            "td3",
            SPEC,
            {"actor": lambda spec: Sampling(2)},
            "sample, which TD3 and DDPG never call: return actions from",
        ),
        ("td3", SPEC, {"actor": lambda spec: Labelled()}, r"your actor returned a dict: return actions in \[-1, 1\]"),
        (
            "dqn",
            CHOICES,
            {"critic": lambda spec: flax.Dense(4)},
            r"your critic gave \(2, 4\) for 2 rows: return one value",
        ),
        ("ppo", SPEC, {"actor": lambda spec: flax.Dense(3)}, r"your actor gave \(2, 3\) for 2 rows: return 2 numbers"),
        ("ppo", SPEC, {"actor": lambda spec: Sampling(2)}, "sample, which PPO and APPO never call"),
        (
            "ppo",
            SPEC,
            {"critic": lambda spec: flax.Dense(2)},
            r"your critic gave \(2, 2\) for a batch of 2; return one",
        ),
        (
            "ppo",
            SPEC,
            {"actor": lambda spec: WithStd()},
            "your actor has a log_std of its own, beside the one that",
        ),
        ("sac", SPEC, {"actor": lambda spec: Pair(lambda key, obs: {}, len)}, "your actor has no parameter that could"),
        (
            "sac",
            SPEC,
            {"actor": lambda spec: Pair(lambda key, obs: {"steps": jnp.zeros(2, int)}, len)},
            "your actor has the parameter steps of int32; use floating-point numbers",
        ),
        ("sac", SPEC, {"actor": lambda spec: Pair(lambda key, obs: {"a": 1.0}, len)}, "params with a float at a; use"),
        ("sac", SPEC, {"actor": lambda spec: 3}, "your actor is a int; return a flax.linen module, or an object with"),
        (
            "sac",
            SPEC,
            {"actor": lambda spec: torch.nn.Linear(5, 4)},
            r"your actor is a torch module \(Linear\), which backend=jax cannot use: return a flax.* use backend=torch",
        ),
    ],
)
def test_own_networks_that_cannot_work_are_refused_in_words(
    algorithm: str, spec: EnvSpec, settings: dict[str, Any], words: str
) -> None:
    config = make_learner_config(algorithm, **settings)
    with pytest.raises(UsageError, match=words):
        Learner(algorithm, config, spec, rng=np.random.default_rng(0), backend="jax")


@pytest.mark.parametrize(
    ("algorithm", "key"), [("sac", "actor"), ("td3", "critic"), ("ppo", "actor"), ("ppo", "critic")]
)
def test_networks_of_jax_are_refused_by_torch(algorithm: str, key: str) -> None:
    with pytest.raises(UsageError, match=rf"your {key} is a network of JAX \(Dense\), which backend=torch cannot use"):
        offbeat.Agent(algorithm, vector_spec(5, 2), **{key: lambda spec: flax.Dense(2)})
    with pytest.raises(UsageError, match=f"your {key} is a int; return a torch.nn.Module"):
        offbeat.Agent(algorithm, vector_spec(5, 2), **{key: lambda spec: 3})


def test_a_network_instead_of_a_function_that_makes_it_is_refused_with_the_remedy() -> None:
    with pytest.raises(UsageError, match=r"critic is an existing Critic, .*critic=lambda spec: Critic\(...\)"):
        offbeat.Agent("sac", SPEC, backend="jax", critic=Critic())
