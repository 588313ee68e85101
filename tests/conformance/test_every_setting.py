"""Every setting of every algorithm changes what is learned or how it acts; a new one without a change here fails."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from test_every_run_setting import OF_COLLECTED_ROLLOUTS
from torch import nn

import offbeat
from offbeat.algorithms.registry import ALGORITHMS
from offbeat.algorithms.torch.differentiate import Network
from offbeat.policies import Policy
from offbeat.settings import Setting, own_settings
from offbeat.types import Chunk, EnvSpec, Schema
from specs import choice_spec, vector_spec

SMALL: dict[str, Any] = {"hidden": (16, 16), "batch_size": 32, "total_updates": 20, "warmup_steps": 1}
UPDATES = 6
FROM_ROLLOUTS = ("ppo", "appo")
ROLLOUTS: dict[str, Any] = {"hidden": (16, 16), "rollout_steps": 32, "epochs": 2, "minibatches": 4, "total_steps": 200}


def own_actor(spec: EnvSpec) -> nn.Module:
    outputs = (2 if ALGORITHM in ("sac", "redq") else 1) * spec.action_size
    last = [nn.Tanh()] if ALGORITHM in ("td3", "ddpg") else []
    return nn.Sequential(nn.Linear(spec.observation_size, outputs), *last)


class OwnCritic(nn.Module):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        of_actions = spec.choices is None and ALGORITHM not in FROM_ROLLOUTS
        self.linear = nn.Linear(spec.observation_size + spec.action_size * of_actions, spec.choices or 1)

    def forward(self, obs: torch.Tensor, *action: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.cat((obs, *action), 1))


def fading(progress: float, power: float = 1.0) -> float:
    return float((1.0 - 0.5 * progress) ** power)


class Shifted:
    """A policy whose actions are shifted, or are the first choice, while it explores."""

    def __init__(self, policy: Policy, spec: EnvSpec, shift: float) -> None:
        self._policy, self._spec, self._shift = policy, spec, shift
        self.load, self.initial_carry = policy.load, policy.initial_carry

    def act(self, obs: Any, carry: Any, rng: Any, step: int = 0, mask: Any = None) -> Any:
        action, carry, extras = self._policy.act(obs, carry, rng, step, mask)
        if rng is not None:
            action = action * self._shift
        return action, carry, extras


def early(policy: Policy, spec: EnvSpec) -> Policy:
    return Shifted(policy, spec, 0.5)


def late(policy: Policy, spec: EnvSpec) -> Policy:
    return Shifted(policy, spec, 0.0)


class Doubled:
    """A preprocessor that doubles observations."""

    def __init__(self, spec: Any) -> None: ...

    def update(self, observations: Any) -> None: ...

    def __call__(self, observations: Any) -> Any:
        return 2.0 * observations

    def arrays(self) -> dict[str, Any]:
        return {}

    def restore(self, arrays: Any) -> None: ...


ALGORITHM = ""
DRIFT = {"exploration": "ornstein_uhlenbeck"}
MEMORY = {"network": "gru", "recurrent_size": 8, "sequence_length": 4}
# Another value for each setting, by its flat name, or one for each algorithm, "" for those that are not named; a pair
# adds what has to be set besides.
CHANGED: dict[str, Any] = {
    "gamma": 0.5,
    "tau": (0.5, {"target_every": 2}),
    "target_every": 3,
    "batch_size": 16,
    "n_step": 3,
    "hidden": (8,),
    "activation": {"": "tanh", "ppo": "relu", "appo": "relu"},
    "layer_norm": True,
    "network": ("lstm", MEMORY),
    "recurrent_size": (6, MEMORY),
    "recurrent_layers": (2, MEMORY),
    "sequence_length": (8, MEMORY),
    "burn_in": (2, MEMORY),
    "start_state": ("zero", MEMORY),
    "max_grad_norm": 1e-3,
    "adam_epsilon": 1e-2,
    "gradients": "autograd",
    "compile": "default",
    "normalise_observations": True,
    "observation_clip": (0.1, {"normalise_observations": True}),
    "reward_scale": 3.0,
    "normalise_rewards": True,
    "critics": 3,
    "critic_hidden": (8,),
    "actor_learning_rate": 1e-2,
    "critic_learning_rate": 1e-2,
    "temperature_learning_rate": 1e-2,
    "learning_rate": 1e-2,
    "actor_schedule": "linear",
    "critic_schedule": "linear",
    "temperature_schedule": "linear",
    "schedule": "cosine",
    "actor_every": 3,
    "actor": own_actor,
    "critic": OwnCritic,
    "temperature": "fixed",
    "temperature_initial": 0.3,
    "temperature_target_entropy": 5.0,
    "temperature_value": 0.7,
    "log_std_min": 1.5,
    "log_std_max": -1.0,
    "target_subset": (1, {"critics": 3, "target_subset": 2}),  # the same draws are taken, and others are heeded
    "actor_value": {"sac": "mean", "redq": "min"},
    "critic_layer_norm": True,
    "critic_dropout": 0.3,
    "target_noise": 0.9,
    "target_noise_clip": (0.01, {"target_noise": 0.5}),
    "exploration": "none",
    "exploration_scale": 0.7,
    "exploration_spread": 5.0,
    "exploration_pull": (5.0, DRIFT),
    "exploration_time_step": (0.5, DRIFT),
    "exploration_initial": 0.2,
    "exploration_final": 0.9,
    "exploration_steps": 50,
    "exploration_make": (late, {"exploration": "own", "exploration_make": early}),
    "exploration_decay": "exponential",
    "loss": "mse",
    "double_q": False,
    "dueling": True,
    "rollout_steps": 16,
    "epochs": 3,
    "minibatches": 2,
    "rate_control": "adaptive",
    "rate_control_desired_kl": {"": 1.0, "appo": 1e-9},
    "rate_control_divergence": "exact",
    "rate_control_kl_factor": 100.0,
    "rate_control_factor": 3.0,
    "rate_control_lowest": 5e-3,
    "rate_control_highest": 1e-4,
    "preprocessor": Doubled,
    "optimiser": "rmsprop",
    "adam_betas": (0.5, 0.9),
    "weight_decay": (0.5, {"optimiser": "adamw"}),
    "schedule_kwargs": ({"power": 0.5}, {"schedule": fading}),
    "gae_lambda": 0.5,
    "clip": 1e-3,
    "clip_schedule": ("linear", {"clip": 1e-3}),
    "target_kl": 1e-9,
    "value_coefficient": 1.0,
    "value_clip": 1e-4,
    "entropy_coefficient": 0.1,
    "entropy_schedule": ("linear", {"entropy_coefficient": 0.1}),
    "normalise_advantages": False,
    "normalise_over": "rollout",
    "reward_clip": 0.5,
    "squash": True,
    "state_dependent_std": True,
    "initial_log_std": -1.0,
    "rho_bar": 0.5,
    "c_bar": 0.5,
    "advantage_rho_bar": 0.5,
    "ratio_cap": 0.5,
    "sample_reuse": 2,
}


def rows(spec: EnvSpec, count: int = 200) -> Chunk:
    rng, index = np.random.default_rng(0), np.arange(count)
    action = rng.uniform(-1, 1, (count, spec.action_size)) if spec.choices is None else spec.random_actions(rng, count)
    columns = {
        "obs": rng.standard_normal((count, spec.observation_size)),
        "action": action,
        "reward": 3.0 * rng.standard_normal(count),
        "next_obs": rng.standard_normal((count, spec.observation_size)),
        "terminated": index % 9 == 8,
        "truncated": np.zeros(count, bool),
        "version": np.zeros(count, np.int32),
        "env": np.zeros(count, np.uint16),
        "episode": index // 9,
        "step": index % 9,
    }
    floats = {name: column.astype(np.float32) for name, column in columns.items() if column.dtype == np.float64}
    return Chunk({**columns, **floats})


def with_states(chunk: Chunk, schema: Schema) -> Chunk:
    """With a recurrent state where the schema has one."""
    if "carry" not in schema.names:
        return chunk
    carry = np.random.default_rng(4).standard_normal((len(chunk), schema["carry"].size)).astype(np.float32)
    return Chunk({**chunk.columns, "carry": carry})


def _learn_from_rollouts(agent: offbeat.Agent) -> None:
    """Row by row, with each rollout learned from when it is complete. Others acted: some ratios are clipped."""
    columns = dict(with_states(rows(agent.spec), agent.experience.schema).columns)
    normal = -(0.5 * columns["action"] ** 2 + 0.5 * np.log(2 * np.pi)).sum(1)
    columns["log_prob"] = (normal + 0.3 * np.random.default_rng(3).standard_normal(len(normal))).astype(np.float32)
    for row in range(80):
        agent.add(Chunk({name: column[row : row + 1] for name, column in columns.items()}))
        while due := agent.training.due():
            agent.training.learn(due)


def _seen(algorithm: str, settings: dict[str, Any], compiled: list[str]) -> list[Any]:
    """All that can be seen of an agent that has learned a little: its state, its metrics, its actions."""
    global ALGORITHM
    ALGORITHM = algorithm
    compiled.clear()
    spec = choice_spec(5, 3) if algorithm == "dqn" else vector_spec(5, 2)
    if algorithm in FROM_ROLLOUTS:
        agent = offbeat.Agent(algorithm, spec, **{**ROLLOUTS, **settings})
        _learn_from_rollouts(agent)
    else:
        own = {"hidden"} if algorithm == "dqn" and "critic" in settings else set()  # an own network has its own layers
        small = {name: value for name, value in SMALL.items() if name not in own}
        small |= {"actor_every": 1} if algorithm == "redq" else {}  # or the actor would not learn in so few updates
        agent = offbeat.Agent(algorithm, spec, **{**small, **settings})
        agent.add(with_states(rows(spec), agent.experience.schema))
        agent.training.learn(UPDATES)
    policy, rng, obs = agent.policy(31), np.random.default_rng(1), np.random.default_rng(2).standard_normal((31, 5))
    policy.load(agent.publication().weights)
    carry, actions = policy.initial_carry(31), []
    for step in (0, 5_000, 5_001, 5_002):
        action, carry, _ = policy.act(obs.astype(np.float32), carry, rng, step)
        actions.append(action.tolist())
    networks = [value for value in vars(agent.learner.backend.state).values() if isinstance(value, Network)]
    state = {name: array.tolist() for name, array in sorted(agent.learner.arrays().items())}
    return [state, agent.learner.drain(), actions, [each.explicit for each in networks], list(compiled)]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modes that torch.compile was asked for; nothing is compiled."""
    modes: list[str] = []

    def compile(module: Any, mode: str) -> Any:
        modes.append(mode)
        return module

    monkeypatch.setattr(torch, "compile", compile)
    return modes


def _cases() -> list[Any]:
    return [
        pytest.param(algorithm, each, id=f"{algorithm}-{each.name}")
        for algorithm in ALGORITHMS
        for each in own_settings(algorithm)
        if each.name not in OF_COLLECTED_ROLLOUTS
    ]


_usual: dict[str, list[Any]] = {}


def _usually_seen(algorithm: str, besides: dict[str, Any], compiled: list[str]) -> list[Any]:
    """Without the change, once for all settings that are compared with it."""
    key = repr((algorithm, besides))
    if key not in _usual:
        _usual[key] = _seen(algorithm, besides, compiled)
        assert _usual[key] == _seen(algorithm, besides, compiled), "what is compared must repeat"
    return _usual[key]


def change_of(algorithm: str, setting: Setting) -> tuple[dict[str, Any], Any]:
    """What has to be set besides, and another value of the setting."""
    assert setting.name in CHANGED, f"{setting.name} has no behavioural test: add another value for it to CHANGED"
    value, besides = CHANGED[setting.name], {setting.union: setting.of[0]} if setting.union else {}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
        value, besides = value[0], {**besides, **value[1]}
    if isinstance(value, dict) and setting.name != "schedule_kwargs":
        value = value.get(algorithm, value.get(""))
    if besides.get("schedule") is fading and algorithm not in ("dqn", *FROM_ROLLOUTS):
        besides = {"critic_schedule": fading}
    return besides, value


@pytest.mark.parametrize(("algorithm", "setting"), _cases())
def test_every_setting_of_an_algorithm_changes_something(algorithm: str, setting: Setting, compiled: list[str]) -> None:
    besides, value = change_of(algorithm, setting)
    torch.set_num_threads(1)
    # Which pass gradients go through is what only these two are for; what others change is in what was learned.
    compared = slice(None) if setting.name in ("gradients", "compile") else slice(3)
    default = _usually_seen(algorithm, besides, compiled)[compared]
    assert _seen(algorithm, {**besides, setting.name: value}, compiled)[compared] != default


def test_no_change_is_for_a_setting_that_is_gone() -> None:
    names = {each.name for algorithm in ALGORITHMS for each in own_settings(algorithm)}
    assert set(CHANGED) | set(OF_COLLECTED_ROLLOUTS) == names


def test_discrete_sac_heeds_what_box_actions_heed() -> None:
    """The settings that SAC's file for Discrete actions reads by itself."""
    for settings in ({"actor_every": 3}, {"target_every": 3}, {"target_subset": 1}, {"actor_value": "mean"}):
        states = []
        for changes in ({}, settings):
            agent = offbeat.Agent("sac", choice_spec(5, 3), **SMALL, **changes)
            agent.add(rows(agent.spec))
            agent.training.learn(UPDATES)
            states.append({name: array.tolist() for name, array in agent.learner.arrays().items()})
        assert states[0] != states[1], settings


def test_cartpole_trains_with_every_algorithm_that_takes_discrete_actions(tmp_path: Any) -> None:
    for algorithm in ("dqn", "sac", *FROM_ROLLOUTS):
        settings = {"rollout_steps": 64} if algorithm in FROM_ROLLOUTS else {"warmup_steps": 100}
        run = offbeat.train(
            algorithm,
            "CartPole-v1",
            preset=None,
            total_steps=300,
            hidden=(16,),
            eval_episodes=2,
            out=str(tmp_path),
            quiet=True,
            **settings,
        )
        policy = run.policy()
        env = gymnasium.make("CartPole-v1")
        obs, _ = env.reset(seed=0)
        assert env.action_space.contains(policy.act(obs))
        assert env.action_space.contains(policy.act(obs, deterministic=False))
