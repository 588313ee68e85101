"""Every parameter of our SAC and TD3 learners, and of parts around them, changes what it says and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from unilab_learner import small

from offbeat.compat.unilab import SACLearner, TD3Learner
from offbeat.compat.unilab.algos.torch.fast_sac.learner import SACActor
from offbeat.compat.unilab.algos.torch.fast_td3.learner import TD3Actor
from offbeat.compat.unilab.algos.torch.offpolicy.actors import build_actor
from offbeat.compat.unilab.ipc.async_runner import AsyncRunner
from offbeat.compat.unilab.rsl_rl.modules import EmpiricalNormalization, GaussianDistribution
from offbeat.errors import UsageError

SMALL = {"actor_hidden_dim": 8, "critic_hidden_dim": 8}
LEARNERS = [SACLearner, TD3Learner]


def batch(rows: int = 16, critic: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    found = {"obs": normal(rows, 3), "next_obs": normal(rows, 3), "actions": torch.tanh(normal(rows, 2))}
    found |= {"rewards": 10.0 * normal(rows), "dones": torch.zeros(rows)}
    return found | ({"critic": normal(rows, critic), "next_critic": normal(rows, critic)} if critic else {})


def learned(kind: Any, updates: int = 3, **options: Any) -> dict[str, torch.Tensor]:
    """Everything that learning changes, after some updates on one batch, from the same first weights and noise."""
    torch.manual_seed(0)
    learner = kind(3, 2, **{**SMALL, **options})
    torch.manual_seed(1)
    rows = batch(critic=5 if options.get("critic_obs_dim") else 0)
    for _ in range(updates):
        learner.update_critic(rows)
        learner.update_actor(rows)
        learner.soft_update_target()
    found: dict[str, torch.Tensor] = learner.get_state_dict()["learner"]
    return found


def changed(kind: Any, options: dict[str, Any], updates: int = 1, **usually: Any) -> set[str]:
    """The networks that a parameter changes: actor, critic, target, target_actor, log_temperature."""
    usual, other = learned(kind, updates, **usually), learned(kind, updates, **usually, **options)
    names = {name for name in usual if "optimiser" not in name}
    return {name.split("/")[0] for name in names if not torch.equal(usual[name], other[name])}


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"gamma": 0.5}, {"critic", "target", "actor"}),
        ({"tau": 0.5}, {"target"}),
        ({"actor_lr": 1e-2}, {"actor"}),
        ({"critic_lr": 1e-2}, {"critic", "target", "actor"}),
        ({"alpha_lr": 1e-2}, {"log_temperature"}),
        ({"alpha_init": 0.5}, {"log_temperature", "critic", "target", "actor"}),
        ({"target_entropy_ratio": -9.0}, {"log_temperature"}),
        ({"use_autotune": False}, {"log_temperature"}),
        ({"weight_decay": 0.5}, {"critic", "target", "actor"}),
        ({"max_grad_norm": 1e-9}, {"critic", "target", "actor"}),
        ({"log_std_max": -2.0}, {"critic", "target", "actor", "log_temperature"}),
    ],
)
def test_a_parameter_of_sac_changes_its_networks(options: dict[str, Any], parts: set[str]) -> None:
    assert changed(SACLearner, options) == parts


def test_the_least_deviation_of_sac_acts_in_updates() -> None:
    parts = {"critic", "target", "actor", "log_temperature"}
    assert changed(SACLearner, {"log_std_min": 1.5}, updates=3, log_std_max=2.0) == parts


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"gamma": 0.5}, {"critic", "target", "actor", "target_actor"}),
        ({"tau": 0.5}, {"target", "target_actor"}),
        ({"actor_lr": 1e-2}, {"actor", "target_actor"}),
        ({"critic_lr": 1e-2}, {"critic", "target", "actor", "target_actor"}),
        ({"weight_decay": 0.5}, {"critic", "target", "actor", "target_actor"}),
        ({"max_grad_norm": 1e-9}, {"critic", "target", "actor", "target_actor"}),
        ({"policy_noise": 0.9}, {"critic", "target", "actor", "target_actor"}),
        ({"num_envs": 7, "log_std_min": -1.0, "log_std_max": 1.0}, set()),  # of exploration only
    ],
)
def test_a_parameter_of_td3_changes_its_networks(options: dict[str, Any], parts: set[str]) -> None:
    assert changed(TD3Learner, options) == parts


def test_noise_clip_bounds_the_noise_of_target_actions() -> None:
    assert changed(TD3Learner, {"noise_clip": 0.01}, updates=3) == {"critic", "target", "actor", "target_actor"}
    assert changed(TD3Learner, {"noise_clip": 0.5}, updates=3, policy_noise=0.01) == set()  # beyond all noise


def test_tau_is_the_share_by_which_targets_move_and_rates_of_0_stop() -> None:
    for kind in LEARNERS:
        whole = learned(kind, tau=1.0)
        assert torch.equal(whole["target/0/weight"], whole["critic/0/weight"])
        still, first = learned(kind, actor_lr=0.0, critic_lr=0.0, weight_decay=0.0), learned(kind, 0)
        assert torch.equal(still["actor/0/weight"], first["actor/0/weight"])
        assert torch.equal(still["critic/0/weight"], first["critic/0/weight"])


def test_the_temperature_begins_at_alpha_init_and_follows_the_target_entropy() -> None:
    first = learned(SACLearner, 0, alpha_init=0.3)["log_temperature"].exp()
    assert float(first) == pytest.approx(0.3)
    high, low = (learned(SACLearner, alpha_init=0.3, target_entropy_ratio=each) for each in (-50.0, 50.0))
    assert low["log_temperature"].exp() < 0.3 < high["log_temperature"].exp()  # a target of +100, of -100
    assert float(learned(SACLearner, alpha_init=0.3, use_autotune=False)["log_temperature"].exp()) == pytest.approx(0.3)


@pytest.mark.parametrize("kind", LEARNERS)
def test_sizes_of_networks(kind: Any) -> None:
    found = learned(kind, 0, actor_hidden_dim=16, critic_hidden_dim=12)
    assert found["actor/0/weight"].shape == (3, 16)
    assert found["actor/2/weight"].shape == (8, 4)
    assert found["critic/0/weight"].shape == (2, 5, 12)
    assert "actor/0/norm/scale" in found
    assert "critic/0/norm/scale" in found
    assert not [name for name in learned(kind, 0, use_layer_norm=False) if "norm" in name]
    wide = learned(kind, 1, critic_obs_dim=5)
    assert wide["critic/0/weight"].shape == (2, 10, 8)
    assert learned(kind, 0, critic_obs_dim=3)["critic/0/weight"].shape == (2, 5, 8)  # as large as obs: obs itself
    other = kind(4, 3, **SMALL)
    assert other.actor(torch.zeros(1, 4)).shape == (1, 6 if kind is SACLearner else 3)
    with pytest.raises(UsageError, match="device='warp'"):
        kind(3, 2, device="warp", **SMALL)


def test_sac_may_have_more_critics() -> None:
    assert learned(SACLearner, 1, num_q_networks=3)["critic/0/weight"].shape == (3, 5, 8)


@pytest.mark.parametrize("kind", [SACActor, TD3Actor])
def test_exploration_of_our_actors(kind: Any) -> None:
    obs = torch.zeros(4_000, 3)
    envs = {"num_envs": len(obs)} if kind is TD3Actor else {}

    def spread(**options: Any) -> float:
        torch.manual_seed(0)
        actor = kind(3, 1, hidden_dim=8, **envs, **options)
        still = actor.explore(obs, deterministic=True)
        assert torch.equal(still, actor.explore(obs, deterministic=True))
        return float((actor.explore(obs) - still).std())

    varied = kind(3, 1, hidden_dim=8, **envs).explore(torch.randn(len(obs), 3), deterministic=True)
    assert float(varied.std()) > 0.01  # actions are of the observations
    narrow, usual = spread(log_std_min=-5.0, log_std_max=-4.0), spread(log_std_min=-5.0, log_std_max=1.0)
    assert narrow < 0.02 < 0.4 < usual < spread(log_std_min=0.9, log_std_max=1.0) - 0.1
    assert len(kind(3, 1, hidden_dim=8).state_dict()) > len(kind(3, 1, hidden_dim=8, use_layer_norm=False).state_dict())


@pytest.mark.parametrize("algo_type", ["sac", "td3"])
def test_an_actor_is_built_for_so_many_environments_on_a_device(algo_type: str) -> None:
    built = build_actor(algo_type, 3, 2, 8, use_layer_norm=False, num_envs=5)
    assert next(built.parameters()).device.type == "cpu"
    assert algo_type == "sac" or built.noise_scales.shape == (5, 1)
    elsewhere = build_actor(algo_type, 3, 2, 8, use_layer_norm=False, device="meta")
    assert next(elsewhere.parameters()).device.type == "meta"


def test_td3_draws_a_scale_of_noise_for_each_environment_whose_episode_begins() -> None:
    torch.manual_seed(0)
    learner = TD3Learner(3, 2, num_envs=5, log_std_min=-2.0, log_std_max=-1.0, **SMALL)
    before = learner.actor.noise_scales.clone()
    assert before.shape == (5, 1)
    assert bool(((before >= torch.tensor(-2.0).exp()) & (before <= torch.tensor(-1.0).exp())).all())
    learner.actor.explore(torch.zeros(5, 3), torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0]))
    assert (learner.actor.noise_scales != before).flatten().tolist() == [False, True, False, False, True]


@pytest.mark.parametrize("kind", LEARNERS)
def test_the_runner_acts_with_the_bounds_of_the_learner_unless_actor_kwargs_has_others(kind: Any) -> None:
    learner = kind(3, 1, log_std_min=-4.0, log_std_max=-3.0, **SMALL)
    own = small(learner, algo_type=kind.algo_type, actor_hidden_dim=8)._actor
    other = small(learner, algo_type=kind.algo_type, actor_hidden_dim=8, actor_kwargs={"log_std_max": -1.0})._actor
    assert (own.log_std_min, own.log_std_max) == (-4.0, -3.0)
    assert (other.log_std_min, other.log_std_max) == (-4.0, -1.0)


def test_a_runner_of_your_own_has_what_it_was_made_with(tmp_path: Path) -> None:
    class Own(AsyncRunner):
        pass

    settings: dict[str, Any] = {"sim_backend": "sync", "num_envs": 3, "device": "cpu", "collector_device": "cuda:1"}
    runner = Own("Pendulum-v1", {"g": 9.0}, {"gamma": 0.9}, **settings)
    assert (runner.env_name, runner.env_cfg_overrides, runner.rl_cfg) == ("Pendulum-v1", {"g": 9.0}, {"gamma": 0.9})
    assert {name: getattr(runner, name) for name in settings} == settings
    assert Own("x", {}, {}, device="cpu").collector_device == "cpu"
    with pytest.raises(NotImplementedError, match="Own has no learn; use a runner such as OffPolicyRunner"):
        runner.learn(1, log_dir=str(tmp_path))


def test_statistics_have_an_epsilon_and_an_end() -> None:
    rows = torch.tensor([[0.0], [2.0]])
    for epsilon in (0.5, 1.0):
        normaliser = EmpiricalNormalization(1, eps=epsilon)
        normaliser.update(rows)
        assert normaliser(rows).flatten().tolist() == pytest.approx([-1.0 / (1.0 + epsilon), 1.0 / (1.0 + epsilon)])
    ended = EmpiricalNormalization(1, until=2)
    for _ in range(3):
        ended.update(rows + float(ended.count))
    assert int(ended.count) == 2


@pytest.mark.parametrize(("std_type", "name", "moved"), [("scalar", "std_param", 0.8), ("log", "log_std_param", None)])
def test_the_type_of_a_deviation_is_what_is_learned(std_type: str, name: str, moved: float | None) -> None:
    gaussian = GaussianDistribution(2, init_std=0.5, std_range=(0.1, 2.0), std_type=std_type)
    assert gaussian.log_std().exp().tolist() == pytest.approx([0.5, 0.5])
    with torch.no_grad():
        gaussian.get_parameter(name).add_(0.3)
    expected = moved or 0.5 * float(torch.tensor(0.3).exp())
    assert gaussian.log_std().exp().tolist() == pytest.approx([expected] * 2)
    with torch.no_grad():
        gaussian.get_parameter(name).add_(9.0)
    assert gaussian.log_std().exp().tolist() == pytest.approx([2.0, 2.0])
