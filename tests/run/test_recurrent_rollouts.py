"""Runs of recurrent PPO and APPO: stored states, collectors, evaluation, a loop of one's own, and a memory task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import offbeat
from offbeat.errors import UsageError
from offbeat.policies.recurrent import RecurrentPolicy

SMALL: dict[str, Any] = {
    "hidden": (8,),
    "network": "gru",
    "recurrent_size": 8,
    "sequence_length": 8,
    "rollout_steps": 32,
    "epochs": 2,
    "minibatches": 2,
}
RUN: dict[str, Any] = {"threads": 1, "quiet": True, "logger": (), "preset": None, "eval_episodes": 2}


@pytest.mark.parametrize("network", ["rnn", "lstm", "recurrent_parts:OwnGRU"])
@pytest.mark.parametrize(("algorithm", "collectors"), [("ppo", 0), ("appo", 0), ("ppo", 2), ("appo", 2)])
def test_runs_learn_and_evaluate(algorithm: str, collectors: int, network: str, tmp_path: Path) -> None:
    settings = {**SMALL, **RUN, "network": network, "collectors": collectors, "num_envs": 4, "total_steps": 384}
    if ":" in network:
        del settings["recurrent_size"]
    run = offbeat.train(algorithm, "CartPole-v1", out=str(tmp_path), max_episode_steps=30, **settings)
    assert run.status == "finished"
    assert run.evaluation.version > 0
    if ":" not in network:
        assert run.policy().policy.initial_carry(1).shape[1] == {"rnn": 8, "lstm": 16}[network]


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_a_loop_of_ones_own_stores_the_states_that_acted(algorithm: str) -> None:
    agent = offbeat.Agent(algorithm, "CartPole-v1", **SMALL)
    env = gymnasium.make("CartPole-v1", max_episode_steps=10)
    obs, _ = env.reset(seed=0)
    for step in range(32):
        action = agent.act(obs)
        following, reward, terminated, truncated, _ = env.step(action)
        agent.observe(obs, action, reward, following, terminated, truncated)
        obs = env.reset()[0] if terminated or truncated else following
        assert (agent.training.due() > 0) == (step == 31)
    columns = agent.experience.draw(np.random.default_rng(0), 1).columns  # type: ignore[attr-defined]
    begins = columns["step"][:, 0] == 0
    assert 2 < begins.sum() < 10
    assert (columns["carry"][begins] == 0).all()
    policy = agent.policy(1)
    policy.load(agent.publication().weights)
    _, after, _ = policy.act(columns["obs"][:, 0], columns["carry"][:, 0], None)
    goes_on = np.flatnonzero(~begins[1:])
    np.testing.assert_allclose(after[goes_on], columns["carry"][goes_on + 1, 0], rtol=0, atol=1e-6)
    assert agent.update()["policy_loss"] != 0


def test_a_step_without_exploration_is_no_row_of_a_rollout() -> None:
    agent, obs = offbeat.Agent("ppo", "CartPole-v1", **SMALL), np.zeros(4, np.float32)
    action = agent.act(obs, deterministic=True)
    with pytest.raises(UsageError, match="call act, not deterministic"):
        agent.observe(obs, action, 0.0, obs, False, False)


def test_a_rollout_from_elsewhere_is_refused() -> None:
    agent = offbeat.Agent("ppo", "CartPole-v1", **SMALL)
    with pytest.raises(UsageError, match=r"a recurrent agent learns from the states that acted.*network='mlp'"):
        agent.observe_rollout(*(np.zeros((32, 1)) for _ in range(7)))


def test_jax_refuses_recurrent_rollouts(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    with pytest.raises(UsageError, match="network='gru' needs backend=torch"):
        offbeat.train("ppo", "CartPole-v1", out=str(tmp_path), backend="jax", **{**SMALL, **RUN})


CUE: dict[str, Any] = {
    **RUN,
    "env_kwargs": {"discrete": True},
    "hidden": (32,),
    "num_envs": 16,
    "rollout_steps": 84,
    "epochs": 4,
    "minibatches": 4,
    "gamma": 0.9,
    "gae_lambda": 0.5,
    "learning_rate": 2e-3,
    "entropy_coefficient": 0.01,
    "eval_episodes": 200,
    "max_episode_steps": 21,
}
MEMORY = {"network": "gru", "recurrent_size": 32, "sequence_length": 21}


def _share_right(out: Path, algorithm: str, **settings: Any) -> float:
    run = offbeat.train(algorithm, "memory_tasks:cue", out=str(out), **{**CUE, **settings})
    return float(np.mean(run.evaluation.successes))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_a_cue_is_remembered_for_20_steps(algorithm: str, tmp_path: Path) -> None:
    assert _share_right(tmp_path, algorithm, total_steps=200_000, **MEMORY) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_without_memory_the_right_action_is_chance(algorithm: str, tmp_path: Path) -> None:
    assert 0.35 <= _share_right(tmp_path, algorithm, total_steps=100_000) <= 0.65


@pytest.mark.slow
def test_a_state_that_is_reset_each_step_remembers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act = RecurrentPolicy.act

    def forgetful(self: Any, obs: Any, carry: Any, rng: Any, step: int = 0, mask: Any = None) -> Any:
        action, after, extras = act(self, obs, carry, rng, step, mask)
        return action, np.zeros_like(after), extras

    monkeypatch.setattr(RecurrentPolicy, "act", forgetful)
    assert _share_right(tmp_path, "ppo", total_steps=100_000, **MEMORY) <= 0.65
