"""One update of SAC in float64 equals the documented formulas, written out plainly."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

import skrl_agents as small
from offbeat.compat import skrl
from offbeat.errors import UsageError

GAMMA, POLYAK, RATES = 0.9, 0.1, (1e-2, 2e-2, 3e-2)


class Plain:
    """SAC as documented, by autograd and torch's own Adam, one module and one formula after the other."""

    def __init__(
        self,
        models: dict[str, Any],
        coefficient: float,
        learned: bool,
        clip: float,
        target: float,
        limit: float | None = None,
    ) -> None:
        self.limit, self.clipped = limit, list[float]()
        self.models, self.learned, self.clip, self.target = copy.deepcopy(models), learned, clip, target
        for name in ("critic_1", "critic_2"):
            self.models[f"target_{name}"].load_state_dict(self.models[name].state_dict())
        self.log_coefficient = torch.tensor([coefficient], dtype=torch.float64).log().requires_grad_()
        critics = [*self.models["critic_1"].parameters(), *self.models["critic_2"].parameters()]
        parameters = [*self.models["policy"].parameters()], critics, [self.log_coefficient]
        self.parameters = parameters
        self.optimizers = [torch.optim.Adam(own, lr=rate) for own, rate in zip(parameters, RATES, strict=True)]

    def draw(self, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        mean, outputs = self.models["policy"].compute(inputs, "policy")
        distribution = Normal(mean, outputs["log_std"].clamp(-20, 2).exp())
        action = distribution.rsample()
        if self.limit is not None:
            drawn, action = action, action.clamp(-self.limit, self.limit)
            self.clipped.append(float((action != drawn).double().mean()))
        return action, distribution.log_prob(action).sum(-1, keepdim=True)

    def value(self, name: str, inputs: dict[str, Any], action: Tensor) -> Tensor:
        value: Tensor = self.models[name].compute({**inputs, "taken_actions": action}, name)[0]
        return value

    def step(self, which: int, loss: Tensor) -> None:
        self.optimizers[which].zero_grad()
        loss.backward()
        if self.clip > 0 and which < 2:
            torch.nn.utils.clip_grad_norm_(self.parameters[which], self.clip)
        self.optimizers[which].step()

    def update(self, rows: dict[str, Tensor]) -> None:
        now = {"observations": rows["observations"], "states": rows.get("states")}
        then = {"observations": rows["next_observations"], "states": rows.get("next_states")}
        coefficient = self.log_coefficient.detach().exp()
        with torch.no_grad():
            action, log_prob = self.draw(then)
            smaller = torch.min(
                self.value("target_critic_1", then, action), self.value("target_critic_2", then, action)
            )
            alive = (~rows["terminated"]).double()
            target = rows["rewards"] + GAMMA * alive * (smaller - coefficient * log_prob)
        losses = [(self.value(f"critic_{each}", now, rows["actions"]) - target).square().mean() for each in (1, 2)]
        self.step(1, (losses[0] + losses[1]) / 2)
        action, log_prob = self.draw(now)
        smaller = torch.min(self.value("critic_1", now, action), self.value("critic_2", now, action))
        self.step(0, (coefficient * log_prob - smaller).mean())
        if self.learned:
            self.step(2, -(self.log_coefficient * (log_prob + self.target).detach()).mean())
        with torch.no_grad():
            for name in ("critic_1", "critic_2"):
                pairs = zip(self.models[f"target_{name}"].parameters(), self.models[name].parameters(), strict=True)
                for slow, learned in pairs:
                    slow.copy_((1 - POLYAK) * slow + POLYAK * learned)


class Given(skrl.Memory):
    """A user's memory whose batch is the rows that it was given, in float64."""

    def __init__(self, rows: dict[str, Tensor]) -> None:
        super().__init__(memory_size=8)
        self.rows = rows

    def sample(self, names: list[str], **options: Any) -> list[list[Any]]:
        return [[self.rows.get(name) for name in names]]


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("states", [None, small.STATES])
@pytest.mark.parametrize("limit", [None, 0.8], ids=["drawn", "clipped"])
def test_an_update_equals_the_documented_formulas(
    tmp_path: Path, learned: bool, clip: float, states: Any, limit: float | None
) -> None:
    """limit: of actions, with clip_actions; beyond it, the policy's gradient has a branch of its own."""
    rows = {name: tensor.double() if tensor.is_floating_point() else tensor
            for name, tensor in small.transitions(16, states=states is not None).items()}  # fmt: skip
    models = small.make_models(states=states, dtype=torch.float64, clip_actions=limit is not None)
    if limit is not None:
        bound = torch.full((2,), limit, dtype=torch.float64)
        models["policy"]._limits = -bound, bound
    plain = Plain(models, 0.3, learned, clip, target=-1.5, limit=limit)
    settings = {"discount_factor": GAMMA, "polyak": POLYAK, "learning_rate": RATES, "initial_entropy_value": 0.3}
    settings |= {"learn_entropy": learned, "target_entropy": -1.5, "grad_norm_clip": clip, "batch_size": 16}
    agent = small.make_agent(tmp_path, Given(rows), models, states, **settings)
    for number in range(3):
        torch.manual_seed(number)
        plain.update(rows)
        torch.manual_seed(number)
        agent.update(timestep=number, timesteps=3)
        for name in small.NAMES:
            for mine, theirs in zip(models[name].parameters(), plain.models[name].parameters(), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
        torch.testing.assert_close(agent.log_entropy_coefficient, plain.log_coefficient, rtol=0, atol=1e-9)
    if limit is not None:
        assert 0.2 < sum(plain.clipped) / len(plain.clipped) < 0.5, plain.clipped


def test_our_replay_gives_the_same_update_as_a_memory_of_the_user(tmp_path: Path) -> None:
    """The rows that our replay draws are given to a second agent, through its own memory."""
    rows = small.transitions(40)
    ours = small.make_agent(tmp_path, skrl.RandomMemory(memory_size=64), batch_size=16)
    ours.memory.add_samples(**rows)
    drawn = copy.deepcopy(ours.streams.sampling).choice(40, 16, replace=False)
    theirs = small.make_agent(tmp_path, Given({name: tensor[drawn] for name, tensor in rows.items()}), batch_size=16)
    for agent in (ours, theirs):
        torch.manual_seed(1)
        agent.update(timestep=0, timesteps=1)
    for name, tensor in small.weights(ours).items():
        torch.testing.assert_close(tensor, small.weights(theirs)[name], rtol=1e-5, atol=1e-7)


def test_settings_that_are_changed_after_construction(tmp_path: Path) -> None:
    changed, plain = (small.make_agent(tmp_path, models=small.make_models(seed=0)) for _ in range(2))
    changed.cfg.learning_rate = 1e-4  # the optimizers have their rates, as in skrl
    changed.cfg.polyak = plain.cfg.polyak = 0.5
    for agent in (changed, plain):
        agent.memory.add_samples(**small.transitions(20))
        torch.manual_seed(0)
        agent.update(timestep=1, timesteps=3)
    assert changed.cfg.learning_rate == (1e-4, 1e-4, 1e-4)
    assert changed.policy_optimizer.rate == 1e-3
    assert changed.learner.backend.config.target.tau == 0.5
    assert all(torch.equal(each, small.weights(plain)[name]) for name, each in small.weights(changed).items())
    changed.cfg.polyak = 1.5
    with pytest.raises(UsageError, match=r"polyak=1\.5 is out of range"):
        changed.update(timestep=2, timesteps=3)
