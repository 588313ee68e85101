"""Actors of one's own that mask actions by a logit of -inf: nothing becomes NaN, and nothing left is said in words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from driven_learner import Learner
from offbeat.algorithms.configs import Fixed
from offbeat.algorithms.torch.distributions import Categorical, MultiCategorical
from offbeat.errors import OffbeatError
from offbeat.policies import make_policy
from offbeat.settings import make_learner_config
from offbeat.types import EnvSpec
from small_rollouts import make, rollout, turn
from specs import choice_spec, random_transitions

SPEC = choice_spec(5, 3)
NONE = torch.zeros(0, dtype=torch.float64)


class Masking(nn.Module):
    """Forbids the first action where the first number of the observation is negative, and all where it is nine."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.linear = nn.Linear(spec.observation_size, spec.choices or 1)

    def forward(self, obs: Tensor) -> Tensor:
        forbidden = (obs[:, :1] == 9) | ((obs[:, :1] < 0) & (torch.arange(3) == 0))
        out: Tensor = self.linear(obs).masked_fill(forbidden, -math.inf)
        return out


def fallen(learner: Learner) -> list[str]:
    """The names of arrays that are not finite any more."""
    return [name for name, array in learner.arrays().items() if not np.isfinite(array).all()]


@pytest.mark.parametrize("head", [Categorical(), MultiCategorical([3, 2])], ids=["one", "several"])
def test_value_and_gradient_are_those_of_the_actions_that_are_left(head: Any) -> None:
    out = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out[:, 1] = -math.inf
    action = torch.zeros(6, 1) if isinstance(head, Categorical) else torch.zeros(6, 2)
    left = Categorical() if isinstance(head, Categorical) else MultiCategorical([2, 2])
    log_prob, entropy, saved = head(out, NONE, action)
    wanted, wanted_entropy, wanted_saved = left(out[:, [0, 2, 3, 4]], NONE, action)
    torch.testing.assert_close(log_prob, wanted)
    torch.testing.assert_close(entropy, wanted_entropy)
    gradient, _ = head.gradient(saved, torch.ones(6, dtype=torch.float64), 0.3)
    wanted_gradient, _ = left.gradient(wanted_saved, torch.ones(6, dtype=torch.float64), 0.3)
    torch.testing.assert_close(gradient[:, [0, 2, 3, 4]], wanted_gradient)
    assert not gradient[:, 1].any()


@pytest.mark.parametrize("algorithm", ["sac", "dqn"])
def test_learning_from_replay_goes_on_with_finite_numbers(algorithm: str) -> None:
    """Also where a final observation leaves no action, which is often so when a game is over."""
    config = (
        make_learner_config("sac", actor=Masking, hidden=(8,), temperature=Fixed(0.3))
        if algorithm == "sac"
        else make_learner_config("dqn", critic=Masking)
    )
    learner, rng = Learner(algorithm, config, SPEC, rng=np.random.default_rng(1)), np.random.default_rng(0)
    batch = random_transitions(rng, SPEC)
    batch.obs[:, 0], batch.next_obs[:, 0] = -1.0, -1.0
    batch.action[:] = 1.0
    batch.next_obs[batch.discount == 0, 0] = 9.0
    assert (batch.discount == 0).any()
    for _ in range(2):
        learner.update_once(batch, np.zeros(learner.noise_shape, np.float32))
    assert fallen(learner) == []
    assert all(math.isfinite(value) for value in learner.drain().values())


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_learning_from_rollouts_goes_on_with_finite_numbers(algorithm: str) -> None:
    learner = make(algorithm, SPEC, actor=Masking, entropy_coefficient=0.01)
    experience = rollout(learner)
    allowed = experience.columns["obs"][..., 0] >= 0
    experience.columns["action"][~allowed] = 2.0
    experience.columns["log_prob"][...] = math.log(0.4)
    turn(learner, experience)
    assert fallen(learner) == []
    assert all(math.isfinite(value) for value in learner.drain().values())


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("head", ["greedy", "categorical"])
def test_a_module_that_leaves_no_action_or_gives_nan_is_told_the_cause(head: str, seed: int | None) -> None:
    policy = make_policy({"kind": "module", "head": head, "log_prob": True}, spec=SPEC, actor=Masking)
    weights = {f"actor/{name}": each.numpy() for name, each in Masking(SPEC).state_dict().items()}
    policy.load(weights)
    obs, rng = np.full((2, 5), -1.0, np.float32), None if seed is None else np.random.default_rng(seed)
    action, _, extras = policy.act(obs, policy.initial_carry(2), rng)
    assert (action > 0).all()
    assert all(np.isfinite(each).all() for each in extras.values())
    obs[1, 0] = 9.0
    with pytest.raises(OffbeatError, match=r"-inf for every action of observation 1.*at least one action"):
        policy.act(obs, policy.initial_carry(2), rng)
    policy.load({**weights, "actor/linear.bias": np.full(3, np.nan, np.float32)})
    words = r"returned \[-?(inf|nan), nan, nan\] for observation 0.*masked_fill.*diverged"
    with pytest.raises(OffbeatError, match=words):
        policy.act(obs, policy.initial_carry(2), rng)


@pytest.mark.parametrize("kind", ["greedy", "categorical"])
@pytest.mark.parametrize("seed", [None, 0])
def test_weights_that_leave_no_action_are_not_taken_for_a_choice(kind: str, seed: int | None) -> None:
    policy = make_policy({"kind": kind, "activation": "relu", "dueling": False, "log_prob": True})
    policy.load({"actor/0/weight": np.zeros((5, 3), np.float32), "actor/0/bias": np.full(3, -np.inf, np.float32)})
    rng = None if seed is None else np.random.default_rng(seed)
    assert np.isnan(policy.act(np.zeros((2, 5), np.float32), policy.initial_carry(2), rng)[0]).all()
