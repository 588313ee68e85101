"""Our DQN update against Stable-Baselines3's own `train()`, and double Q and dueling against a loop written out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN as Theirs
from stable_baselines3.common.buffers import ReplayBufferSamples

from driven_learner import Learner
from offbeat.settings import make_learner_config
from specs import choice_spec, random_transitions

BATCH, UPDATES, RATE, CHOICES = 32, 10, 3e-4, 3


class _Spaces(gymnasium.Env):
    """Only the spaces of `choice_spec`; never stepped."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    action_space = gymnasium.spaces.Discrete(CHOICES)


def _learner(**settings: Any) -> Learner:
    config = make_learner_config("dqn", hidden=(16, 16), batch_size=BATCH, learning_rate=RATE, **settings)
    return Learner("dqn", config, choice_spec(5, CHOICES), rng=np.random.default_rng(1), precision="float64")


def test_ten_updates_equal_stable_baselines3(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, rng = _learner(double_q=False, target_every=10**9, max_grad_norm=0.05), np.random.default_rng(0)
    learner.state.target.flat.mul_(1.1)  # so that network and target differ from the start
    model = Theirs(
        "MlpPolicy",
        _Spaces(),
        policy_kwargs={"net_arch": [16, 16]},
        learning_rate=RATE,
        max_grad_norm=0.05,
        device="cpu",
    )
    model.policy.double()
    model._logger = SimpleNamespace(record=lambda *args, **kwargs: None)
    pairs = [
        pair
        for ours, theirs in (
            (learner.state.critic, model.q_net.q_net),
            (learner.state.target, model.q_net_target.q_net),
        )
        for index, layer in enumerate(ours.module.layers)
        for pair in ((layer.weight, theirs[2 * index].weight.T), (layer.bias, theirs[2 * index].bias))
    ]
    with torch.no_grad():
        for ours, theirs in pairs:
            theirs.copy_(ours)
    batches = [random_transitions(rng, learner.spec, BATCH, np.float64) for _ in range(UPDATES)]
    given = iter(batches)
    monkeypatch.setattr("stable_baselines3.common.policies.preprocess_obs", lambda obs, *args, **kwargs: obs)

    def samples(batch_size: int, env: object = None) -> ReplayBufferSamples:
        batch = next(given)
        tensors = [batch.obs, batch.action, batch.next_obs, batch.discount[:, None] == 0.0, batch.reward[:, None]]
        return ReplayBufferSamples(*(torch.from_numpy(np.asarray(each, np.float64)) for each in tensors))

    model.replay_buffer = SimpleNamespace(sample=samples)
    for batch in batches:
        model.train(gradient_steps=1, batch_size=BATCH)
        learner.update_once(batch, np.zeros(0))
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours.detach(), theirs.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_double_q_and_dueling_equal_a_loop_over_rows(double_q: bool, dueling: bool, loss: str) -> None:
    learner, rng = (
        _learner(double_q=double_q, dueling=dueling, loss=loss, max_grad_norm=None),
        np.random.default_rng(0),
    )
    learner.state.target.flat.mul_(1.3)
    state, batch = learner.state, random_transitions(rng, learner.spec, BATCH, np.float64)

    def values(module: Any, obs: np.ndarray) -> torch.Tensor:
        out = module(torch.from_numpy(obs)[None])[0]
        return out[0] + out[1:] - out[1:].mean() if dueling else out

    losses = []
    for row in range(BATCH):
        with torch.no_grad():
            likes = values(state.critic.module if double_q else state.target.module, batch.next_obs[row])
            worth = values(state.target.module, batch.next_obs[row])[int(likes.argmax())]
        error = values(state.critic.module, batch.obs[row])[int(batch.action[row, 0])] - (
            batch.reward[row] + batch.discount[row] * worth
        )
        quadratic = loss == "mse" or abs(error) <= 1
        losses.append((error**2 if loss == "mse" else 0.5 * error**2) if quadratic else abs(error) - 0.5)
    mean = torch.stack(losses).mean()
    expected = torch.cat(
        [each.reshape(-1) for each in torch.autograd.grad(mean, list(state.critic.module.parameters()))]
    )
    learner.update_once(batch, np.zeros(0))
    torch.testing.assert_close(state.critic.gradient, expected, rtol=1e-9, atol=1e-12)
    assert learner.drain()["loss"] == pytest.approx(mean.item(), rel=1e-9)


def test_the_target_moves_by_tau_every_so_many_updates() -> None:
    learner, rng = _learner(target_every=3, tau=0.25), np.random.default_rng(0)
    target = learner.state.target.flat.clone()
    for update in range(1, 4):
        learner.update_once(random_transitions(rng, learner.spec, BATCH, np.float64), np.zeros(0))
        assert torch.equal(learner.state.target.flat, target) == (update < 3)
    torch.testing.assert_close(learner.state.target.flat, target.lerp(learner.state.critic.flat, 0.25))
