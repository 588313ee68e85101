"""Runs with recurrent networks: stored states, collectors, evaluation, refusals, and a loop of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import offbeat
from offbeat.errors import UsageError
from offbeat.policies import Policy
from offbeat.replay.sequences import SequenceReplay
from offbeat.replay.shard import Shard
from offbeat.run.checkpoint import Checkpoints
from recurrent_parts import OwnGRU
from specs import vector_spec

SETTINGS: dict[str, Any] = {
    "hidden": (8,),
    "network": "gru",
    "recurrent_size": 8,
    "sequence_length": 5,
    "burn_in": 2,
    "batch_size": 4,
    "total_steps": 160,
    "random_steps": 40,
    "warmup_steps": 60,
    "eval_episodes": 2,
    "max_episode_steps": 30,
    "threads": 1,
    "quiet": True,
    "logger": (),
    "preset": None,
}
CASES = {
    "sac": ("sac", "memory_tasks:pendulum"),
    "redq": ("redq", "memory_tasks:pendulum"),
    "td3": ("td3", "memory_tasks:pendulum"),
    "ddpg": ("ddpg", "memory_tasks:pendulum"),
    "dqn": ("dqn", "CartPole-v1"),
    "discrete sac": ("sac", "CartPole-v1"),
}
NETWORKS: dict[str, tuple[dict[str, Any], int]] = {
    "sac": ({"network": "gru"}, 8),
    "redq": ({"network": "rnn", "updates_per_step": 1.0}, 8),
    "td3": ({"network": "lstm", "n_step": 3}, 16),
    "ddpg": ({"network": "rnn", "recurrent_layers": 2, "exploration": "ornstein_uhlenbeck"}, 16),
    "dqn": ({"network": "lstm", "recurrent_layers": 2, "start_state": "zero"}, 32),
    "discrete sac": ({"network": "gru", "n_step": 2, "normalise_observations": True}, 8),
}
"""Settings of each case, and the size of the state that they make."""


def train(out: Path, case: str = "sac", **settings: Any) -> Any:
    algorithm, env = CASES[case]
    return offbeat.train(algorithm, env, out=str(out), **{**SETTINGS, **settings})


def stored_rows(run: Any, workers: int) -> dict[str, np.ndarray]:
    """The rows of a run's replay, from its checkpoint, environment after environment."""
    schema = offbeat.Agent("sac", "memory_tasks:pendulum", **AGENT).experience.schema
    shards = {str(worker): Shard(schema, 2_000, worker=worker) for worker in range(workers)}
    Checkpoints(run.path, keep=1).load_replay("latest", shards)
    rows = np.concatenate([shard.gather(np.arange(shard.committed)) for shard in shards.values()])
    rows = rows[np.lexsort((np.arange(len(rows)), rows["env"]))]
    return {name: rows[name] for name in rows.dtype.names or ()}


OF_RUNS = ("total_steps", "eval_episodes", "max_episode_steps", "threads", "quiet", "logger", "preset")
AGENT = {name: value for name, value in SETTINGS.items() if name not in OF_RUNS}


@pytest.mark.parametrize("case", CASES)
def test_every_algorithm_learns_from_sequences(case: str, tmp_path: Path) -> None:
    settings, size = NETWORKS[case]
    run = train(tmp_path, case, **settings)
    assert run.status == "finished"
    assert run.evaluation.version == 100
    assert run.policy().policy.initial_carry(1).shape[1] - (settings.get("exploration") is not None) == size


def test_a_recurrent_module_of_ones_own_is_trained_and_acts(tmp_path: Path) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "recurrent_size"} | {"network": OwnGRU}
    run = offbeat.train("sac", "memory_tasks:pendulum", out=str(tmp_path), **settings)
    assert run.status == "finished"
    assert run.evaluation.version == 100


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("sac", {"start_state": "stored"}),
        ("dqn", {"start_state": "zero"}),
        pytest.param("sac", {"backend": "jax"}, marks=pytest.mark.slow),
        pytest.param(
            "sac",
            {"backend": "jax", "network": "flax_memory:memory", "recurrent_size": 256},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_algorithm_learns_from_sequences_of_collectors(
    case: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    run = train(tmp_path, case, collectors=2, num_envs=4, eval_episodes=1, **settings)
    assert run.status == "finished"
    assert run.evaluation.version >= 100


@pytest.mark.parametrize("collectors", [0, 2])
def test_stored_states_are_those_that_acted(collectors: int, tmp_path: Path) -> None:
    """Each gives the next one, with weights that do not change; random steps advance it, and episodes reset it."""
    run = train(tmp_path, learning_rate=0.0, num_envs=2, collectors=collectors)
    rows = stored_rows(run, max(1, collectors))
    assert len(rows["step"]) == 160
    begins = rows["step"] == 0
    assert (rows["carry"][begins] == 0).all()
    assert (rows["carry"][~begins] != 0).any(1).all()
    _, after, _ = run.policy().policy.act(rows["obs"], rows["carry"], None)
    goes_on = np.flatnonzero(~begins[1:])
    assert len(goes_on) > 140
    np.testing.assert_allclose(after[goes_on], rows["carry"][goes_on + 1], rtol=0, atol=1e-6)


def test_stored_states_replayed_give_the_same_actions() -> None:
    """Where weights have not changed."""
    agent = offbeat.Agent("sac", "Pendulum-v1", **{**AGENT, "random_steps": 10})
    env, policy = gymnasium.make("Pendulum-v1", max_episode_steps=20), agent.policy(1)
    policy.load(agent.publication().weights)
    obs, _ = env.reset(seed=0)
    acted = []
    for _ in range(60):
        action = agent.act(obs, deterministic=True)
        acted.append(action / 2.0)
        following, reward, terminated, truncated, _ = env.step(action)
        agent.observe(obs, action, reward, following, terminated, truncated)
        obs = env.reset()[0] if terminated or truncated else following
    shard = agent.training.shards["0"]
    rows = shard.gather(np.arange(60))
    assert sorted(rows["episode"].tolist()) == [0] * 20 + [1] * 20 + [2] * 20
    action, carry, _ = policy.act(rows["obs"], rows["carry"], None)
    np.testing.assert_allclose(action, np.array(acted), rtol=0, atol=1e-5)
    goes_on = np.flatnonzero(rows["step"][1:] > 0)
    np.testing.assert_allclose(carry[goes_on], rows["carry"][goes_on + 1], rtol=0, atol=1e-6)
    assert (rows["carry"][rows["step"] == 0] == 0).all()


def test_random_steps_advance_the_state_of_a_loop_of_ones_own() -> None:
    agent = offbeat.Agent("sac", "Pendulum-v1", **{**AGENT, "random_steps": 50})
    obs = np.zeros((2, 3), np.float32)
    for step in range(8):
        action = agent.act(obs + step)
        agent.observe(obs + step, action, [0.0, 0.0], obs + step + 1, [False, step == 3], [False, False])
    rows = agent.training.shards["0"].gather(np.arange(16))
    zero = (rows["carry"] == 0).all(1)
    np.testing.assert_array_equal(zero, rows["step"] == 0)
    assert zero.sum() == 3
    assert isinstance(agent.experience, SequenceReplay)
    agent.update(3)
    assert agent.learner.updates == 3


def test_random_steps_of_a_run_advance_the_state_also_where_it_is_not_stored(tmp_path: Path) -> None:
    run = train(tmp_path, start_state="zero", random_steps=70, warmup_steps=60, total_steps=70)
    assert np.abs(Checkpoints(run.path).load("latest").arrays["collector/carry"]).min() > 0


def test_observe_needs_the_state_that_acted_unless_sequences_begin_with_zeros() -> None:
    obs = np.zeros((2, 3), np.float32)
    transition = obs, np.zeros((2, 1)), np.zeros(2), obs, [False] * 2, [False] * 2
    with pytest.raises(UsageError, match=r"state that acted in environments \[0, 1\].*start_state='zero'"):
        offbeat.Agent("sac", "Pendulum-v1", **AGENT).observe(*transition)
    agent = offbeat.Agent("sac", "Pendulum-v1", **{**AGENT, "start_state": "zero"})
    for _ in range(10):
        agent.observe(*transition)
    assert "carry" not in agent.experience.schema.names
    agent.update(2)


def test_a_recurrent_agent_acts_for_all_its_environments_at_once() -> None:
    agent = offbeat.Agent("sac", "Pendulum-v1", **AGENT)
    agent.act(np.zeros((3, 3), np.float32))
    with pytest.raises(UsageError, match="2 observations, but this recurrent agent keeps the states of 3"):
        agent.act(np.zeros((2, 3), np.float32))


def test_evaluation_carries_a_state_for_each_environment(tmp_path: Path) -> None:
    run = train(tmp_path, "discrete sac", eval_episodes=6)
    policy, env, returns = run.policy(), gymnasium.make("CartPole-v1", max_episode_steps=30), []
    again = offbeat.evaluate(run.path, episodes=6)
    assert again.returns == run.evaluation.returns
    for _ in range(2):  # a new episode begins with a new state
        obs, _ = env.reset(seed=5)
        policy.reset()
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    assert returns[0] == returns[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequence_length": 29}, r"sequence_length=29 after burn_in=2 makes sequences of 31 steps.* at most 30"),
        ({"capacity": 100, "num_envs": 20}, r"capacity=100 keeps 5 steps of each of 20 .* need 7: .* at least 140"),
        ({"n_step": 4, "capacity": 18, "num_envs": 2, "warmup_steps": 10}, r"n_step=4 need 10: .* at least 20"),
        (
            {"total_steps": 90, "num_envs": 15},
            r"total_steps=90 makes 6 steps in each of 15 .* need 7: .* at least 105",
        ),
        ({"actor": "own_parts.nothing:here"}, "gives every network a recurrent trunk, but actor"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        train(tmp_path, **changes)
    assert not list(tmp_path.iterdir())


class Forgetful:
    """A user's exploration that drops what the policy gives besides actions."""

    def __init__(self, policy: Policy, spec: Any) -> None:
        self._policy, self.load, self.initial_carry = policy, policy.load, policy.initial_carry

    def act(self, obs: Any, carry: Any, rng: Any, step: int = 0, mask: Any = None) -> Any:
        action, carry, _ = self._policy.act(obs, carry, rng, step, mask)
        return action, carry, {}


def test_an_exploration_that_drops_the_state_is_refused() -> None:
    with pytest.raises(UsageError, match="without 'carry', which replay stores"):
        offbeat.Agent("td3", vector_spec(3, 1), **AGENT, exploration=Forgetful)


def test_a_batch_has_32_sequences_by_default() -> None:
    for network, size in (("mlp", 256), ("gru", 32), ("lstm", 32)):
        assert offbeat.Agent("sac", vector_spec(3, 1), network=network).config.learner.replay.batch_size == size
    assert offbeat.Agent("sac", vector_spec(3, 1), network="gru", batch_size=7).config.learner.replay.batch_size == 7


def test_a_saved_agent_goes_on_with_its_states(tmp_path: Path) -> None:
    first, second = (offbeat.Agent("sac", vector_spec(3, 1), **AGENT) for _ in range(2))
    obs, rng = np.zeros((2, 3), np.float32), np.random.default_rng(0)

    def loop(agent: Any, steps: int, rng: np.random.Generator) -> Any:
        for _ in range(steps):
            seen, following = (rng.standard_normal((2, 3)).astype(np.float32) for _ in range(2))
            action = agent.act(seen)
            agent.observe(seen, action, [1.0, 2.0], following, [False, rng.random() < 0.1], [False, False])
        return agent.update(2)

    loop(first, 30, rng)
    first.save(tmp_path)
    second.load(tmp_path)
    states = [loop(agent, 30, np.random.default_rng(1)) for agent in (first, second)]
    assert states[0] == states[1]
    np.testing.assert_array_equal(first.act(obs), second.act(obs))
