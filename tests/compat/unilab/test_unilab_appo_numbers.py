"""One update of `APPOLearner` equals a plain loop of the documented formulas, in float64 to 1e-9."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import unilab_rollouts as rollouts
from torch import Tensor

from offbeat.compat.unilab import vtrace_advantages

CLOSE = {"rtol": 0.0, "atol": 1e-9}


def oracle(
    behaviour: Tensor,
    target: Tensor,
    reward: Tensor,
    value: Tensor,
    last: Tensor,
    done: Tensor,
    gamma: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[Tensor, Tensor]:
    """Every target as the sum over all later rows that Espeholt et al. (2018) define, in O(T^2)."""
    steps, envs = reward.shape
    vs, advantages = torch.zeros_like(value), torch.zeros_like(value)
    ratio = (target - behaviour).exp()
    for env in range(envs):
        following = [*value[1:, env], last[env]]
        goes_on = [0.0 if done[t, env] else gamma for t in range(steps)]
        td = [reward[t, env] + goes_on[t] * following[t] - value[t, env] for t in range(steps)]
        for s in range(steps):
            total, weight = value[s, env].clone(), 1.0
            for t in range(s, steps):
                total += weight * min(float(ratio[t, env]), rho_bar) * td[t]
                weight *= goes_on[t] * min(float(ratio[t, env]), c_bar)
            vs[s, env] = total
        for s in range(steps):
            after = vs[s + 1, env] if s + 1 < steps else last[env]
            advantages[s, env] = min(float(ratio[s, env]), rho_bar) * (
                reward[s, env] + goes_on[s] * after - value[s, env]
            )
    return vs, advantages


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("gamma", "clip_rho", "clip_c"), [(0.99, 1.0, 1.0), (0.9, 1.5, 0.7), (1.0, 0.5, 2.0)])
def test_vtrace_is_the_sum_over_all_later_rows(
    gamma: float, clip_rho: float, clip_c: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(3)
    behaviour, target, reward, value = torch.randn(4, 9, 3, generator=generator, dtype=torch.float64)
    last = torch.randn(3, generator=generator, dtype=torch.float64)
    done = torch.rand(9, 3, generator=generator) < 0.25
    done[-1, 0], done[-1, 1] = True, False
    wanted = oracle(behaviour, target, reward, value, last, done, gamma, clip_rho, clip_c)
    arguments = [each.to(dtype) for each in (behaviour, target, reward, value, last, done.double())]
    found = vtrace_advantages(*arguments, gamma=gamma, clip_rho=clip_rho, clip_c=clip_c)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    for mine, plain in zip(found, wanted, strict=True):
        assert mine.shape == (9, 3)
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), plain, rtol=0.0, atol=tolerance)


def test_vtrace_defaults_are_099_and_ratios_clipped_at_1() -> None:
    generator = torch.Generator().manual_seed(4)
    arrays = [torch.randn(5, 2, generator=generator, dtype=torch.float64).numpy() for _ in range(4)]
    last, done = torch.randn(2, generator=generator, dtype=torch.float64).numpy(), torch.zeros(5, 2).numpy()
    for mine, plain in zip(
        vtrace_advantages(*arrays, last, done), vtrace_advantages(*arrays, last, done, 0.99, 1.0, 1.0), strict=True
    ):
        torch.testing.assert_close(mine, plain, rtol=0.0, atol=0.0)


@dataclass
class Plain:
    """UniLab's learner written out: its models, its settings, one optimiser over both models."""

    actor: Any
    critic: Any
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        self.rate = self.settings["learning_rate"]
        self.target = copy.deepcopy(self.actor)
        parameters = [*self.actor.parameters(), *self.critic.parameters()]
        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        self.optimiser = kinds[self.settings["optimizer"]](parameters, lr=self.rate)
        self.parameters = parameters

    @staticmethod
    def mean_and_std(actor: Any, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean = actor.mlp(actor.obs_normalizer(obs))
        gaussian = actor.distribution
        std = gaussian.std_param if gaussian.std_type == "scalar" else gaussian.log_std_param.exp()
        return mean, std.expand_as(mean) * 1.0

    @staticmethod
    def log_prob(mean: Tensor, std: Tensor, action: Tensor) -> Tensor:
        return (-0.5 * ((action - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)

    def value(self, obs: Tensor) -> Tensor:
        out: Tensor = self.critic.mlp(self.critic.obs_normalizer(obs))
        return out.squeeze(-1)

    def update(self, batch: dict[str, Tensor], calls: int) -> None:
        with torch.no_grad():
            rows = self.processed(batch)
        size = len(rows["obs"]) // self.settings["num_mini_batches"]
        orders = [torch.randperm(len(rows["obs"])) for _ in range(self.settings["num_learning_epochs"])]
        for order in orders:
            for part in range(self.settings["num_mini_batches"]):
                chosen = order[part * size : (part + 1) * size]
                self.step({name: column[chosen] for name, column in rows.items()})
        if calls % self.settings["target_update_freq"] == 0:
            tau = self.settings["tau"]
            with torch.no_grad():
                for slow, fast in zip(self.target.parameters(), self.actor.parameters(), strict=True):
                    slow.copy_(tau * fast + (1 - tau) * slow)

    def normalise(self, batch: dict[str, Tensor]) -> None:
        pairs = (
            (self.actor, batch["observations"], batch["last_obs"]),
            (
                self.critic,
                batch.get("critic", batch["observations"]),
                batch.get("last_critic", batch["last_obs"]),
            ),
        )
        for model, rows, last in pairs:
            if model.obs_normalization:
                seen = model.__dict__.setdefault("seen_rows", [])
                seen += [rows.flatten(0, 1), last]
                every = torch.cat(seen)
                buffers = model.obs_normalizer
                buffers._mean.copy_(every.mean(0, keepdim=True))
                buffers._std.copy_(every.std(0, keepdim=True, correction=0))
        for slow, fast in zip(self.target.buffers(), self.actor.buffers(), strict=True):
            slow.copy_(fast)

    def processed(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        self.normalise(batch)
        obs, action = batch["observations"], batch["actions"]
        critic_obs, last = batch.get("critic", obs), batch.get("last_critic", batch["last_obs"])
        value, last_value = self.value(critic_obs), self.value(last)
        mean, std = self.mean_and_std(self.target, obs)
        reference = self.log_prob(mean, std, action)
        reward, done = batch["rewards"].clone(), batch["dones"]
        if "time_outs" in batch:
            ends = value if "final_obs" not in batch else self.value(batch["final_obs"])
            reward += self.settings["gamma"] * ends * batch["time_outs"]
        target, advantage = self.lambda_vtrace(batch["actions_log_prob"], reference, reward, value, last_value, done)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        columns = {
            "obs": obs,
            "critic": critic_obs,
            "action": action,
            "behaviour": batch["actions_log_prob"],
            "reference": reference,
            "advantage": advantage,
            "target": target,
            "value": value,
            "mean": mean,
            "std": std,
        }
        return {name: column.flatten(0, 1) for name, column in columns.items()}

    def lambda_vtrace(
        self, behaviour: Tensor, reference: Tensor, reward: Tensor, value: Tensor, last: Tensor, done: Tensor
    ) -> tuple[Tensor, Tensor]:
        gamma, lam = self.settings["gamma"], self.settings["lam"]
        ratio = (reference - behaviour).exp()
        rho, trace = ratio.clamp(max=self.settings["vtrace_clip_rho"]), ratio.clamp(max=self.settings["vtrace_clip_c"])
        following = torch.cat((value[1:], last.unsqueeze(0)))
        targets, advantages = torch.zeros_like(value), torch.zeros_like(value)
        later = torch.zeros_like(last)  # v' - V(s')
        for t in range(len(reward) - 1, -1, -1):
            later = (1 - done[t]) * later
            td = reward[t] + gamma * (1 - done[t]) * following[t] - value[t]
            advantages[t] = rho[t] * (td + gamma * lam * later)
            later = rho[t] * td + gamma * lam * trace[t] * later
            targets[t] = value[t] + later
        return targets, advantages

    def step(self, rows: dict[str, Tensor]) -> None:
        settings, clip = self.settings, self.settings["clip_param"]
        mean, std = self.mean_and_std(self.actor, rows["obs"])
        log_prob = self.log_prob(mean, std, rows["action"])
        entropy = (std.log() + 0.5 * (1 + math.log(2 * math.pi))).sum(-1).mean()
        cap = (rows["behaviour"] - rows["reference"]).exp().clamp(max=1.0)
        ratio = cap * (log_prob - rows["behaviour"]).exp()
        advantage = rows["advantage"]
        policy = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)).mean()
        value = self.value(rows["critic"])
        errors = (value - rows["target"]) ** 2
        if settings["use_clipped_value_loss"]:
            near = rows["value"] + (value - rows["value"]).clamp(-clip, clip)
            errors = torch.max(errors, (near - rows["target"]) ** 2)
        loss = policy + settings["value_loss_coef"] * errors.mean() - settings["entropy_coef"] * entropy
        if settings["schedule"] == "adaptive":
            self.adapt(rows, mean.detach(), std.detach())
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, settings["max_grad_norm"])
        self.optimiser.step()

    def adapt(self, rows: dict[str, Tensor], mean: Tensor, std: Tensor) -> None:
        settings = self.settings
        apart = (rows["std"] ** 2 + (rows["mean"] - mean) ** 2) / (2 * std**2)
        kl = float(((std / rows["std"] + 1e-5).log() + apart - 0.5).sum(-1).mean())
        if kl > settings["desired_kl"] * settings["adaptive_kl_factor"]:
            self.rate = max(1e-5, self.rate / settings["adaptive_lr_factor"])
        elif 0 < kl < settings["desired_kl"] / settings["adaptive_kl_factor"]:
            self.rate = min(1e-2, self.rate * settings["adaptive_lr_factor"])
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate


DEFAULTS: dict[str, Any] = {
    "num_learning_epochs": 5,
    "num_mini_batches": 4,
    "clip_param": 0.2,
    "gamma": 0.99,
    "lam": 0.95,
    "value_loss_coef": 1.0,
    "entropy_coef": 0.01,
    "learning_rate": 0.001,
    "max_grad_norm": 1.0,
    "use_clipped_value_loss": True,
    "schedule": "fixed",
    "desired_kl": 0.01,
    "adaptive_kl_factor": 1.2,
    "adaptive_lr_factor": 1.1,
    "optimizer": "adam",
    "tau": 1.0,
    "target_update_freq": 1,
    "vtrace_clip_rho": 1.0,
    "vtrace_clip_c": 1.0,
}
CHANGED: dict[str, Any] = {
    "num_learning_epochs": 2,
    "num_mini_batches": 3,
    "clip_param": 0.1,
    "gamma": 0.8,
    "lam": 0.5,
    "value_loss_coef": 0.3,
    "entropy_coef": 0.1,
    "learning_rate": 0.01,
    "max_grad_norm": 0.05,
    "use_clipped_value_loss": False,
    "schedule": "adaptive",
    "optimizer": "adamw",
    "tau": 0.3,
    "target_update_freq": 2,
    "vtrace_clip_rho": 0.7,
    "vtrace_clip_c": 0.6,
}


def compare(changes: dict[str, Any], calls: int = 3, **options: Any) -> tuple[Any, Plain]:
    """Three calls of update by each side, from equal models and the same order of rows."""
    batch_options = {"critic": options.pop("critic", False)}
    size = rollouts.CRITIC if batch_options["critic"] else rollouts.OBS
    ours = rollouts.learner(size, **options, **changes)
    plain = Plain(copy.deepcopy(ours.actor), copy.deepcopy(ours.critic), DEFAULTS | changes)
    for call in range(1, calls + 1):
        batch = rollouts.rollout(call, **batch_options) | options.get("extra", {})
        torch.manual_seed(call)
        metrics = ours.update(ours.process_batch(dict(batch)))
        torch.manual_seed(call)
        plain.update(batch, call)
        for mine, theirs in ((ours.actor, plain.actor), (ours.critic, plain.critic), (ours.target_actor, plain.target)):
            for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(one, other, **CLOSE)
        assert metrics["optim/learning_rate"] == pytest.approx(plain.rate, abs=1e-12)
    return ours, plain


@pytest.mark.parametrize("name", [None, *CHANGED])
def test_an_update_is_the_documented_one_whatever_a_setting_is(name: str | None) -> None:
    fast = {"learning_rate": 0.02}  # at which values move further than clip_param
    changes = {} if name is None else {name: CHANGED[name]}
    changed, usual = compare(fast | changes)[0], compare(fast)[0]
    differ = any(
        not torch.equal(one, other)
        for mine, theirs in ((changed.actor, usual.actor), (changed.critic, usual.critic))
        for one, other in zip(mine.parameters(), theirs.parameters(), strict=True)
    )
    assert differ == (name is not None)


@pytest.mark.parametrize(
    ("name", "value"), [("desired_kl", 0.001), ("adaptive_kl_factor", 3.0), ("adaptive_lr_factor", 1.7)]
)
def test_each_setting_of_the_adaptive_rate_is_the_documented_one(name: str, value: float) -> None:
    rates = [compare({"schedule": "adaptive", **more})[0].learning_rate for more in ({}, {name: value})]
    assert rates[0] != rates[1]


@pytest.mark.parametrize(("rate", "desired", "bound"), [(5e-3, 10.0, 1e-2), (2e-5, 1e-7, 1e-5)])
def test_adaptive_rates_stay_between_their_bounds(rate: float, desired: float, bound: float) -> None:
    ours, _ = compare({"schedule": "adaptive", "learning_rate": rate, "desired_kl": desired})
    assert ours.learning_rate == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("kind", ["scalar", "log"])
def test_models_normalise_and_learn_their_deviation(kind: str) -> None:
    ours, _ = compare({}, normalise=True, gaussian={"std_type": kind, "init_std": 0.8})
    name = "std_param" if kind == "scalar" else "log_std_param"
    assert not torch.equal(ours.get_weights()[f"distribution.{name}"], torch.full((2,), 0.8).double())


def test_a_critic_may_have_observations_of_its_own() -> None:
    ours, plain = compare({}, critic=True, normalise=True)
    batch = rollouts.rollout(9, critic=True)
    learned = [ours.process_batch({**batch, "critic": batch["critic"] * scale})["values"] for scale in (1.0, 2.0)]
    assert not torch.equal(*learned)  # the values are of `critic`, and of nothing else
    assert ours.critic.mlp[0].in_features == plain.critic.mlp[0].in_features == rollouts.CRITIC
    assert ours.actor.mlp[0].in_features == rollouts.OBS
