"""Asynchronous PPO: UniLab's learner and its V-trace, over our APPO."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offbeat.algorithms.configs import APPO, AdaptiveRate, FixedRate
from offbeat.algorithms.torch import appo
from offbeat.algorithms.torch.optimise import OPTIMISERS, make_optimiser
from offbeat.algorithms.torch.returns import vtrace
from offbeat.algorithms.torch.rollout import Minibatch, RolloutRows
from offbeat.compat.unilab.algos.torch.appo.networks import input_size, log_std, make_networks
from offbeat.compat.unilab.algos.torch.appo.rollout import PROCESSED, Widths, check_processed, rollout_tensors
from offbeat.compat.unilab.algos.torch.offpolicy.checks import check_numbers
from offbeat.compat.unilab.rsl_rl.models import MLPModel
from offbeat.errors import UsageError
from offbeat.learn.torch import copy_into, denormals_flushed
from offbeat.learn.torch_devices import choose_device
from offbeat.learn.torch_state import state_tensors
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.snapshot import Snapshot
from offbeat.settings import make_learner_config
from offbeat.types import EnvSpec, Layout

__all__ = ["APPOLearner", "MLPModel", "vtrace_advantages"]

Rule = tuple[Callable[[Any], bool], str]
"""Whether a number is in range, and the range in words."""
NEVER = 1 << 62
"""More updates than a run makes: `APPOLearner` moves the target network itself, by calls of `update`."""


def vtrace_advantages(
    behavior_log_probs: Any,
    target_log_probs: Any,
    rewards: Any,
    values: Any,
    bootstrap_values: Any,
    dones: Any,
    gamma: float = 0.99,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace value targets and policy-gradient advantages (Espeholt et al. 2018), both [T, N].

    All arguments [T, N], except bootstrap_values [N], the values after the last row. dones: termination, after which
    nothing is bootstrapped. The ratio in the advantages is clipped at clip_rho too.
    """
    behaviour, target, reward, value, last, terminated = _vtrace_tensors(
        behavior_log_probs=behavior_log_probs,
        target_log_probs=target_log_probs,
        rewards=rewards,
        values=values,
        bootstrap_values=bootstrap_values,
        dones=dones,
    )
    return vtrace(
        behaviour_log_prob=behaviour,
        target_log_prob=target,
        reward=reward,
        value=value,
        next_value=torch.cat((value[1:], last.unsqueeze(0))),
        terminated=terminated,
        truncated=torch.zeros_like(terminated),
        gamma=gamma,
        lambda_=1.0,
        rho_bar=clip_rho,
        c_bar=clip_c,
        pg_rho_bar=clip_rho,
    )


def _vtrace_tensors(**given: Any) -> tuple[Tensor, ...]:
    """The arguments of `vtrace_advantages` as tensors, dones as bool; refuses shapes that do not fit rewards [T, N]."""
    tensors = {name: torch.as_tensor(value) for name, value in given.items()}
    shape = tuple(tensors["rewards"].shape)
    if len(shape) != 2:
        raise UsageError(f"rewards has shape {shape}, but it must be [T, N]: steps and environments")
    for name, tensor in tensors.items():
        wanted = shape[1:] if name == "bootstrap_values" else shape
        if tuple(tensor.shape) != wanted:
            raise UsageError(
                f"{name} has shape {tuple(tensor.shape)}, but with rewards {list(shape)} it must be {list(wanted)}"
            )
    tensors["dones"] = tensors["dones"] > 0.5
    return tuple(tensors.values())


class APPOLearner:
    """PPO updates with V-trace and a target network, of models that the caller keeps, over rollouts from anywhere.

    actor, critic: learned in place. `update` makes num_learning_epochs passes of num_mini_batches steps. The reference
    of ratios is `target_actor`, which moves by tau after every target_update_freq calls of `update`. schedule: "fixed",
    or "adaptive" to hold the KL divergence at desired_kl, with rates between 1e-5 and 1e-2.
    """

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        num_learning_epochs: int = 5,
        num_mini_batches: int = 4,
        clip_param: float = 0.2,
        gamma: float = 0.99,
        lam: float = 0.95,
        value_loss_coef: float = 1.0,
        entropy_coef: float = 0.01,
        learning_rate: float = 0.001,
        max_grad_norm: float = 1.0,
        use_clipped_value_loss: bool = True,
        schedule: str = "fixed",
        desired_kl: float = 0.01,
        adaptive_kl_factor: float = 1.2,
        adaptive_lr_factor: float = 1.1,
        device: str = "cpu",
        optimizer: str = "adam",
        tau: float = 1.0,
        target_update_freq: int = 1,
        vtrace_clip_rho: float = 1.0,
        vtrace_clip_c: float = 1.0,
        enable_compile: bool = False,
        **kwargs: Any,
    ) -> None:
        for name in kwargs:
            warnings.warn(f"APPOLearner does not know {name}={kwargs[name]!r}: it has no effect", stacklevel=2)
        given = {name: value for name, value in locals().items() if name not in ("self", "kwargs")}
        self._config = _config(given)
        self._device = choose_device(str(device))
        self.device, self.learning_rate = str(device), float(learning_rate)
        self.tau, self.target_update_freq, self.schedule = tau, target_update_freq, schedule
        self.num_learning_epochs, self.num_mini_batches = num_learning_epochs, num_mini_batches
        mode = "off" if not enable_compile else "reduce-overhead" if self._device.type == "cuda" else "default"
        networks = make_networks(actor, critic, self._device, mode)
        optimisers = [make_optimiser(self._config.optimisation, each.flat) for each in networks]
        self._state = appo.APPOState(networks[0], networks[1], networks[0].copy(), optimisers[0], optimisers[1])
        self.actor, self.critic = actor, critic
        assert self._state.target is not None
        self.target_actor: Any = self._state.target.module.model
        self.last_update_metrics: dict[str, float] = {}
        self._calls = 0
        size = log_std(actor.distribution).numel()
        self._spec = EnvSpec("rollouts", Layout(()), (-1.0,) * size, (1.0,) * size, (size,))
        self._widths = Widths(input_size(actor), size, input_size(critic))

    @property
    def _dtype(self) -> torch.dtype:
        return self._state.actor.flat.dtype

    # Targets.

    def update_target_network(self) -> None:
        """Moves the target actor: target = tau * current + (1 - tau) * target. Buffers are copied."""
        assert self._state.target is not None
        with torch.no_grad():
            self._state.target.follow(self._state.actor, self.tau)

    def sync_target_actor_buffers(self) -> None:
        """Copies the actor's buffers, such as the statistics of observations, to the target actor."""
        with torch.no_grad():
            for mine, theirs in zip(self.target_actor.buffers(), self.actor.buffers(), strict=True):
                mine.copy_(theirs)

    def process_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Adds values, returns (value targets), advantages and target_log_probs, each [T, N], to a rollout.

        The observations enter the running statistics first. batch: observations [T, N, D], actions [T, N, A], rewards,
        dones and actions_log_prob [T, N], last_obs [N, D]; critic and last_critic where the critic has observations of
        its own; time_outs [T, N], and final_obs [T, N, D] with what followed there.
        """
        steps = rollout_tensors(batch, self._widths, self._device, self._dtype)
        own = steps.state.shape[-1] > 0
        self._observe(self.actor, steps.obs, steps.next_obs)
        self._observe(self.critic, *((steps.state, steps.next_state) if own else (steps.obs, steps.next_obs)))
        self.sync_target_actor_buffers()
        with torch.no_grad(), denormals_flushed():
            rows = appo.prepare(self._state, self._config, self._spec, steps)
        whole = next(rows.minibatches(torch.arange(len(rows), device=self._device), 1))
        for name, column in _processed(whole).items():
            batch[name] = column.view(steps.reward.shape).clone()
        batch["_policy"], batch["_critic"] = whole.policy.clone(), steps.state.flatten(0, 1)
        return batch

    @staticmethod
    def _observe(model: Any, rows: Tensor, following: Tensor) -> None:
        """Adds all rows (T, N, D), and what followed the last, to a model's running statistics."""
        if hasattr(model, "update_normalization"):
            model.train()
            for part in (rows.flatten(0, 1), following[-1]):
                groups = getattr(model, "obs_groups", ["policy"])
                model.update_normalization({groups[0]: part, **dict.fromkeys(groups[1:], part[:, :0])})

    # Learning.

    def update(self, batch: dict[str, Any]) -> dict[str, float]:
        """All passes over one rollout, which is processed first where `process_batch` was not called; mean metrics."""
        if "_policy" not in batch:
            batch = self.process_batch(dict(batch))
        check_processed(batch, self._widths)
        vectors = [self._tensor(batch[name]).flatten(0, 1) for name in ("observations", "actions")]
        numbers = [self._tensor(batch[name]).flatten() for name in PROCESSED]
        obs, action = vectors
        rows = RolloutRows(obs, batch["_critic"], action, obs[:, :0], batch["_policy"], *numbers)
        orders = torch.stack(
            [torch.randperm(len(rows), device=self._device) for _ in range(self._config.rollouts.epochs)]
        )
        with torch.no_grad(), denormals_flushed():
            made, rate, metrics = appo.learn_rows(
                self._state, self._config, self._spec, rows, orders, self.learning_rate, NEVER, 0
            )
        self.learning_rate = rate
        self._calls += 1
        if self._calls % self.target_update_freq == 0:
            self.update_target_network()
        self.last_update_metrics = self._named(metrics, made)
        return self.last_update_metrics

    def _tensor(self, value: Any) -> Tensor:
        return torch.as_tensor(value).detach().to(self._device, self._dtype)

    def _named(self, metrics: dict[str, list[Tensor]], made: int) -> dict[str, float]:
        means = {name: float(torch.stack(values).mean()) for name, values in metrics.items()}
        found = {
            "surrogate_loss": means["policy_loss"],
            "value_loss": 2.0 * means["value_loss"],  # ours is half the squared error
            "entropy": means["entropy"],
            "kl": means["approx_kl"] if self.schedule == "adaptive" else 0.0,
            "ppo/approx_kl": means["approx_kl"],
            "ppo/clip_fraction": means["clip_fraction"],
            "optim/learning_rate": self.learning_rate,
            "appo/updates_executed": float(made),
        }
        return found

    # Weights and state.

    def get_weights(self) -> dict[str, Tensor]:
        """The actor's state dict, with the statistics of observations, for workers to act with."""
        weights: dict[str, Tensor] = self.actor.state_dict()
        return weights

    def get_state_dict(self) -> dict[str, Any]:
        """Everything that learning changes: models, target, optimiser, rate and counter."""
        parts = dict(state_tensors(self._state))
        optimiser = {name: tensor for name, tensor in parts.items() if "optimiser" in name}
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "target_actor": self.target_actor.state_dict(),
            "optimizer": optimiser,
            "learning_rate": self.learning_rate,
            "updates": self._calls,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `get_state_dict`."""
        for name in ("actor", "critic", "target_actor"):
            getattr(self, name).load_state_dict(state[name])
        with torch.no_grad():
            for name, tensor in state_tensors(self._state):
                if "optimiser" in name:
                    tensor.copy_(state["optimizer"][name])
        self.learning_rate, self._calls = float(state["learning_rate"]), int(state["updates"])

    def save(self, path: str | Path) -> Path:
        """Saves a checkpoint of our own in the directory `path`: without pickle, whole or not at all.

        The state of torch's generator, which orders the minibatches, is part of it.
        """
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in state_tensors(self._state)}
        arrays["generator"] = torch.get_rng_state().numpy()
        values = {"learning_rate": self.learning_rate, "updates": self._calls}
        directory = Path(path).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        Checkpoints(directory).save(Snapshot(arrays, values, {}), {}, self._calls)
        return Path(path)

    def load(self, path: str | Path) -> int:
        """Continues from the newest checkpoint in `path`; returns how many calls of `update` it has had."""
        snapshot = Checkpoints(Path(path).resolve()).load("latest")
        copy_into(dict(state_tensors(self._state)), snapshot.arrays)
        torch.set_rng_state(torch.from_numpy(snapshot.arrays["generator"].copy()))
        self.learning_rate, self._calls = float(snapshot.values["learning_rate"]), int(snapshot.values["updates"])
        return self._calls


def _processed(rows: Minibatch) -> dict[str, Tensor]:
    return {
        "values": rows.value,
        "returns": rows.target,
        "advantages": rows.advantage,
        "target_log_probs": rows.reference,
    }


def _check(given: dict[str, Any]) -> None:
    """Refuses what is out of range, by UniLab's names."""
    if given["schedule"] not in ("fixed", "adaptive"):
        raise UsageError(f"schedule={given['schedule']!r} is unknown; use fixed or adaptive")
    if given["optimizer"] not in OPTIMISERS:
        raise UsageError(f"optimizer={given['optimizer']!r} is unknown; use {', '.join(OPTIMISERS)}")
    counts = ("num_learning_epochs", "num_mini_batches", "target_update_freq")
    check_numbers(**{name: given[name] for name in counts})
    above_0: Rule = (lambda value: value > 0), "more than 0"
    from_0: Rule = (lambda value: value >= 0), "at least 0"
    rules: dict[str, Rule] = {
        **dict.fromkeys(("gamma", "lam"), ((lambda value: 0 <= value <= 1), "from 0 to 1")),
        **dict.fromkeys(("value_loss_coef", "entropy_coef", "learning_rate"), from_0),
        **dict.fromkeys(("clip_param", "max_grad_norm", "vtrace_clip_rho", "vtrace_clip_c"), above_0),
        **dict.fromkeys(("adaptive_kl_factor", "adaptive_lr_factor"), ((lambda value: value > 1), "more than 1")),
        "tau": ((lambda value: 0 < value <= 1), "more than 0 and at most 1"),
    }
    if given["schedule"] == "adaptive" and given["desired_kl"] is not None:
        rules["desired_kl"] = above_0
    for name, (holds, rule) in rules.items():
        value = given[name]
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise UsageError(f"{name}={value!r} is not a finite number; it must be {rule}")
        if not holds(value):
            raise UsageError(f"{name}={value!r} is out of range: it must be {rule}")


def _config(given: dict[str, Any]) -> APPO:
    """Our settings for UniLab's."""
    _check(given)
    adaptive = given["schedule"] == "adaptive" and given["desired_kl"] is not None
    control = (
        AdaptiveRate(
            desired_kl=given["desired_kl"],
            kl_factor=given["adaptive_kl_factor"],
            factor=given["adaptive_lr_factor"],
            divergence="exact",
            lowest=1e-5,
            highest=1e-2,
        )
        if adaptive
        else FixedRate()
    )
    config: APPO = make_learner_config(
        "appo",
        epochs=int(given["num_learning_epochs"]),
        minibatches=int(given["num_mini_batches"]),
        clip=given["clip_param"],
        gamma=given["gamma"],
        gae_lambda=given["lam"],
        value_coefficient=2.0 * given["value_loss_coef"],  # ours multiplies half the squared error
        value_clip=given["clip_param"] if given["use_clipped_value_loss"] else None,
        entropy_coefficient=given["entropy_coef"],
        learning_rate=given["learning_rate"],
        max_grad_norm=given["max_grad_norm"],
        optimiser=given["optimizer"],
        adam_epsilon=1e-8,
        normalise_over="rollout",
        rate_control=control,
        target_every=NEVER,
        tau=given["tau"],
        rho_bar=given["vtrace_clip_rho"],
        advantage_rho_bar=given["vtrace_clip_rho"],
        c_bar=given["vtrace_clip_c"],
        ratio_cap=1.0,
        state_dependent_std=True,
    )
    return config
