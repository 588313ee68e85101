"""Losses under masks, written out over the allowed actions alone; what is forbidden has no say in a target."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from driven_learner import Learner
from offbeat.algorithms.configs import Fixed, Learned
from offbeat.algorithms.torch import appo
from offbeat.settings import make_learner_config
from offbeat.types import EnvSpec
from small_rollouts import BRANCHES, CHOICE, log_probs, make, moved, prepared, rollout
from specs import Transitions, choice_spec, random_transitions

CHOICES, ROWS = 4, 32
SPEC = dataclasses.replace(choice_spec(5, CHOICES), mask_key="mask", mask_from="info")
EMPTY = torch.zeros(ROWS, 0, dtype=torch.float64)


def learner_of(algorithm: str, config: Any) -> Learner:
    learner = Learner(algorithm, config, SPEC, rng=np.random.default_rng(1), precision="float64")
    learner.state.target.flat.mul_(1.3)
    return learner


def masked_batch() -> Transitions:
    """Taken actions are allowed; rows have from one to all actions."""
    rng = np.random.default_rng(0)
    batch = random_transitions(rng, SPEC, ROWS, np.float64)
    masks = rng.random((2, ROWS, CHOICES)) < 0.5
    masks[0, np.arange(ROWS), batch.action[:, 0].astype(int)] = True
    masks[1, np.arange(ROWS), rng.integers(CHOICES, size=ROWS)] = True
    batch.mask, batch.next_mask = masks
    assert {1, CHOICES} <= set(masks.sum(2).ravel().tolist())
    return batch


def tensors(batch: Transitions) -> list[Tensor]:
    return [torch.from_numpy(each) for each in (batch.obs, batch.next_obs, batch.reward, batch.discount)]


def flat(loss: Tensor, module: torch.nn.Module) -> Tensor:
    return torch.cat([each.reshape(-1) for each in torch.autograd.grad(loss, list(module.parameters()))])


def test_discrete_sac_sums_over_allowed_actions() -> None:
    learner, batch = learner_of("sac", make_learner_config("sac", hidden=(16,), temperature=Fixed(0.3))), masked_batch()
    actor, critic, target = (
        copy.deepcopy(each.module) for each in (learner.state.actor, learner.state.critic, learner.state.target)
    )
    obs, next_obs, reward, discount = tensors(batch)
    assert batch.mask is not None
    assert batch.next_mask is not None
    worth = []
    with torch.no_grad():
        for row, mask in enumerate(batch.next_mask):
            prob = actor(next_obs[row : row + 1])[0, mask].softmax(0)
            q = target(next_obs[row : row + 1], EMPTY[:1]).amin(0)[0, mask]
            worth.append((prob * (q - 0.3 * prob.log())).sum())
    taken = torch.from_numpy(batch.action[:, 0]).long()
    error = critic(obs, EMPTY)[:, torch.arange(ROWS), taken] - (reward + discount * torch.stack(worth))
    loss = 0.5 * (error**2).mean(1).sum()
    learner.update_once(batch, np.zeros(learner.noise_shape))
    torch.testing.assert_close(learner.state.critic.gradient, flat(loss, critic), rtol=1e-9, atol=1e-12)

    objective, entropy = [], []
    q = learner.state.critic.module(obs, EMPTY).detach().amin(0)  # the critics of after their step, as in the update
    for row, mask in enumerate(batch.mask):
        prob = actor(obs[row : row + 1])[0, mask].softmax(0)
        objective.append((prob * (0.3 * prob.log() - q[row, mask])).sum())
        entropy.append(-(prob * prob.log()).sum())
    wanted = flat(torch.stack(objective).mean(), actor)
    torch.testing.assert_close(learner.state.actor.gradient, wanted, rtol=1e-9, atol=1e-12)
    metrics = learner.drain()
    assert metrics["actor_loss"] == pytest.approx(torch.stack(objective).mean().item(), rel=1e-9)
    assert metrics["entropy"] == pytest.approx(torch.stack(entropy).mean().item(), rel=1e-9)


def test_the_entropy_that_discrete_sac_aims_at_follows_from_what_is_allowed() -> None:
    """Where one action is allowed there is no entropy, and the temperature stays as it is."""
    learner, batch = (
        learner_of("sac", make_learner_config("sac", hidden=(16,), temperature=Learned(0.5))),
        masked_batch(),
    )
    batch.mask = np.eye(CHOICES, dtype=bool)[batch.action[:, 0].astype(int)]
    for _ in range(3):
        learner.update_once(batch, np.zeros(learner.noise_shape))
    assert float(learner.state.log_temperature.exp()) == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double_q", [False, True])
def test_dqn_bootstraps_from_the_best_allowed_action(double_q: bool, dueling: bool) -> None:
    config = make_learner_config(
        "dqn", hidden=(16,), double_q=double_q, dueling=dueling, loss="mse", max_grad_norm=None
    )
    learner, batch = learner_of("dqn", config), masked_batch()
    critic, target = (copy.deepcopy(each.module) for each in (learner.state.critic, learner.state.target))
    obs, next_obs, reward, discount = tensors(batch)

    def values(network: torch.nn.Module, rows: Tensor) -> Tensor:
        out = network(rows)
        return out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True) if dueling else out

    assert batch.next_mask is not None
    worth = []
    with torch.no_grad():
        for row, mask in enumerate(batch.next_mask):
            own = values(critic if double_q else target, next_obs[row : row + 1])[0]
            best = max(np.flatnonzero(mask), key=lambda action, own=own: float(own[action]))
            worth.append(values(target, next_obs[row : row + 1])[0, best])
    taken = torch.from_numpy(batch.action[:, 0]).long()
    error = values(critic, obs)[torch.arange(ROWS), taken] - (reward + discount * torch.stack(worth))
    learner.update_once(batch, np.zeros(0))
    wanted = flat((error**2).mean(), critic)
    torch.testing.assert_close(learner.state.critic.gradient, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gradients", ["auto", "autograd"])
@pytest.mark.parametrize("spec", [CHOICE, BRANCHES], ids=["one", "several"])
@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_ppo_and_appo_weigh_actions_by_their_likelihood_under_the_mask(
    algorithm: str, spec: EnvSpec, gradients: str
) -> None:
    spec = dataclasses.replace(spec, mask_key="mask", mask_from="info")
    learner = moved(make(algorithm, spec, gradients=gradients, entropy_coefficient=0.1, normalise_advantages=False))
    experience = rollout(learner, older=0.1, gaps=0.1)
    rng, action = np.random.default_rng(2), experience.columns["action"]
    mask = rng.random((*action.shape[:2], sum(spec.counts))) < 0.4
    starts = np.cumsum((0, *spec.counts[:-1]))
    np.put_along_axis(mask, starts + action.astype(int), True, 2)
    mask[~experience.valid] = False
    experience.columns["mask"] = experience.columns["next_mask"] = mask  # type: ignore[index]
    whole, actor = prepared(learner, experience), copy.deepcopy(learner.state.actor.module)
    columns = {each.name: getattr(whole, each.name) for each in dataclasses.fields(whole)}
    batch = appo.Minibatch(**{name: None if column is None else column.clone() for name, column in columns.items()})
    np.testing.assert_array_equal(batch.mask.numpy(), mask[experience.valid])

    def likelihood(out: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies, row by row and branch by branch, over what is allowed."""
        log_prob, entropy = [], []
        for row in range(len(out)):
            parts = zip(out[row].split(spec.counts), batch.mask[row].split(spec.counts), strict=True)
            own, spread = torch.zeros((), dtype=out.dtype), torch.zeros((), dtype=out.dtype)
            for (logits, allowed), index in zip(parts, batch.action[row].long(), strict=True):
                prob = logits[allowed].softmax(0)
                own = own + prob[int(allowed[:index].sum())].log()
                spread = spread - (prob * prob.log()).sum()
            log_prob.append(own)
            entropy.append(spread)
        return torch.stack(log_prob), torch.stack(entropy)

    log_prob, entropy = likelihood(actor(batch.obs))
    if algorithm == "appo":
        torch.testing.assert_close(batch.reference, log_prob.detach(), rtol=1e-9, atol=1e-12)
    cap = learner.config.correction.ratio_cap if algorithm == "appo" else 1.0  # type: ignore[attr-defined]
    ratio = (log_prob - batch.behaviour).exp() * (batch.behaviour - batch.reference).exp().clamp(max=cap)
    held = ratio.clamp(1 - learner.config.objective.clip, 1 + learner.config.objective.clip)
    policy = -torch.minimum(ratio * batch.advantage, held * batch.advantage).mean()
    (policy - 0.1 * entropy.mean()).backward()
    with torch.no_grad():
        metrics, _ = appo.update_actor(learner.state, learner.config, spec, batch)
    assert float(metrics["entropy"]) == pytest.approx(entropy.mean().item(), rel=1e-9)
    wanted = torch.cat([each.grad.reshape(-1) for each in actor.parameters() if each.grad is not None])
    torch.testing.assert_close(learner.state.actor.gradient, wanted, rtol=1e-9, atol=1e-12)
    plain = log_probs(learner, batch.obs.numpy(), batch.action.numpy())
    assert (plain < log_prob.detach().numpy() + 1e-9).all(), "a mask can only make what is left likelier"


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_a_forbidden_actions_value_does_not_leak_into_the_target(algorithm: str) -> None:
    """From s an action leads to s', where the only allowed one pays 1 and ends: Q(s) = gamma, whatever else is said."""
    rates: dict[str, Any] = {"gamma": 0.5, "hidden": (16,), "tau": 0.1, "target_every": 1}
    config = make_learner_config("dqn", **rates, learning_rate=1e-2) if algorithm == "dqn" else None
    config = config or make_learner_config("sac", **rates, temperature=Fixed(0.0), critic_learning_rate=1e-2)
    spec = dataclasses.replace(choice_spec(1, 2), mask_key="mask", mask_from="info")
    learner = Learner(algorithm, config, spec, rng=np.random.default_rng(1))
    state = learner.state
    for network in (state.critic, state.target):
        last = dict(network.named())["1/bias"]
        last[..., 1] = 50.0  # the network is sure that the action which is never allowed pays a lot
    columns = {"obs": [[0.0], [1.0]], "next_obs": [[1.0], [0.0]], "action": [[0.0], [0.0]], "reward": [0.0, 1.0]}
    arrays = {name: np.array(column, np.float32) for name, column in columns.items()}
    none, only = np.zeros((2, 0), np.float32), np.tile([True, False], (2, 1))
    batch = Transitions(
        **arrays,
        discount=np.array([0.5, 0.0], np.float32),
        state=none,
        next_state=none,
        rows=np.arange(2),
        mask=only,
        next_mask=only,
    )
    for _ in range(400):
        learner.update_once(batch, np.zeros(learner.noise_shape, np.float32))
    with torch.no_grad():
        inputs = [torch.tensor([[0.0], [1.0]]), *([torch.zeros(2, 0)] if algorithm == "sac" else [])]
        q = state.critic(*inputs)
    torch.testing.assert_close(q[..., 0], torch.tensor([0.5, 1.0]).expand_as(q[..., 0]), atol=0.02, rtol=0.0)
    assert (q[..., 1] > 10).all()
