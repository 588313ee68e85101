"""Runs of recurrent PPO and APPO: stored states, collectors, evaluation, a loop of one's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import offbeat
from offbeat.algorithms.torch import appo
from offbeat.cli import main
from offbeat.errors import UsageError

PAGE = Path(__file__).parents[2] / "docs" / "recurrent.md"
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


@pytest.mark.parametrize(
    ("algorithm", "collectors", "network"),
    [
        ("ppo", 0, "rnn"),
        ("appo", 0, "recurrent_parts:OwnGRU"),
        ("appo", 2, "lstm"),
        pytest.param("ppo", 2, "recurrent_parts:OwnGRU", marks=pytest.mark.slow),
        pytest.param("ppo", 2, "lstm", marks=pytest.mark.slow),
    ],
)
def test_runs_learn_and_evaluate(algorithm: str, collectors: int, network: str, tmp_path: Path) -> None:
    settings = {**SMALL, **RUN, "network": network, "collectors": collectors, "num_envs": 4, "total_steps": 384}
    if ":" in network:
        del settings["recurrent_size"]
    run = offbeat.train(algorithm, "CartPole-v1", out=str(tmp_path), max_episode_steps=30, **settings)
    assert run.status == "finished"
    assert run.evaluation.version > 0
    if ":" not in network:
        assert run.policy().policy.initial_carry(1).shape[1] == {"rnn": 8, "lstm": 16}[network]


@pytest.mark.parametrize("command", re.findall(r"^ *offbeat (train .+)$", PAGE.read_text(), re.MULTILINE))
def test_the_commands_of_the_page_train(command: str, tmp_path: Path) -> None:
    fewer = "--total-steps 512 --recurrent-size 8 --hidden 8 --threads 1 --eval-episodes 1 --logger none --quiet"
    if " sac " in command:
        fewer += " --updates-per-step 0.02"
    assert main([*command.split(), *fewer.split(), "--out", str(tmp_path), "--name", "run"]) == 0
    assert offbeat.load_policy(tmp_path / "run").policy.initial_carry(1).shape == (1, 8)


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


def test_a_collector_process_stores_the_states_that_acted_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts, ratios, prepare, vtrace = [], [], appo.prepare, appo.vtrace

    def kept(state: Any, config: Any, spec: Any, steps: Any) -> Any:
        rollouts.append(steps)
        return prepare(state, config, spec, steps)

    def compared(**columns: Any) -> Any:
        ratios.append(columns["target_log_prob"] - columns["behaviour_log_prob"])
        return vtrace(**columns)

    monkeypatch.setattr(appo, "prepare", kept)
    monkeypatch.setattr(appo, "vtrace", compared)
    settings = {**SMALL, **RUN, "learning_rate": 0.0, "num_envs": 3, "collectors": 1, "total_steps": 480}
    run = offbeat.train("appo", "CartPole-v1", out=str(tmp_path), max_episode_steps=13, **settings)
    policy, ends = run.policy().policy, 0
    for steps in rollouts:
        obs, carry = steps.obs.numpy(), steps.carry.numpy()
        ended = (steps.terminated | steps.truncated).numpy()
        ends += ended[:-1].sum()
        for step in range(len(obs) - 1):
            _, after, _ = policy.act(obs[step], carry[step], None)
            assert (np.where(ended[step, :, None], 0, after) == carry[step + 1]).all()
    assert len(rollouts) == 5
    assert ends > 20
    assert max(float(each.abs().max()) for each in ratios) < 1e-5


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
    with pytest.raises(UsageError, match="network='gru' of PPO and APPO needs backend=torch"):
        offbeat.train("ppo", "CartPole-v1", out=str(tmp_path), backend="jax", **{**SMALL, **RUN})
