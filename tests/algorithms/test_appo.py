"""PPO's and APPO's updates against the objective written out with torch's distributions, autograd and optimisers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributions, nn

from driven_learner import Learner
from offbeat.algorithms.configs import APPO, PPO
from offbeat.algorithms.torch import appo
from offbeat.algorithms.torch.batch import NO_MASK
from offbeat.algorithms.torch.losses import standardise
from offbeat.algorithms.torch.networks import WithLogStd
from offbeat.types import EnvSpec, RolloutBatch
from small_rollouts import BOX, BRANCHES, CHOICE, STATE, make, moved, prepared, rollout, turn
from specs import choice_spec

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
ROWS, RATE = 64, 3e-3
POLICIES = {
    "gaussian": (BOX, {}),
    "dependent": (BOX, {"state_dependent_std": True}),
    "squashed": (BOX, {"squash": True}),
    "squashed dependent": (BOX, {"squash": True, "state_dependent_std": True, "initial_log_std": -0.5}),
    "categorical": (CHOICE, {}),
    "multi-discrete": (BRANCHES, {}),
    "asymmetric": (STATE, {}),
}
policies = pytest.mark.parametrize("policy", POLICIES)
objectives = pytest.mark.parametrize(
    "settings",
    [
        {"normalise_advantages": False, "max_grad_norm": None},
        {"entropy_coefficient": 0.02, "value_clip": 0.3, "value_coefficient": 0.7},
        {"algorithm": "appo"},
        {"algorithm": "appo", "target_every": 3, "tau": 0.5, "ratio_cap": 1.1, "entropy_coefficient": 0.02},
    ],
    ids=["plain", "ppo", "appo", "target"],
)


def learner_of(policy: str, settings: dict[str, Any]) -> Learner:
    spec, own = POLICIES[policy]
    return moved(make(spec=spec, **own, **settings))


def minibatch(learner: Learner, seed: int = 0, rows: int = ROWS) -> appo.Minibatch:
    """Random rows, near enough to the policy that some ratios are clipped and others are not."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    spec = learner.spec

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    obs, state = normal(rows, spec.observation_size), normal(rows, spec.state_size)
    if spec.choices is None and not spec.branches:
        action = torch.tanh(0.8 * normal(rows, spec.action_size))
    else:
        action = torch.from_numpy(spec.random_actions(rng, rows)).double()
    with torch.no_grad():
        log_prob, _ = likelihood(learner, learner.state.actor.module, obs, action)
        value = learner.state.critic.module(obs, state).squeeze(1)
    reference = log_prob + 0.3 * normal(rows)
    behaviour = reference + 0.3 * normal(rows) if isinstance(learner.config, APPO) else reference
    before = value + 0.3 * normal(rows)
    return appo.Minibatch(
        obs, state, action, NO_MASK, behaviour, reference, normal(rows), before + normal(rows), before
    )


def likelihood(learner: Learner, actor: nn.Module, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy (B,), by torch's distributions."""
    config, spec, out = learner.config, learner.spec, actor(obs)
    if spec.choices is not None:
        choice = distributions.Categorical(logits=out)
        return choice.log_prob(action.squeeze(1)), choice.entropy()
    if spec.branches:
        parts = [distributions.Categorical(logits=part) for part in out.split(spec.branches, 1)]
        of_each = [part.log_prob(index) for part, index in zip(parts, action.T, strict=True)]
        return torch.stack(of_each).sum(0), torch.stack([part.entropy() for part in parts]).sum(0)
    mean, log_std = out.chunk(2, 1) if config.policy.state_dependent_std else (out, actor.log_std)
    drawn = distributions.Independent(distributions.Normal(mean, log_std.exp()), 1)
    acted = (
        distributions.TransformedDistribution(drawn, [distributions.TanhTransform()]) if config.policy.squash else drawn
    )
    return acted.log_prob(action), drawn.entropy()


def loss(learner: Learner, actor: nn.Module, critic: nn.Module, batch: appo.Minibatch) -> Tensor:
    """The objective of docs and papers, in plain words."""
    config = learner.config
    log_prob, entropy = likelihood(learner, actor, batch.obs, batch.action)
    ratio = (log_prob - batch.behaviour).exp()
    if isinstance(config, APPO):
        ratio = ratio * torch.clamp((batch.behaviour - batch.reference).exp(), max=config.correction.ratio_cap)
    advantage = batch.advantage
    if config.returns.normalise_advantages:
        bar = config.correction.advantage_rho_bar if isinstance(config, APPO) else 1.0
        weight = torch.clamp((batch.reference - batch.behaviour).exp(), max=bar)
        plain = batch.advantage / weight
        mean = (weight * plain).sum() / weight.sum()
        variance = (weight * (plain - mean) ** 2).sum() / weight.sum() * len(weight) / (len(weight) - 1)
        advantage = weight * (plain - mean) / (variance.sqrt() + 1e-8)
    held = torch.clamp(ratio, 1 - config.objective.clip, 1 + config.objective.clip)
    policy = -torch.minimum(ratio * advantage, held * advantage).mean()
    value = critic(batch.obs, batch.state).squeeze(1)
    errors = (value - batch.target) ** 2
    if config.objective.value_clip is not None:
        near = batch.value + torch.clamp(value - batch.value, -config.objective.value_clip, config.objective.value_clip)
        errors = torch.maximum(errors, (near - batch.target) ** 2)
    return (
        policy
        + config.objective.value_coefficient * 0.5 * errors.mean()
        - config.objective.entropy_coefficient * entropy.mean()
    )


def copies(learner: Learner) -> tuple[nn.Module, nn.Module]:
    """Actor and critic as modules of their own, for plain autograd."""
    return copy.deepcopy(learner.state.actor.module), copy.deepcopy(learner.state.critic.module)


def flat(module: nn.Module, gradient: bool = False) -> Tensor:
    found = [parameter.grad if gradient else parameter for parameter in module.parameters()]
    return torch.cat([each.detach().reshape(-1) for each in found if each is not None])


@policies
@objectives
def test_the_gradient_is_that_of_the_written_out_objective(policy: str, settings: dict[str, Any]) -> None:
    learner = learner_of(policy, settings)
    batch, (actor, critic) = minibatch(learner), copies(learner)
    loss(learner, actor, critic, batch).backward()
    with torch.no_grad():
        metrics, _ = appo.update_actor(learner.state, learner.config, learner.spec, batch)
        metrics |= appo.update_critic(learner.state, learner.config, batch)
    assert 0.1 < metrics["clip_fraction"] < 0.9, "nothing was clipped, or all"
    torch.testing.assert_close(learner.state.actor.gradient, flat(actor, gradient=True), **EXACT)
    torch.testing.assert_close(learner.state.critic.gradient, flat(critic, gradient=True), **EXACT)
    if isinstance(actor, WithLogStd):
        assert actor.log_std.grad is not None
        torch.testing.assert_close(learner.state.actor.gradient[:2], actor.log_std.grad, **EXACT)
        assert (actor.log_std.grad != 0).all()


@policies
@objectives
def test_updates_are_those_of_torchs_adam_with_the_norm_of_all_gradients_clipped(
    policy: str, settings: dict[str, Any]
) -> None:
    learner = learner_of(policy, {"max_grad_norm": 0.05, **settings})
    actor, critic = copies(learner)
    parameters = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(parameters, lr=RATE, eps=1e-5)
    for seed in range(5):
        batch = minibatch(learner, seed)
        adam.zero_grad()
        loss(learner, actor, critic, batch).backward()
        if (most := learner.config.optimisation.max_grad_norm) is not None:
            assert torch.nn.utils.clip_grad_norm_(parameters, most) > most
        adam.step()
        with torch.no_grad():
            _, rate, stopped = appo.learn_minibatch(learner.state, learner.config, learner.spec, batch, RATE, seed)
        assert (rate, stopped) == (RATE, False)
        torch.testing.assert_close(learner.state.actor.flat, flat(actor), **EXACT)
        torch.testing.assert_close(learner.state.critic.flat, flat(critic), **EXACT)


def test_the_gradients_of_actor_and_critic_are_clipped_by_one_norm() -> None:
    steps = {}
    for most in (None, 0.05):
        learner = learner_of("gaussian", {"optimiser": "sgd", "max_grad_norm": most})
        before = [network.flat.clone() for network in (learner.state.actor, learner.state.critic)]
        with torch.no_grad():
            appo.learn_minibatch(learner.state, learner.config, learner.spec, minibatch(learner), 1.0, 0)
        after = (learner.state.actor.flat, learner.state.critic.flat)
        steps[most] = [old - new for old, new in zip(before, after, strict=True)]
    free, held = steps[None], steps[0.05]
    assert torch.cat(held).norm() == pytest.approx(0.05, rel=1e-4)
    factors = [(one @ other / (other @ other)).item() for one, other in zip(held, free, strict=True)]
    assert factors[0] == pytest.approx(factors[1], rel=1e-9)
    assert factors[0] < 1


@policies
@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_explicit_gradients_and_autograd_agree_over_whole_turns(policy: str, algorithm: str) -> None:
    spec, own = POLICIES[policy]
    settings = {**own, "algorithm": algorithm, "entropy_coefficient": 0.01, "value_clip": 0.5, "learning_rate": 3e-3}
    settings |= {"target_every": 3, "tau": 0.5} if algorithm == "appo" else {}
    learners = [make(spec=spec, gradients=each, **settings) for each in ("auto", "autograd")]
    assert [learner.state.critic.explicit for learner in learners] == [True, False]
    for seed in range(3):
        experience = rollout(learners[0], seed=seed, gaps=0.1, older=0.1 * (algorithm == "appo"))
        assert [turn(learner, experience) for learner in learners] == [8, 8]
    explicit, autograd = (learner.arrays() for learner in learners)
    for name, array in explicit.items():
        np.testing.assert_allclose(array, autograd[name], rtol=1e-9, atol=1e-12, err_msg=name)
    assert learners[0].drain() == pytest.approx(learners[1].drain(), rel=1e-9)


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_a_turn_is_every_row_once_in_each_epoch(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make(algorithm, epochs=3, minibatches=4, learning_rate=0.0)
    experience, seen = rollout(learner, steps=7, envs=3, gaps=0.1), []
    update = appo.learn_minibatch

    def watched(state: Any, config: Any, spec: EnvSpec, batch: appo.Minibatch, *others: Any) -> Any:
        seen.append(batch.obs.clone())
        return update(state, config, spec, batch, *others)

    monkeypatch.setattr(appo, "learn_minibatch", watched)
    assert turn(learner, experience) == 12
    rows = experience.columns["obs"][experience.valid]
    epochs = [seen[start : start + 4] for start in (0, 4, 8)]
    for parts in epochs:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        np.testing.assert_array_equal(np.sort(torch.cat(parts).numpy(), 0), np.sort(rows, 0))
    assert not torch.equal(torch.cat(epochs[0]), torch.cat(epochs[1]))


def test_a_turn_stops_after_as_many_updates_as_it_may_make() -> None:
    learner = make(epochs=3, minibatches=4)
    assert turn(learner, rollout(learner), 5) == learner.updates == 5


def test_a_rollout_of_few_rows_has_fewer_minibatches_and_one_of_none_no_update() -> None:
    learner = make(epochs=2, minibatches=4)
    assert turn(learner, rollout(learner, steps=1, envs=3)) == 2 * 3
    before = learner.arrays()
    assert turn(learner, rollout(learner, steps=2, envs=1, gaps=1.0)) == 0
    after = learner.arrays()
    assert all(np.array_equal(array, after[name]) for name, array in before.items())


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_a_turn_makes_better_actions_likelier_and_values_truer(algorithm: str) -> None:
    learner = make(algorithm, epochs=10, learning_rate=3e-3, gamma=0.0)
    experience = rollout(learner, steps=40, envs=4)
    # A larger first action is better, and so is a larger first observation, whatever is done.
    experience.columns["reward"][...] = experience.columns["action"][..., 0] + experience.columns["obs"][..., 0]
    obs, worth = (torch.from_numpy(experience.columns[name]).flatten(0, 1) for name in ("obs", "reward"))
    actor, critic = learner.state.actor.module, learner.state.critic.module
    with torch.no_grad():
        before = actor(obs)
        turn(learner, experience)
        drift, value = (actor(obs) - before).mean(0), critic(obs, obs[:, :0]).squeeze(1)
    assert drift[0] > 0.1 > drift[1].abs()
    assert torch.corrcoef(torch.stack((value, worth)))[0, 1] > 0.7


def bandit(settings: dict[str, Any]) -> Tensor:
    """The gradient at the logits of two arms that pay 1 and 0.8: the first acted in 7 of 10 rows, and now has 1/2."""
    learner = make("appo", choice_spec(1, 2), hidden=(), max_grad_norm=None, **settings)
    learner.state.actor.flat.zero_()
    learner.state.critic.flat.zero_()
    rows = 1000
    action = (np.arange(rows) % 10 >= 7).astype(np.float64)
    columns = {
        **{name: np.zeros((rows, 1, 1)) for name in ("obs", "next_obs")},
        "action": action.reshape(rows, 1, 1),
        "reward": np.where(action == 0, 1.0, 0.8).reshape(rows, 1),
        "log_prob": np.log(np.where(action == 0, 0.7, 0.3)).reshape(rows, 1),
        "terminated": np.ones((rows, 1), bool),
        "truncated": np.zeros((rows, 1), bool),
        "episode": np.arange(rows).reshape(rows, 1),
    }
    batch = prepared(learner, RolloutBatch(columns, np.ones((rows, 1), bool)))
    with torch.inference_mode():
        appo.update_actor(learner.state, learner.config, learner.spec, batch)
    return next(tensor for tensor in learner.state.actor.gradient.split([2, 2]) if tensor.abs().max() > 0)


@pytest.mark.parametrize("bar", [1.0, 10.0])
def test_normalised_advantages_of_older_weights_still_lead_to_the_better_arm(bar: float) -> None:
    for normalise in (False, True):
        better, worse = bandit({"advantage_rho_bar": bar, "normalise_advantages": normalise}).tolist()
        assert better < 0 < worse, "descent makes the better arm likelier"


def test_on_policy_normalised_advantages_have_mean_0_and_deviation_1() -> None:
    advantage = torch.randn(50, dtype=torch.float64) * 3 + 5
    found = standardise(advantage, torch.ones_like(advantage))
    torch.testing.assert_close(found, (advantage - advantage.mean()) / (advantage.std() + 1e-8), **EXACT)


def test_weights_of_nothing_give_advantages_of_nothing() -> None:
    weight = torch.tensor([0.0, 0.0, 0.0])
    assert standardise(weight * 5.0, weight).tolist() == [0.0, 0.0, 0.0]


def test_ppo_is_appo_without_delay() -> None:
    """With log-probabilities of the very weights that learn, and bounds that do not bind, both are one."""
    arrays = []
    for algorithm in ("ppo", "appo"):
        learner = moved(make(algorithm))
        turn(learner, rollout(learner, steps=20))
        arrays.append(learner.arrays())
    for name, array in arrays[0].items():
        np.testing.assert_allclose(array, arrays[1][name], rtol=1e-8, atol=1e-11, err_msg=name)
    assert isinstance(make("ppo").config, PPO)
    assert not isinstance(make("ppo").config, APPO)
