"""`SAC`: skrl's agent in torch, whose updates, replay and checkpoints are ours."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.compat.skrl.agents.sac.agent import AnySAC
from offbeat.compat.skrl.agents.sac.draws import Draws
from offbeat.compat.skrl.agents.sac.resume import ResumeFiles, checked_as_json
from offbeat.compat.skrl.agents.sac.settings import MODELS, core_config
from offbeat.compat.skrl.agents.torch.agent import Agent
from offbeat.compat.skrl.agents.torch.sac.check_models import check_models
from offbeat.compat.skrl.agents.torch.sac.learning import OwnModelsSAC, make_learner
from offbeat.compat.skrl.agents.torch.sac.optimizers import AgentScaler, make_optimizers, make_schedulers
from offbeat.compat.skrl.agents.torch.sac.sac_cfg import SAC_CFG
from offbeat.compat.skrl.agents.torch.sac.sequences import SequenceInputs
from offbeat.compat.skrl.agents.torch.tracking import TensorTracker
from offbeat.learn.learner import Learner
from offbeat.types import Array

_SCHEDULERS = ("policy_scheduler", "critic_scheduler", "entropy_scheduler")


class SAC(AnySAC, Agent):
    """Soft actor-critic with your own models: policy, critic_1, critic_2, target_critic_1 and target_critic_2.

    For evaluation alone, models needs only policy, and no memory is needed. The models hold the trained weights: their
    parameters are views of the vectors that we learn.
    """

    settings_kind = SAC_CFG
    memory_dtypes = (torch.float32, torch.bool)
    cfg: SAC_CFG

    # Construction.

    def _check_models(self, models: Any, training: bool) -> None:
        check_models(models, self._sizes, training)

    def _set_up_inputs(self) -> None:
        super()._set_up_inputs()
        device_type, mixed = self.device.type, self.cfg.mixed_precision
        self._precision = partial(torch.autocast, device_type) if mixed else contextlib.nullcontext
        self.scaler = torch.amp.GradScaler(device_type, enabled=mixed)
        self._tensors = TensorTracker()

    def _set_up_learning(self) -> None:
        cfg = self.cfg
        preprocessors = self._observation_preprocessor, self._state_preprocessor
        scaler = AgentScaler(self.scaler, self.device) if self.scaler.is_enabled() else None
        self._module = OwnModelsSAC(self.models, self._sizes, *preprocessors, scaler, self._sequences())
        dtype = next(self.policy.parameters()).dtype
        self.learner = make_learner(self._module, core_config(cfg), self._sizes, self.device, dtype)
        state = self.learner.backend.state  # type: ignore[attr-defined]
        self.log_entropy_coefficient = state.log_temperature.detach().requires_grad_()
        critics = [*self.critic_1.parameters(), *self.critic_2.parameters()]
        parameters = [*self.policy.parameters()], critics, [self.log_entropy_coefficient]
        rates = tuple(map(float, cfg.learning_rate))  # type: ignore[arg-type]
        self._optimizers = make_optimizers(state, parameters, rates, scaler)
        self.policy_optimizer, self.critic_optimizer, self.entropy_optimizer = self._optimizers
        self._schedulers = make_schedulers(
            cfg.learning_rate_scheduler, self._optimizers, cfg.learning_rate_scheduler_kwargs
        )
        self.policy_scheduler, self.critic_scheduler, self.entropy_scheduler = self._schedulers
        self._draws: Any = self._make_draws(dtype)

    def _sequences(self) -> SequenceInputs | None:
        """The inputs of recurrent models; None for others."""
        return None

    def _make_draws(self, dtype: torch.dtype) -> Any:
        return Draws(**self._draw_options(dtype))

    def _draw_options(self, dtype: torch.dtype) -> dict[str, Any]:
        numbers = np.float64 if dtype == torch.float64 else np.float32
        found: dict[str, Any] = {"memory": self.memory, "rng": self.streams.sampling, "dtype": numbers}
        return found | {"stack": _stacked, "alive": lambda flags: _alive(flags, dtype)}

    def _use_settings(self, config: Any) -> None:
        assert self.learner is not None
        self.learner.backend.config = config  # type: ignore[attr-defined]

    def _learned_modules(self) -> dict[str, Any]:
        modules: dict[str, Any] = {name: self.models.get(name) for name in MODELS}
        if self.learner is not None:
            if self.cfg.learn_entropy:
                modules["log_entropy_coefficient"] = self.log_entropy_coefficient
                modules["entropy_optimizer"] = self.entropy_optimizer
            modules |= {"policy_optimizer": self.policy_optimizer, "critic_optimizer": self.critic_optimizer}
            modules |= dict(zip(_SCHEDULERS, self._schedulers, strict=True))
            if self.scaler.is_enabled():
                modules["scaler"] = self.scaler
        return modules

    # Interaction.

    def act(
        self, observations: Tensor, states: Tensor | None, *, timestep: int, timesteps: int
    ) -> tuple[Tensor, dict[str, Any]]:
        """Actions of the policy in the environment's own units, with log_prob and mean_actions; first random ones."""
        inputs = self._inputs(observations, states)
        if timestep < self.cfg.random_timesteps:
            random: tuple[Tensor, dict[str, Any]] = self.policy.random_act(inputs, role="policy")
            return random
        with self._precision():
            actions, outputs = self.policy.act(inputs, role="policy")
        return actions.to(observations.dtype), outputs

    # Learning.

    def _rates(self) -> Sequence[float]:
        return [optimizer.rate for optimizer in self._optimizers]

    def _learn(self, learner: Learner, count: int, watch: bool) -> None:
        self._module.watch = watch
        batches = self._draws(count, self.cfg.batch_size, self.cfg.discount_factor)
        learner.update(batches, np.zeros((count, 2, 0), np.float32))

    def _step_schedulers(self) -> None:
        for scheduler in self._schedulers:
            if scheduler is not None:
                scheduler.step()

    def _track_updates(self) -> None:
        for seen in self._module.seen:
            for number, values in enumerate(seen.values, 1):
                self._tensors.add(f"Q-network / Q{number}", values)
            self._tensors.add("Target / Target", seen.target)
            if seen.entropy_loss is not None:
                self.tracking_data["Loss / Entropy loss"].append(seen.entropy_loss)
            if self.scaler.is_enabled():
                self.track_data("Learning / Skipped updates", seen.skipped)
        self._module.seen.clear()
        for name, scheduler in (("Policy", self.policy_scheduler), ("Critic", self.critic_scheduler)):
            if scheduler is not None:
                self.track_data(f"Learning / {name} learning rate", scheduler.get_last_lr()[0])

    def _tracked_arrays(self) -> dict[str, float]:
        return self._tensors.take()

    @property
    def _entropy_coefficient(self) -> Tensor:
        return self.log_entropy_coefficient.detach().exp()

    # Resume.

    def _preprocessor_arrays(self, module: Any) -> Mapping[str, Any]:
        return {name: tensor.detach().cpu().numpy() for name, tensor in module.state_dict().items()}

    def _restore_preprocessor(self, module: Any, arrays: Mapping[str, Array]) -> None:
        module.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})

    def state_arrays(self) -> dict[str, Array]:
        """Learner, preprocessors, episodes and torch's random numbers, for a checkpoint to resume from."""
        arrays = super().state_arrays() | {"torch_rng": torch.get_rng_state().numpy()}
        if torch.cuda.is_available():
            arrays["cuda_rng"] = torch.cuda.get_rng_state(self.device).numpy()
        return arrays

    def state_values(self) -> dict[str, Any]:
        """Streams, rates, schedulers and the scaler, as JSON, for a checkpoint to resume from."""
        modules = self.checkpoint_modules
        there = [name for name in (*_SCHEDULERS, "scaler") if name in modules]
        states = {name: checked_as_json(name, modules[name], modules[name].state_dict()) for name in there}
        return super().state_values() | {"modules": states}

    def restore_state(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """The inverse of `state_arrays` and `state_values`."""
        super().restore_state(arrays, values)
        for name, state in values["modules"].items():
            self.checkpoint_modules[name].load_state_dict(state)
        for optimizer, rate in zip(self._optimizers, values["rates"], strict=True):
            optimizer.param_groups[0]["lr"] = rate
        torch.set_rng_state(torch.from_numpy(np.array(arrays["torch_rng"])))
        if "cuda_rng" in arrays and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(np.array(arrays["cuda_rng"])), self.device)

    # In another process.

    def __reduce__(self) -> Any:
        given = {"models": self.models, "memory": self.memory, "cfg": self.cfg, "device": str(self.device)}
        given |= {name: getattr(self, name) for name in ("observation_space", "state_space", "action_space")}
        return _remade, (type(self), given), {"experiment_dir": self.experiment_dir, "modules": self._module_states()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.experiment_dir = state["experiment_dir"]
        self._resume_files = ResumeFiles(self.experiment_dir)
        self._restore_modules(state["modules"], "another process")


def _alive(flags: Tensor, dtype: torch.dtype) -> Tensor:
    return (~flags.bool()).to(dtype)


def _remade(kind: type[SAC], given: dict[str, Any]) -> SAC:
    return kind(**given)


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors))
