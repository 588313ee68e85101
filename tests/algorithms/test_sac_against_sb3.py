"""Our SAC update against Stable-Baselines3's own `train()`, from the same weights, batches and noise, in float64."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import SAC as Theirs
from stable_baselines3.common.buffers import ReplayBufferSamples

from driven_learner import Learner
from offbeat.algorithms.configs import SAC, Fixed, Learned
from offbeat.settings import make_learner_config
from specs import random_transitions, vector_spec

BATCH, UPDATES, RATE = 32, 10, 3e-4


class _Spaces(gymnasium.Env):
    """Only the spaces of `vector_spec`; never stepped."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)


def _pairs(learner: Learner, model: Theirs) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """(name, ours, theirs) for every parameter, theirs in our orientation (in, out)."""
    ours = learner.state.actor.module.layers
    theirs = model.actor
    pairs = []
    for index, linear in enumerate([theirs.latent_pi[0], theirs.latent_pi[2]]):
        pairs.append((f"actor/{index}/weight", ours[index].weight, linear.weight.T))
        pairs.append((f"actor/{index}/bias", ours[index].bias, linear.bias))
    for name, column, linear in (("mean", slice(0, 2), theirs.mu), ("log_std", slice(2, 4), theirs.log_std)):
        pairs.append((f"actor/{name}/weight", ours[2].weight[:, column], linear.weight.T))
        pairs.append((f"actor/{name}/bias", ours[2].bias[column], linear.bias))
    for name, network, critic in (
        ("critic", learner.state.critic, model.critic),
        ("target", learner.state.target, model.critic_target),
    ):
        for member, q_network in enumerate(critic.q_networks):
            for index, linear in enumerate([q_network[0], q_network[2], q_network[4]]):
                layer = network.module.mlp.layers[index]
                pairs.append((f"{name}/{member}/{index}/weight", layer.weight[member], linear.weight.T))
                pairs.append((f"{name}/{member}/{index}/bias", layer.bias[member], linear.bias))
    return pairs


def _their_model(config: SAC) -> Theirs:
    learned = isinstance(config.temperature, Learned)
    model = Theirs(
        "MlpPolicy",
        _Spaces(),
        policy_kwargs={"net_arch": list(config.networks.hidden), "n_critics": 2},
        gamma=config.returns.gamma,
        tau=config.target.tau,
        ent_coef=f"auto_{config.temperature.initial}" if learned else config.temperature.value,
        learning_rate=RATE,
        target_update_interval=config.target.target_every,
        device="cpu",
    )
    model.policy.double()
    model.actor.action_dist.epsilon = 0.0
    if learned:
        model.log_ent_coef = model.log_ent_coef.detach().double().requires_grad_(True)
        model.ent_coef_optimizer = torch.optim.Adam([model.log_ent_coef], lr=RATE)
    else:
        model.ent_coef_tensor = model.ent_coef_tensor.double().fill_(config.temperature.value)
    model._logger = SimpleNamespace(record=lambda *args, **kwargs: None)
    return model


@pytest.mark.parametrize("temperature", [Learned(initial=0.3), Fixed(0.2)])
@pytest.mark.parametrize("target_every", [1, 3])
def test_ten_updates_equal_stable_baselines3(
    temperature: Learned | Fixed, target_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, rng = vector_spec(5, 2), np.random.default_rng(0)
    groups = ("actor", "critic", "temperature") if isinstance(temperature, Learned) else ("actor", "critic")
    rates = {f"{group}_learning_rate": RATE for group in groups}
    config = make_learner_config(
        "sac", hidden=(16, 16), batch_size=BATCH, temperature=temperature, target_every=target_every, **rates
    )
    learner = Learner("sac", config, spec, rng=np.random.default_rng(1), precision="float64")
    model = _their_model(config)
    with torch.no_grad():
        for _, ours, theirs in _pairs(learner, model):
            theirs.copy_(ours)
        if isinstance(temperature, Learned):
            model.log_ent_coef.copy_(learner.state.log_temperature)

    batches = [random_transitions(rng, spec, BATCH, np.float64) for _ in range(UPDATES)]
    noise = rng.standard_normal((UPDATES, 2, BATCH, 2))
    queue = iter(torch.from_numpy(noise).flatten(0, 1))
    monkeypatch.setattr("stable_baselines3.common.policies.preprocess_obs", lambda obs, *args, **kwargs: obs)
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *args, **kwargs: next(queue))

    def samples(batch_size: int, env: object = None) -> ReplayBufferSamples:
        batch = batches[samples.calls]
        samples.calls += 1
        tensors = [batch.obs, batch.action, batch.next_obs, batch.discount[:, None] == 0.0, batch.reward[:, None]]
        return ReplayBufferSamples(*(torch.from_numpy(np.asarray(each, np.float64)) for each in tensors))

    samples.calls = 0
    model.replay_buffer = SimpleNamespace(sample=samples)
    # Their `train` counts gradient steps from 0 in each call and moves targets at 0, k, ...; ours after k, 2k, ...
    # One call per update, with the interval switched by hand, makes the conventions equal.
    for update in range(UPDATES):
        model.target_update_interval = 1 if (update + 1) % target_every == 0 else 10**9
        if model.target_update_interval > 1:
            monkeypatch.setattr("stable_baselines3.sac.sac.polyak_update", lambda *args: None)
        else:
            monkeypatch.setattr("stable_baselines3.sac.sac.polyak_update", _polyak)
        model.train(gradient_steps=1, batch_size=BATCH)
        learner.update_once(batches[update], noise[update])
        for name, ours, theirs in _pairs(learner, model):
            np.testing.assert_allclose(
                ours.detach(), theirs.detach(), rtol=1e-9, atol=1e-12, err_msg=f"{name} after update {update + 1}"
            )
        if isinstance(temperature, Learned):
            np.testing.assert_allclose(learner.state.log_temperature, model.log_ent_coef.detach(), rtol=1e-9)
    assert samples.calls == UPDATES


def _polyak(parameters: object, targets: object, tau: float) -> None:
    for parameter, target in zip(parameters, targets, strict=True):
        target.data.mul_(1 - tau).add_(parameter.data, alpha=tau)
