"""Our TD3 and DDPG updates against Stable-Baselines3's own `train()`: same weights, batches and noise, in float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import DDPG as TheirDDPG
from stable_baselines3 import TD3 as TheirTD3
from stable_baselines3.common.buffers import ReplayBufferSamples

from driven_learner import Learner
from offbeat.algorithms.configs import TD3
from offbeat.settings import make_learner_config
from specs import random_transitions, vector_spec

BATCH, UPDATES, RATE = 32, 10, 3e-4
SETTINGS: dict[str, Any] = {
    "hidden": (16, 16),
    "batch_size": BATCH,
    "actor_learning_rate": RATE,
    "critic_learning_rate": RATE,
    "tau": 0.05,
}


class _Spaces(gymnasium.Env):
    """Only the spaces of `vector_spec`; never stepped."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)


def _pairs(learner: Learner, model: Any) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """(name, ours, theirs) for every parameter, theirs in our orientation (in, out)."""
    state, pairs = learner.state, []
    for name, ours, theirs in (
        ("actor", state.actor, model.actor),
        ("target actor", state.target_actor, model.actor_target),
    ):
        for index, layer in enumerate(ours.module.layers):
            pairs.append((f"{name}/{index}/weight", layer.weight, theirs.mu[2 * index].weight.T))
            pairs.append((f"{name}/{index}/bias", layer.bias, theirs.mu[2 * index].bias))
    for name, ours, theirs in (("critic", state.critic, model.critic), ("target", state.target, model.critic_target)):
        for member, q_network in enumerate(theirs.q_networks):
            for index, layer in enumerate(ours.module.mlp.layers):
                linear = q_network[2 * index]
                pairs.append((f"{name}/{member}/{index}/weight", layer.weight[member], linear.weight.T))
                pairs.append((f"{name}/{member}/{index}/bias", layer.bias[member], linear.bias))
    return pairs


@pytest.mark.parametrize(
    ("algorithm", "config", "theirs"),
    [
        ("td3", make_learner_config("td3", **SETTINGS), TheirTD3),
        (
            "td3",
            make_learner_config(
                "td3", **SETTINGS, actor_every=3, target_every=3, target_noise=0.4, target_noise_clip=0.3
            ),
            TheirTD3,
        ),
        ("ddpg", make_learner_config("ddpg", **SETTINGS), TheirDDPG),
    ],
)
def test_ten_updates_equal_stable_baselines3(
    algorithm: str, config: TD3, theirs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, rng = vector_spec(5, 2), np.random.default_rng(0)
    learner = Learner(algorithm, config, spec, rng=np.random.default_rng(1), precision="float64")
    delay = {} if algorithm == "ddpg" else {"policy_delay": config.actor_every}
    smoothing = (
        {}
        if algorithm == "ddpg"
        else {"target_policy_noise": config.target_noise, "target_noise_clip": config.target_noise_clip}
    )
    architecture = {"net_arch": list(config.networks.hidden)}
    shared = {
        "policy_kwargs": architecture,
        "gamma": config.returns.gamma,
        "tau": config.target.tau,
        "learning_rate": RATE,
    }
    model = theirs("MlpPolicy", _Spaces(), device="cpu", **shared, **delay, **smoothing)
    model.policy.double()
    model._logger = SimpleNamespace(record=lambda *args, **kwargs: None)
    with torch.no_grad():
        for _, ours, other in _pairs(learner, model):
            other.copy_(ours)
    batches = [random_transitions(rng, spec, BATCH, np.float64) for _ in range(UPDATES)]
    noise = rng.standard_normal((UPDATES, BATCH, 2))
    monkeypatch.setattr("stable_baselines3.common.policies.preprocess_obs", lambda obs, *args, **kwargs: obs)
    queue = iter(torch.from_numpy(noise))
    monkeypatch.setattr(
        torch.Tensor, "normal_", lambda self, mean, std: self.copy_(mean + std * next(queue)), raising=True
    )
    given = iter(batches)

    def samples(batch_size: int, env: object = None) -> ReplayBufferSamples:
        batch = next(given)
        tensors = [batch.obs, batch.action, batch.next_obs, batch.discount[:, None] == 0.0, batch.reward[:, None]]
        return ReplayBufferSamples(*(torch.from_numpy(np.asarray(each, np.float64)) for each in tensors))

    model.replay_buffer = SimpleNamespace(sample=samples)
    for update in range(UPDATES):
        model.train(gradient_steps=1, batch_size=BATCH)
        learner.update_once(batches[update], noise[update])
        for name, ours, other in _pairs(learner, model):
            np.testing.assert_allclose(
                ours.detach(), other.detach(), rtol=1e-9, atol=1e-12, err_msg=f"{name} after update {update + 1}"
            )
