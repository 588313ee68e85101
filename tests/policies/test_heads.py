"""Heads: the distribution of samples, their log-probabilities, and that the learner computes the same ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal, TanhTransform, TransformedDistribution

from offbeat.algorithms.torch import distributions
from offbeat.errors import OffbeatError
from offbeat.policies import Policy, heads, make_policy
from offbeat.types import Array, EnvSpec, Weights
from specs import choice_spec, vector_spec

SIZE, BRANCHES, EVEN = 2, [3, 2, 5], [3, 3]
LOG_STD = np.array([-1.0, 0.3], np.float32)


def _gaussian(squashed: bool = False, state_dependent_std: bool = False) -> dict[str, Any]:
    return {
        "kind": "gaussian",
        "action_size": SIZE,
        "squashed": squashed,
        "state_dependent_std": state_dependent_std,
        "activation": "tanh",
    }


def _choice(branches: list[int] | None = None, **more: Any) -> dict[str, Any]:
    kind = {"kind": "categorical"} if branches is None else {"kind": "multi_categorical", "branches": branches}
    return {**kind, "log_prob": True, "activation": "tanh", **more}


GAUSSIANS = [
    pytest.param(_gaussian(squashed, dependent), id=f"{'squashed' if squashed else 'plain'}-{dependent}")
    for squashed in (False, True)
    for dependent in (False, True)
]
CHOICES = [
    pytest.param(_choice(), id="categorical"),
    pytest.param(_choice(BRANCHES), id="uneven"),
    pytest.param(_choice(EVEN), id="even"),
]
KINDS = GAUSSIANS + CHOICES
backends = pytest.mark.parametrize("backend", ["numpy", "torch"])


def _outputs(description: dict[str, Any]) -> int:
    if description["kind"] == "gaussian":
        return SIZE * (2 if description["state_dependent_std"] else 1)
    return sum(description.get("branches", [4]))


def _weights(description: dict[str, Any], spread: float = 1.0, centre: float = 0.0) -> dict[str, Array]:
    """Of a network 5-16-outputs; spread and centre of what it gives to normal observations, before log deviations."""
    rng, outputs = np.random.default_rng(5), _outputs(description)
    last = rng.normal(0.0, spread / 3.0, (16, outputs)).astype(np.float32)
    bias = np.full(outputs, centre, np.float32)
    if description["kind"] == "gaussian" and description["state_dependent_std"]:
        last[:, SIZE:] = rng.normal(0.0, 0.1, (16, SIZE))
        bias[SIZE:] = LOG_STD
    weights = {
        "actor/0/weight": rng.normal(0.0, 0.5, (5, 16)).astype(np.float32),
        "actor/0/bias": rng.normal(0.0, 0.5, 16).astype(np.float32),
        "actor/1/weight": last,
        "actor/1/bias": bias,
    }
    if description["kind"] == "gaussian" and not description["state_dependent_std"]:
        weights["actor/log_std"] = LOG_STD
    return weights


def _policy(description: dict[str, Any], weights: Weights, backend: str = "numpy") -> Policy:
    policy = make_policy(description, acting=backend)
    policy.load(weights)
    return policy


def _act(policy: Policy, obs: Array, seed: int | None = 0) -> tuple[Array, dict[str, Array]]:
    rng = None if seed is None else np.random.default_rng(seed)
    action, _, extras = policy.act(obs, policy.initial_carry(len(obs)), rng)
    return action, extras


def _obs(count: int) -> Array:
    return np.random.default_rng(1).standard_normal((count, 5)).astype(np.float32)


def _forward(weights: Weights, obs: Array, dtype: torch.dtype) -> Tensor:
    """The output (N, outputs) of the learner's forward pass."""
    first, first_bias, last, last_bias = (
        torch.from_numpy(weights[f"actor/{part}"]).to(dtype) for part in ("0/weight", "0/bias", "1/weight", "1/bias")
    )
    return torch.tanh(torch.from_numpy(obs).to(dtype) @ first + first_bias) @ last + last_bias


def _likelihood(description: dict[str, Any]) -> distributions.Head:
    if description["kind"] == "gaussian":
        return distributions.GaussianHead(description["squashed"])
    if "branches" in description:
        return distributions.MultiCategorical(description["branches"])
    return distributions.Categorical()


@backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("centre", [0.0, 5.0])
@pytest.mark.parametrize("description", KINDS)
def test_the_learner_computes_the_stored_log_probability(
    description: dict[str, Any], centre: float, dtype: torch.dtype, backend: str
) -> None:
    """With means near 5, squashed actions are close to the bounds, where float32 has few distinct numbers."""
    weights, obs = _weights(description, centre=centre), _obs(4_000)
    action, extras = _act(_policy(description, weights, backend), obs)
    assert extras.keys() == {"log_prob"}
    assert action.dtype == extras["log_prob"].dtype == np.float32
    assert extras["log_prob"].shape == (4_000,)
    if centre and description.get("squashed"):
        assert (action > heads._INSIDE).any()
        assert ((action < 1.0) & (action > 0.9999)).any()
    log_std = torch.from_numpy(weights.get("actor/log_std", np.zeros(0, np.float32))).to(dtype)
    out = _forward(weights, obs, dtype)
    again, _, _ = _likelihood(description)(out, log_std, torch.from_numpy(action).to(dtype))
    np.testing.assert_allclose(extras["log_prob"], again.numpy(), rtol=2e-6, atol=2e-5)


def test_learner_and_policy_hold_squashed_actions_equally_far_inside_the_bounds() -> None:
    assert heads._INSIDE == distributions._INSIDE == float(np.float32(heads._INSIDE))


@pytest.mark.parametrize("description", KINDS)
def test_log_probabilities_are_torchs(description: dict[str, Any]) -> None:
    weights, obs = _weights(description), _obs(500)
    action, extras = _act(_policy(description, weights), obs)
    out, drawn = _forward(weights, obs, torch.float64), torch.from_numpy(action).double()
    if description["kind"] == "gaussian":
        own = torch.from_numpy(LOG_STD).double().expand(500, SIZE)
        log_std = out[:, SIZE:] if description["state_dependent_std"] else own
        base = Independent(Normal(out[:, :SIZE], log_std.exp()), 1)
        transforms = [TanhTransform()] if description["squashed"] else []
        wanted = TransformedDistribution(base, transforms).log_prob(drawn)
    else:
        parts = out.split(description.get("branches", [4]), 1)
        wanted = sum(Categorical(logits=part).log_prob(index) for part, index in zip(parts, drawn.T, strict=True))
    np.testing.assert_allclose(extras["log_prob"], wanted.numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("description", KINDS)
def test_both_backends_draw_the_same(description: dict[str, Any]) -> None:
    weights, obs = _weights(description), _obs(500)
    for seed in (0, None):
        (action, extras), (other, others) = (
            _act(_policy(description, weights, backend), obs, seed) for backend in ("numpy", "torch")
        )
        np.testing.assert_allclose(action, other, rtol=0, atol=1e-5)
        assert extras.keys() == others.keys()
        # Closer to the bounds, a difference in the last digit of an action changes its log-probability a lot.
        rows = (np.abs(action) < 0.99).all(1) if description.get("squashed") else slice(None)
        for name in extras:
            np.testing.assert_allclose(extras[name][rows], others[name][rows], rtol=1e-5, atol=1e-4)


@backends
@pytest.mark.parametrize("description", GAUSSIANS)
def test_draws_have_the_mean_and_the_deviation_of_the_output(description: dict[str, Any], backend: str) -> None:
    count = 40_000
    weights, obs = _weights(description), np.repeat(_obs(1), count, 0)
    action, _ = _act(_policy(description, weights, backend), obs)
    out = _forward(weights, obs[:1], torch.float64).numpy()[0]
    std = np.exp(out[SIZE:] if description["state_dependent_std"] else LOG_STD)
    before = np.arctanh(np.clip(action.astype(np.float64), -heads._INSIDE, heads._INSIDE))
    drawn = before if description["squashed"] else action
    # Five standard errors of a mean, of a standard deviation, and of a correlation.
    np.testing.assert_array_less(np.abs(drawn.mean(0) - out[:SIZE]), 5 * std / np.sqrt(count))
    np.testing.assert_array_less(np.abs(drawn.std(0) / std - 1.0), 5 / np.sqrt(2 * count))
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 5 / np.sqrt(count)
    assert np.abs(action).max() <= 1.0 if description["squashed"] else np.abs(action).max() > 1.5, "clipped, or not"


@backends
@pytest.mark.parametrize("description", CHOICES)
def test_choices_are_sampled_with_their_probabilities(description: dict[str, Any], backend: str) -> None:
    count = 40_000
    weights, obs = _weights(description), np.repeat(_obs(1), count, 0)
    action, extras = _act(_policy(description, weights, backend), obs)
    branches = description.get("branches", [4])
    assert action.shape == (count, len(branches))
    parts = _forward(weights, obs[:1], torch.float64)[0].split(branches)
    for index, part in zip(action.T, parts, strict=True):
        probability = part.softmax(0).numpy()
        assert probability.min() > 0.01
        found = np.bincount(index.astype(int), minlength=len(part)) / count
        assert found.shape == probability.shape
        np.testing.assert_array_less(np.abs(found - probability), 5 * np.sqrt(probability * (1 - probability) / count))
    # Independent: a pair of choices is as likely as both, so that -log p has the sum of the entropies as its mean.
    entropy = sum(float(Categorical(logits=part).entropy()) for part in parts)
    assert -extras["log_prob"].mean() == pytest.approx(entropy, abs=5 * extras["log_prob"].std() / np.sqrt(count))
    if len(branches) > 1:
        assert abs(np.corrcoef(action.T)[0, 1]) < 5 / np.sqrt(count)


@backends
@pytest.mark.parametrize("description", KINDS)
def test_without_a_generator_the_most_likely_action_is_taken_and_nothing_is_stored(
    description: dict[str, Any], backend: str
) -> None:
    weights, obs = _weights(description), _obs(50)
    action, extras = _act(_policy(description, weights, backend), obs, None)
    out = _forward(weights, obs, torch.float32)
    if description["kind"] == "gaussian":
        mean = out[:, :SIZE]
        wanted = mean.tanh() if description["squashed"] else mean
    else:
        wanted = torch.stack([part.argmax(1) for part in out.split(description.get("branches", [4]), 1)], 1).float()
    assert extras == {}
    assert action.dtype == np.float32
    np.testing.assert_allclose(action, wanted.numpy(), rtol=0, atol=1e-5)


@backends
@pytest.mark.parametrize("description", KINDS)
def test_the_carry_is_handed_on_as_it_came(description: dict[str, Any], backend: str) -> None:
    policy, carry = _policy(description, _weights(description), backend), np.ones((3, 0), np.float32)
    for rng in (None, np.random.default_rng(0)):
        assert policy.act(_obs(3), carry, rng)[1] is carry


def test_new_weights_bring_a_new_deviation() -> None:
    description = _gaussian()
    policy, obs = _policy(description, _weights(description)), _obs(50)
    before, _ = _act(policy, obs)
    policy.load({**_weights(description), "actor/log_std": np.full(SIZE, -20.0, np.float32)})
    after, _ = _act(policy, obs)
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(after, _act(policy, obs, None)[0], atol=1e-6)


@pytest.mark.parametrize("branches", [None, BRANCHES])
def test_choices_are_the_same_with_and_without_log_probabilities(branches: list[int] | None) -> None:
    description = _choice(branches)
    weights, obs = _weights(description), _obs(200)
    action, _ = _act(_policy(description, weights), obs)
    other, extras = _act(_policy({**description, "log_prob": False}, weights), obs)
    np.testing.assert_array_equal(action, other)
    assert extras == {}


def test_one_branch_chooses_as_a_single_choice_does() -> None:
    description = _choice()
    weights, obs = _weights(description), _obs(200)
    (action, extras), (other, others) = (_act(_policy(each, weights), obs) for each in (description, _choice([4])))
    np.testing.assert_array_equal(action, other)
    np.testing.assert_array_equal(extras["log_prob"], others["log_prob"])


@backends
@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("description", KINDS)
def test_a_diverged_network_is_noticed_in_its_actions(
    description: dict[str, Any], seed: int | None, backend: str
) -> None:
    weights = _weights(description)
    weights["actor/1/bias"][0] = np.nan
    action, extras = _act(_policy(description, weights, backend), _obs(3), seed)
    assert np.isnan(action[:, 0]).all()
    assert np.isfinite(action[:, 1:]).all()
    assert all(np.isnan(each).all() for each in extras.values())


class Own(nn.Module):
    """The network of `_weights`, as a module; optionally with a pair as output."""

    def __init__(self, outputs: int, pair: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.pair = nn.Linear(5, 16), nn.Linear(16, outputs), pair

    def forward(self, obs: Tensor) -> Tensor | tuple[Tensor, ...]:
        out = self.last(torch.tanh(self.first(obs)))
        return out.chunk(2, -1) if self.pair else out


def _own_weights(weights: Weights) -> dict[str, Array]:
    own = {"actor/log_std": weights["actor/log_std"]} if "actor/log_std" in weights else {}
    for number, name in enumerate(("first", "last")):
        own[f"actor/{name}.weight"] = weights[f"actor/{number}/weight"].T
        own[f"actor/{name}.bias"] = weights[f"actor/{number}/bias"]
    return own


def _own_policy(description: dict[str, Any], weights: Weights, module: nn.Module) -> Policy:
    spec: EnvSpec = vector_spec(5, SIZE) if description["kind"] == "gaussian" else choice_spec(5, 4)
    described = {**description, "kind": "module", "head": description["kind"]}
    policy = make_policy(described, spec=spec, actor=lambda spec: module)
    policy.load(weights)
    return policy


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize(
    ("description", "pair"),
    [(each.values[0], False) for each in KINDS] + [(_gaussian(squashed, True), True) for squashed in (False, True)],
)
def test_a_users_module_acts_like_the_same_network(description: dict[str, Any], pair: bool, seed: int | None) -> None:
    weights, obs = _weights(description), _obs(100)
    wanted, wanted_extras = _act(_policy(description, weights), obs, seed)
    policy = _own_policy(description, _own_weights(weights), Own(_outputs(description), pair))
    action, extras = _act(policy, obs, seed)
    np.testing.assert_allclose(action, wanted, rtol=0, atol=1e-5)
    assert action.dtype == np.float32
    assert extras.keys() == wanted_extras.keys()
    for name in extras:
        np.testing.assert_allclose(extras[name], wanted_extras[name], rtol=1e-5, atol=1e-4)
        assert extras[name].dtype == np.float32
    carry = policy.initial_carry(100)
    assert policy.act(obs, carry, np.random.default_rng(0))[1] is carry


def test_a_module_whose_deviation_depends_on_the_state_may_have_a_log_std_of_its_own() -> None:
    class Wide(Own):
        def __init__(self) -> None:
            super().__init__(SIZE)
            self.log_std = nn.Parameter(torch.zeros(SIZE))

        def forward(self, obs: Tensor) -> tuple[Tensor, ...]:
            mean = super().forward(obs)
            return mean, self.log_std.expand_as(mean)  # type: ignore[arg-type, return-value]

    weights, obs = _weights(_gaussian()), _obs(100)
    wanted, wanted_extras = _act(_policy(_gaussian(), weights), obs)
    description = _gaussian(state_dependent_std=True)
    action, extras = _act(_own_policy(description, _own_weights(weights), Wide()), obs)
    np.testing.assert_allclose(action, wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(extras["log_prob"], wanted_extras["log_prob"], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("head", ["greedy", "categorical"])
def test_a_diverged_module_is_not_taken_for_a_choice(head: str) -> None:
    module = Own(4)
    policy = _own_policy(
        {"kind": head}, {f"actor/{name}": each.numpy() for name, each in module.state_dict().items()}, module
    )
    nn.init.constant_(module.last.bias, torch.nan)
    with pytest.raises(OffbeatError, match="diverged"):
        _act(policy, _obs(3))
