"""`APPOLearner` beside its numbers: time-outs, targets, weights, warnings, what it refuses; and `MLPModel`."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
import unilab_rollouts as rollouts
from torch import nn
from unilab_rollouts import ACTIONS, ENVS, GROUPS, OBS, STEPS

from offbeat.compat.unilab import APPOLearner, MLPModel, vtrace_advantages
from offbeat.compat.unilab.rsl_rl.modules import EmpiricalNormalization, GaussianDistribution
from offbeat.errors import UsageError

EXACT = {"rtol": 0.0, "atol": 1e-12}


# Time-outs.


def processed(batch: dict[str, Any], **options: Any) -> dict[str, Any]:
    return rollouts.learner(gamma=0.9, lam=0.7, **options).process_batch(dict(batch))


@pytest.mark.parametrize("name", ["time_outs", "truncated"])
def test_an_episode_that_ends_by_time_is_bootstrapped_from_what_followed(name: str) -> None:
    """As if gamma V(final) had been added to the reward of a terminal row, in either name."""
    batch = rollouts.rollout(1)
    by_time = batch["dones"] * (torch.arange(STEPS).unsqueeze(1) % 2)
    assert 0 < by_time.sum() < batch["dones"].sum()
    final = torch.randn(STEPS, ENVS, OBS, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    critic = rollouts.learner().critic
    with torch.no_grad():
        corrected = batch["rewards"] + 0.9 * critic(final).squeeze(-1) * by_time
    wanted = processed({**batch, "rewards": corrected})
    found = processed({**batch, name: by_time, "final_obs": final})
    for column in ("returns", "advantages"):
        torch.testing.assert_close(found[column], wanted[column], **EXACT)
        assert not torch.equal(found[column], processed(batch)[column])


def test_without_a_final_observation_the_value_of_the_last_one_counts() -> None:
    batch = rollouts.rollout(2)
    critic = rollouts.learner().critic
    with torch.no_grad():
        corrected = batch["rewards"] + 0.9 * critic(batch["observations"]).squeeze(-1) * batch["dones"]
    wanted = processed({**batch, "rewards": corrected})
    torch.testing.assert_close(processed({**batch, "time_outs": batch["dones"]})["returns"], wanted["returns"], **EXACT)


def test_a_critic_with_observations_of_its_own_is_bootstrapped_from_them() -> None:
    batch = rollouts.rollout(3, critic=True)
    final = torch.zeros(STEPS, ENVS, rollouts.CRITIC, dtype=torch.float64)
    ended = {**batch, "time_outs": batch["dones"]}
    plain, other = (processed({**ended, **more}, critic_size=7) for more in ({}, {"final_critic": final}))
    assert not torch.equal(plain["returns"], other["returns"])
    assert torch.equal(plain["target_log_probs"], other["target_log_probs"])


# Targets, weights and statistics.


def test_the_target_follows_by_tau_and_its_buffers_are_copied() -> None:
    learner = rollouts.learner(tau=0.25, normalise=True, target_update_freq=100)
    before = copy.deepcopy(learner.target_actor)
    learner.update(rollouts.rollout(0))
    for slow, old in zip(learner.target_actor.parameters(), before.parameters(), strict=True):
        assert torch.equal(slow, old)
    learner.update_target_network()
    pairs = zip(learner.target_actor.parameters(), before.parameters(), learner.actor.parameters(), strict=True)
    for slow, old, new in pairs:
        torch.testing.assert_close(slow, 0.25 * new + 0.75 * old, **EXACT)
    learner.actor.obs_normalizer._mean.fill_(3.0)
    learner.sync_target_actor_buffers()
    assert (learner.target_actor.obs_normalizer.mean == 3.0).all()


def test_weights_are_the_actors_state_with_its_statistics() -> None:
    learner = rollouts.learner(normalise=True)
    learner.process_batch(rollouts.rollout(0))
    weights = learner.get_weights()
    assert weights["obs_normalizer.count"] == STEPS * ENVS + ENVS
    worker = rollouts.learner(normalise=True).actor
    worker.load_state_dict(weights)
    obs = torch.randn(4, OBS, dtype=torch.float64)
    assert torch.equal(worker(obs), learner.actor(obs))
    assert learner.get_state_dict().keys() >= {"actor", "critic", "optimizer"}


def test_the_models_that_were_passed_are_the_ones_that_learn() -> None:
    learner = rollouts.learner()
    before = copy.deepcopy(learner.actor), copy.deepcopy(learner.critic)
    metrics = learner.update(rollouts.rollout(0))
    for model, old in zip((learner.actor, learner.critic), before, strict=True):
        assert all(not torch.equal(new, then) for new, then in zip(model.parameters(), old.parameters(), strict=True))
    assert metrics["appo/updates_executed"] == 20
    assert metrics == learner.last_update_metrics
    assert {"surrogate_loss", "value_loss", "entropy", "kl"} <= metrics.keys()


def test_update_processes_a_rollout_that_was_not_and_leaves_the_callers_as_it_is() -> None:
    one, other = rollouts.learner(), rollouts.learner()
    batch = rollouts.rollout(0)
    torch.manual_seed(1)
    one.update(batch)
    assert "returns" not in batch
    torch.manual_seed(1)
    other.update(other.process_batch(batch))
    assert {"values", "returns", "advantages", "target_log_probs"} <= batch.keys()
    for mine, theirs in zip(one.actor.parameters(), other.actor.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_rows_that_do_not_divide_into_minibatches_are_all_learned_from() -> None:
    learner = rollouts.learner(num_mini_batches=5, num_learning_epochs=1)  # 24 rows: 5, 5, 5, 5, 4
    assert learner.update(rollouts.rollout(0))["appo/updates_executed"] == 5


def test_a_model_with_rsl_rls_attributes_will_do() -> None:
    """Only mlp, obs_normalizer and a distribution with std_type and its parameter are read."""

    class Gaussian(nn.Module):
        std_type = "scalar"

        def __init__(self) -> None:
            super().__init__()
            self.std_param = nn.Parameter(torch.ones(ACTIONS))

    class Model(nn.Module):
        def __init__(self, outputs: int, distribution: nn.Module | None) -> None:
            super().__init__()
            self.mlp, self.obs_normalizer, self.distribution = nn.Linear(OBS, outputs), nn.Identity(), distribution

    learner = APPOLearner(Model(ACTIONS, Gaussian()).double(), Model(1, None).double())  # type: ignore[arg-type]
    learner.update(rollouts.rollout(0))
    assert not torch.equal(learner.actor.distribution.std_param, torch.ones(ACTIONS).double())  # type: ignore[union-attr]


# Settings that are not numbers.


def test_an_unknown_keyword_warns_by_its_name() -> None:
    with pytest.warns(UserWarning, match="rnd_cfg=3"):
        rollouts.learner(rnd_cfg=3)


def test_compilation_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []

    def compiled(module: Any, mode: str) -> Any:
        modes.append(mode)
        return module

    monkeypatch.setattr(torch, "compile", compiled)
    rollouts.learner()
    assert modes == []
    rollouts.learner(enable_compile=True).update(rollouts.rollout(0))
    assert modes == ["default"] * 3  # actor, critic and target


def test_models_and_rollouts_are_moved_to_the_device() -> None:
    learner = rollouts.learner(device="cpu")
    batch = {name: column.float().numpy() for name, column in rollouts.rollout(0).items()}
    learner.update(batch)
    assert next(learner.actor.parameters()).device.type == learner.device == "cpu"
    with pytest.raises(UsageError, match="device='warp'"):
        rollouts.learner(device="warp")


# Bad input.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedule": "linear"}, "schedule='linear' is unknown; use fixed or adaptive"),
        ({"optimizer": "lion"}, "optimizer='lion' is unknown; use adam"),
        ({"num_learning_epochs": 0}, "num_learning_epochs=0"),
        ({"num_mini_batches": 0}, "num_mini_batches=0"),
        ({"target_update_freq": 0}, "target_update_freq=0"),
        ({"clip_param": 0.0}, "clip_param=0.0 is out of range: it must be more than 0"),
        ({"max_grad_norm": -1.0}, "max_grad_norm=-1.0"),
        ({"vtrace_clip_rho": 0.0}, "vtrace_clip_rho=0.0"),
        ({"vtrace_clip_c": 0.0}, "vtrace_clip_c=0.0"),
        ({"gamma": 1.5}, "gamma=1.5 is out of range: it must be from 0 to 1"),
        ({"lam": -0.1}, "lam=-0.1"),
        ({"tau": 2.0}, "tau=2.0"),
        ({"adaptive_kl_factor": 1.0}, "adaptive_kl_factor=1.0 is out of range: it must be more than 1"),
        ({"adaptive_lr_factor": 0.5}, "adaptive_lr_factor=0.5"),
        ({"entropy_coef": -0.1}, "entropy_coef=-0.1 is out of range: it must be at least 0"),
        ({"value_loss_coef": -1.0}, "value_loss_coef=-1.0 is out of range: it must be at least 0"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0 is out of range: it must be at least 0"),
        ({"schedule": "adaptive", "desired_kl": 0.0}, "desired_kl=0.0 is out of range: it must be more than 0"),
        ({"num_mini_batches": 2.5}, "num_mini_batches=2.5 is out of range: it must be a whole number of at least 1"),
        ({"max_grad_norm": None}, "max_grad_norm=None is not a finite number; it must be more than 0"),
        ({"entropy_coef": float("nan")}, "entropy_coef=nan is not a finite number; it must be at least 0"),
    ],
)
def test_a_setting_out_of_range_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        rollouts.learner(**options)


def test_models_that_do_not_fit_are_refused() -> None:
    actor, critic = rollouts.learner().actor, rollouts.learner().critic
    with pytest.raises(UsageError, match="actor is a Linear without mlp and obs_normalizer"):
        APPOLearner(nn.Linear(2, 2), critic)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"actor has no Gaussian output, .* distribution_cfg"):
        APPOLearner(critic, critic)
    with pytest.raises(UsageError, match="share the parameter"):
        APPOLearner(actor, actor)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"last_obs": None}, "batch has no last_obs; a rollout needs observations, actions"),
        ({"rewards": torch.zeros(STEPS + 1, ENVS)}, r"batch\['rewards'\] has shape \(7, 4\), .* must be \[6, 4\]"),
        ({"observations": torch.zeros(STEPS, OBS)}, r"must be \[T, N, D\]"),
        ({"critic": torch.zeros(STEPS, ENVS, 7)}, "only one of critic and last_critic"),
        ({"time_outs": torch.zeros(STEPS, ENVS, 1)}, r"batch\['time_outs'\]"),
        ({"last_obs": torch.zeros(ENVS + 1, OBS)}, r"batch\['last_obs'\] has shape \(5, 5\), .* must be \[4, 5\]"),
        ({"last_obs": torch.zeros(ENVS, OBS - 1)}, r"batch\['last_obs'\] has shape \(4, 4\), .* must be \[4, 5\]"),
        (
            {"observations": torch.zeros(STEPS, ENVS, 4)},
            r"batch\['observations'\] .* must be \[6, 4, 5\]",
        ),
        ({"actions": torch.zeros(STEPS, ENVS, 1)}, r"batch\['actions'\] has shape \(6, 4, 1\), .* must be \[6, 4, 2\]"),
        ({"final_obs": torch.zeros(STEPS, ENVS, 4)}, r"batch\['final_obs'\] has shape \(6, 4, 4\)"),
        (
            {"critic": torch.zeros(STEPS, ENVS, 7), "last_critic": torch.zeros(ENVS, 7)},
            r"batch\['critic'\] has shape \(6, 4, 7\), .* must be \[6, 4, 5\]",
        ),
    ],
)
def test_a_rollout_that_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    learner = rollouts.learner(normalise=True)
    before = copy.deepcopy(learner.get_state_dict())
    with pytest.raises(UsageError, match=words):
        learner.update({**rollouts.rollout(0), **change})
    for name in ("actor", "critic", "target_actor"):
        for key, tensor in learner.get_state_dict()[name].items():
            assert torch.equal(tensor, before[name][key])


def test_a_critic_with_observations_of_its_own_needs_them() -> None:
    learner = rollouts.learner(critic_size=7)
    with pytest.raises(UsageError, match="batch has no critic, but the critic takes 7 numbers and the actor 5: pass"):
        learner.update(rollouts.rollout(0))
    batch = rollouts.rollout(0, critic=True)
    with pytest.raises(UsageError, match=r"batch\['last_critic'\] has shape \(4, 6\), .* must be \[4, 7\]"):
        learner.update({**batch, "last_critic": batch["last_critic"][:, :6]})


def test_a_processed_rollout_that_was_changed_to_another_shape_is_refused() -> None:
    learner = rollouts.learner()
    batch = learner.process_batch(rollouts.rollout(0))
    with pytest.raises(UsageError, match=r"batch\['advantages'\] has shape \(5, 4\), .* must be \[6, 4\]"):
        learner.update({**batch, "advantages": batch["advantages"][:-1]})
    with pytest.raises(UsageError, match="batch was processed, but has no returns; pass it as process_batch"):
        learner.update({name: column for name, column in batch.items() if name != "returns"})
    shorter = {name: column if name.startswith("_") else column[:-1] for name, column in batch.items()}
    with pytest.raises(UsageError, match="batch was processed with 24 rows, and now has 20; process the new one"):
        learner.update(shorter)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"bootstrap_values": torch.zeros(3)},
            r"bootstrap_values has shape \(3,\), .* must be \[2\]",
        ),
        ({"bootstrap_values": torch.zeros(1)}, r"bootstrap_values has shape \(1,\)"),
        ({"target_log_probs": torch.zeros(3, 1)}, r"target_log_probs has shape \(3, 1\), .* must be \[3, 2\]"),
        ({"dones": torch.zeros(2)}, r"dones has shape \(2,\)"),
        ({"rewards": torch.zeros(6)}, r"rewards has shape \(6,\), but it must be \[T, N\]"),
    ],
)
def test_vtrace_refuses_arrays_of_other_shapes(change: dict[str, Any], words: str) -> None:
    names = ("behavior_log_probs", "target_log_probs", "rewards", "values", "dones")
    fit = {**dict.fromkeys(names, torch.zeros(3, 2)), "bootstrap_values": torch.zeros(2)}
    vtrace_advantages(**fit)
    with pytest.raises(UsageError, match=words):
        vtrace_advantages(**{**fit, **change})


# MLPModel.


def test_a_model_sees_the_groups_of_its_set() -> None:
    obs = {"joints": torch.ones(4, 2), "sensors": torch.zeros(4, 3), "camera": torch.ones(4, 9)}
    groups = {"actor": ["joints"], "critic": ["joints", "sensors"]}
    actor, critic = (MLPModel(obs, groups, name, 2, hidden_dims=(8,)) for name in ("actor", "critic"))
    assert (actor.obs_dim, critic.obs_dim) == (2, 5)
    assert actor(obs).shape == critic(obs).shape == (4, 2)
    assert torch.equal(critic(obs), critic(torch.cat((obs["joints"], obs["sensors"]), -1)))
    with pytest.raises(UsageError, match="obs_set='teacher' is none of the sets in obs_groups: actor, critic"):
        MLPModel(obs, groups, "teacher", 2)
    with pytest.raises(UsageError, match=r"obs_groups\['a'\] names 'map', but obs has only joints"):
        MLPModel(obs, {"a": ["map"]}, "a", 2)
    with pytest.raises(UsageError, match=r"has shape \(4, 2, 2\), but it must be \(batch, size\)"):
        MLPModel({"policy": torch.zeros(4, 2, 2)}, GROUPS, "actor", 2)


def test_a_model_without_memory_warns_of_masks_and_hidden_states() -> None:
    obs = {"policy": torch.zeros(1, 5)}
    model = MLPModel(obs, GROUPS, "actor", 2, hidden_dims=(8,))
    for given in ({"masks": torch.ones(1)}, {"hidden_state": torch.zeros(1, 8)}):
        with pytest.warns(UserWarning, match="MLPModel has no memory"):
            model(obs, **given)


def test_layers_and_activation_are_those_that_were_asked_for() -> None:
    obs = {"policy": torch.zeros(1, 5)}
    usual = MLPModel(obs, GROUPS, "actor", 2)
    widths = [layer.out_features for layer in usual.mlp if isinstance(layer, nn.Linear)]
    assert widths == [256, 256, 256, 2]
    assert isinstance(usual.mlp[1], nn.ELU)
    other = MLPModel(obs, GROUPS, "actor", 3, hidden_dims=[-1, 7], activation="tanh")
    assert [layer.out_features for layer in other.mlp if isinstance(layer, nn.Linear)] == [5, 7, 3]
    assert isinstance(other.mlp[1], nn.Tanh)
    for options, words in (({"activation": "wave"}, "activation='wave'"), ({"hidden_dims": ()}, "hidden_dims")):
        with pytest.raises(UsageError, match=words):
            MLPModel(obs, GROUPS, "actor", 2, **options)


def test_a_distribution_makes_outputs_random_and_is_not_taken_from_the_callers_settings() -> None:
    settings = {"class_name": "rsl_rl.modules:GaussianDistribution", "init_std": 0.5, "std_type": "log"}
    given = dict(settings)
    model = rollouts.model(OBS, ACTIONS, 0, distribution_cfg=given)
    assert given == settings
    obs = {"policy": torch.randn(2_000, OBS, dtype=torch.float64)}
    assert torch.equal(model(obs), model(obs))
    with pytest.raises(UsageError, match="stochastic_output=True"):
        _ = model.output_mean
    with torch.no_grad():
        drawn = model(obs, stochastic_output=True)
    assert (drawn - model.output_mean).std() == pytest.approx(0.5, rel=0.05)
    assert (model.output_std - 0.5).abs().max() < 1e-6
    torch.testing.assert_close(model.output_mean, model(obs))
    wanted = torch.distributions.Normal(model.output_mean, model.output_std)
    torch.testing.assert_close(model.get_output_log_prob(drawn), wanted.log_prob(drawn).sum(-1))
    torch.testing.assert_close(model.output_entropy, wanted.entropy().sum(-1))
    plain = rollouts.model(OBS, 1, 0)
    with pytest.raises(UsageError, match="distribution_cfg"):
        _ = plain.output_std


def test_a_deviation_may_be_fixed_and_is_kept_in_its_range() -> None:
    fixed = rollouts.learner(gaussian={"learn_std": False, "init_std": 0.7})
    fixed.update(rollouts.rollout(0))
    assert (fixed.get_weights()["distribution.std_param"] == torch.tensor(0.7).double()).all()
    narrow = GaussianDistribution(2, init_std=3.0, std_range=(0.1, 1.0))
    assert (narrow.log_std().exp() == 1.0).all()
    for options, words in (
        ({"std_type": "square"}, "std_type"),
        ({"init_std": 0.0}, "init_std"),
        ({"size": 1}, "size"),
    ):
        with pytest.raises(UsageError, match=words):
            rollouts.model(OBS, 1, 0, distribution_cfg={"class_name": "GaussianDistribution", **options})
    with pytest.raises(UsageError, match="class_name='Beta'"):
        rollouts.model(OBS, 1, 0, distribution_cfg={"class_name": "Beta"})


def test_statistics_are_those_of_all_rows_while_training() -> None:
    normaliser = EmpiricalNormalization(3, until=20).double()
    rows = torch.randn(30, 3, dtype=torch.float64) * 4 + 2
    for part in rows.split(10):
        normaliser.update(part)  # the third comes after `until`
    torch.testing.assert_close(normaliser.mean, rows[:20].mean(0))
    torch.testing.assert_close(normaliser.std, rows[:20].std(0, correction=0))
    torch.testing.assert_close(normaliser(rows), (rows - normaliser.mean) / (normaliser.std + 1e-2))
    normaliser.eval()
    normaliser.until = None
    normaliser.update(rows + 9)
    assert normaliser.count == 20


def test_importing_offbeat_imports_no_interface_of_another_project() -> None:
    code = "import sys, offbeat; sys.exit(any(name.startswith('offbeat.compat') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
