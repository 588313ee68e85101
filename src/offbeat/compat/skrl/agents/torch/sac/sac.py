"""`SAC`: skrl's agent, whose updates, replay and checkpoints are ours."""

from __future__ import annotations

import contextlib
import dataclasses
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from offbeat.compat.skrl.agents.torch.agent import Agent
from offbeat.compat.skrl.agents.torch.configuration import settings_from
from offbeat.compat.skrl.agents.torch.sac.check_models import check_models
from offbeat.compat.skrl.agents.torch.sac.draws import Draws
from offbeat.compat.skrl.agents.torch.sac.learning import CRITICS, OwnModelsSAC, Sizes, core_config, make_learner
from offbeat.compat.skrl.agents.torch.sac.optimizers import make_optimizers, make_schedulers
from offbeat.compat.skrl.agents.torch.sac.resume import ResumeFiles
from offbeat.compat.skrl.agents.torch.sac.sac_cfg import SAC_CFG
from offbeat.compat.skrl.agents.torch.tracking import TensorTracker
from offbeat.compat.skrl.envs.wrappers.torch.wrapper import true_step
from offbeat.compat.skrl.framework import config
from offbeat.compat.skrl.utils import ScopedTimer
from offbeat.compat.skrl.utils.spaces.torch import compute_space_size
from offbeat.errors import SpaceError, UsageError
from offbeat.learn.learner import Learner
from offbeat.streams import Streams
from offbeat.types import Array

ROWS_PER_CALL = 4_096
"""Several gradient steps are made in one call of our learner, as long as their batches together have so many rows."""
_TAGS = {
    "actor_loss": "Loss / Policy loss",
    "critic_loss": "Loss / Critic loss",
    "temperature": "Coefficient / Entropy coefficient",
}


class SAC(Agent):
    """Soft actor-critic with your own models: policy, critic_1, critic_2, target_critic_1 and target_critic_2.

    For evaluation alone, models needs only policy, and no memory is needed. The models hold the trained weights: their
    parameters are views of the vectors that we learn.
    """

    def __init__(
        self,
        *,
        models: dict[str, Any],
        memory: Any = None,
        observation_space: gymnasium.Space | None = None,
        state_space: gymnasium.Space | None = None,
        action_space: gymnasium.Space | None = None,
        device: str | torch.device | None = None,
        cfg: SAC_CFG | dict[str, Any] = {},  # noqa: B006 - the documented default
    ) -> None:
        self.cfg: SAC_CFG
        settings = settings_from(SAC_CFG, cfg)
        policy = models.get("policy") if isinstance(models, dict) else None
        observation_space = _space("observation_space", observation_space, policy)
        action_space = _space("action_space", action_space, policy)
        if not isinstance(action_space, gymnasium.spaces.Box):
            raise SpaceError(
                f"action_space={action_space}: SAC takes Box actions; wrap the environment so that it has them"
            )
        spaces = observation_space, state_space, action_space
        self._sizes = Sizes(*(compute_space_size(each, occupied_size=True) for each in spaces))
        check_models(models, self._sizes, training=memory is not None)
        Agent.__init__(
            self,
            models=models,
            memory=memory,
            observation_space=observation_space,
            state_space=state_space,
            action_space=action_space,
            device=device,
            cfg=settings,
        )
        self.policy: Any = models["policy"]
        self.critic_1: Any = models.get("critic_1")
        self.critic_2: Any = models.get("critic_2")
        self.target_critic_1: Any = models.get("target_critic_1")
        self.target_critic_2: Any = models.get("target_critic_2")
        self._set_up_preprocessors()
        device_type, mixed = self.device.type, self.cfg.mixed_precision
        self._precision = partial(torch.autocast, device_type) if mixed else contextlib.nullcontext
        self.scaler = torch.amp.GradScaler(device_type, enabled=mixed)
        self.streams = Streams(config.torch.key)
        # The first timestep of a run that is resumed; and what a trainer sets, if its environments can be saved.
        self.start_timestep, self.environment = 0, None
        self._tensors, self._resume_files = TensorTracker(), ResumeFiles(self.experiment_dir)
        self.learner: Learner | None = None
        if self.critic_1 is not None:
            self._set_up_learning()
        self._set_up_checkpoint_modules()

    # Construction.

    def _set_up_preprocessors(self) -> None:
        made = []
        for name in ("observation", "state"):
            kind = getattr(self.cfg, f"{name}_preprocessor")
            made.append(kind(**getattr(self.cfg, f"{name}_preprocessor_kwargs")) if kind else _unchanged)
        self._observation_preprocessor, self._state_preprocessor = made

    def _set_up_learning(self) -> None:
        cfg, models = self.cfg, self.models
        self._module = OwnModelsSAC(
            models, self._sizes, self._observation_preprocessor, self._state_preprocessor, self._precision, self.scaler
        )
        dtype = next(self.policy.parameters()).dtype
        self._config_key = self._settings_now()
        self.learner = make_learner(self._module, core_config(cfg), self._sizes, self.device, dtype)
        state = self.learner.backend.state  # type: ignore[attr-defined]
        self.log_entropy_coefficient = state.log_temperature.detach().requires_grad_()
        self._target_entropy = -float(self._sizes.action) if cfg.target_entropy is None else cfg.target_entropy
        critics = [*self.critic_1.parameters(), *self.critic_2.parameters()]
        parameters = [*self.policy.parameters()], critics, [self.log_entropy_coefficient]
        rates = tuple(map(float, cfg.learning_rate))  # type: ignore[arg-type]
        self._optimizers = make_optimizers(state, parameters, rates, self.scaler)
        self.policy_optimizer, self.critic_optimizer, self.entropy_optimizer = self._optimizers
        self._schedulers = make_schedulers(
            cfg.learning_rate_scheduler, self._optimizers, cfg.learning_rate_scheduler_kwargs
        )
        self.policy_scheduler, self.critic_scheduler, self.entropy_scheduler = self._schedulers
        self._draws = Draws(self.memory, self.streams.sampling, self.learner.backend.dtype)  # type: ignore[attr-defined]

    def _set_up_checkpoint_modules(self) -> None:
        modules: dict[str, Any] = {
            name: self.models.get(name) for name in ("policy", *CRITICS, "target_critic_1", "target_critic_2")
        }
        if self.learner is not None:
            if self.cfg.learn_entropy:
                modules["log_entropy_coefficient"] = self.log_entropy_coefficient
                modules["entropy_optimizer"] = self.entropy_optimizer
            modules |= {"policy_optimizer": self.policy_optimizer, "critic_optimizer": self.critic_optimizer}
            names = ("policy_scheduler", "critic_scheduler", "entropy_scheduler")
            modules |= dict(zip(names, self._schedulers, strict=True))
            if self.scaler.is_enabled():
                modules["scaler"] = self.scaler
        for name in ("observation_preprocessor", "state_preprocessor"):
            own = getattr(self, f"_{name}")
            modules[name] = own if hasattr(own, "state_dict") else None
        self.checkpoint_modules.update({name: module for name, module in modules.items() if module is not None})

    def init(self, *, trainer_cfg: Any = None) -> None:
        """Creates the memory's tensors, resolves intervals and opens TensorBoard; a trainer calls it."""
        Agent.init(self, trainer_cfg=trainer_cfg)
        self.enable_models_training_mode(False)
        if self.memory is not None:
            tensors = {
                "observations": (self.observation_space, torch.float32),
                "next_observations": (self.observation_space, torch.float32),
                "states": (self.state_space, torch.float32),
                "next_states": (self.state_space, torch.float32),
                "actions": (self.action_space, torch.float32),
                "rewards": (1, torch.float32),
                "terminated": (1, torch.bool),
            }
            for name, (size, dtype) in tensors.items():
                self.memory.create_tensor(name=name, size=size, dtype=dtype)

    # Interaction.

    def act(
        self, observations: Tensor, states: Tensor | None, *, timestep: int, timesteps: int
    ) -> tuple[Tensor, dict[str, Any]]:
        """Actions of the policy in the environment's own units, with log_prob and mean_actions; first random ones."""
        inputs = {
            "observations": self._observation_preprocessor(observations, train=False),
            "states": self._state_preprocessor(states, train=False),
        }
        if timestep < self.cfg.random_timesteps:
            random: tuple[Tensor, dict[str, Any]] = self.policy.random_act(inputs, role="policy")
            return random
        with self._precision():
            actions, outputs = self.policy.act(inputs, role="policy")
        return actions.to(observations.dtype), outputs

    def record_transition(
        self,
        *,
        observations: Tensor,
        states: Tensor,
        actions: Tensor,
        rewards: Tensor,
        next_observations: Tensor,
        next_states: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        infos: Any,
        timestep: int,
        timesteps: int,
    ) -> None:
        """Stores the transition: with the true final observation where an episode ended; no row for a mere reset."""
        step = {
            "observations": observations,
            "states": states,
            "actions": actions,
            "rewards": rewards,
            "next_observations": next_observations,
            "next_states": next_states,
            "terminated": terminated,
            "truncated": truncated,
        }
        Agent.record_transition(self, **step, infos=infos, timestep=timestep, timesteps=timesteps)
        step = true_step(step, infos)
        if self.training and len(step["observations"]):
            if self.cfg.rewards_shaper is not None:
                step["rewards"] = self.cfg.rewards_shaper(step["rewards"], timestep, timesteps)
            del step["truncated"]
            self.memory.add_samples(**step)

    def pre_interaction(self, *, timestep: int, timesteps: int) -> None:
        """Does nothing."""

    def post_interaction(self, *, timestep: int, timesteps: int) -> None:
        """Learns, from timestep `learning_starts` on, and writes what is due."""
        if self.training and timestep >= self.cfg.learning_starts:
            with ScopedTimer() as timer:
                self.enable_models_training_mode(True)
                self.update(timestep=timestep, timesteps=timesteps)
                self.enable_models_training_mode(False)
            self.track_data("Stats / Algorithm update time (ms)", timer.elapsed_time_ms)
        Agent.post_interaction(self, timestep=timestep, timesteps=timesteps)

    def enable_training_mode(self, enabled: bool = True, *, apply_to_models: bool = False) -> None:
        """Training (True) or evaluation; training needs a memory and all five models."""
        if enabled and (self.memory is None or self.learner is None):
            missing = "memory" if self.memory is None else "critic_1, critic_2, target_critic_1 and target_critic_2"
            raise UsageError(f"this SAC has no {missing}, which training needs; pass it, or evaluate only")
        Agent.enable_training_mode(self, enabled, apply_to_models=apply_to_models)

    # Learning.

    def _settings_now(self) -> tuple[Any, ...]:
        cfg = self.cfg
        goal = cfg.learn_entropy, cfg.target_entropy
        return (cfg.batch_size, cfg.discount_factor, cfg.polyak, cfg.grad_norm_clip, *goal)

    def update(self, *, timestep: int, timesteps: int) -> None:
        """`gradient_steps` updates of critics, policy, entropy coefficient and targets, each on a batch of its own."""
        learner, cfg = self.learner, self.cfg
        if learner is None or self.memory is None:
            raise UsageError("update: this SAC has no critics or no memory; pass all five models and a memory")
        if self._config_key != self._settings_now():  # settings may be changed at any time
            cfg.expand()
            cfg.validate()
            learner.backend.config = core_config(cfg)  # type: ignore[attr-defined]
            self._config_key = self._settings_now()
            self._set_up_checkpoint_modules()
        self._module.watch = self.write_interval != "auto" and self.write_interval > 0
        made, most = 0, max(1, ROWS_PER_CALL // cfg.batch_size)
        if any(self._schedulers):
            most = 1
        while made < cfg.gradient_steps:
            for group, optimizer in zip(("actor", "critic", "temperature"), self._optimizers, strict=True):
                learner.set_rate(optimizer.rate, group)
            count = min(most, cfg.gradient_steps - made)
            learner.update(self._draws(count, cfg.batch_size, cfg.discount_factor), np.zeros((count, 2, 0), np.float32))
            made += count
            for scheduler in self._schedulers:
                if scheduler is not None:
                    scheduler.step()
            if self._module.watch:
                self._track_updates()

    def _track_updates(self) -> None:
        for seen in self._module.seen:
            for number, values in enumerate(seen.values, 1):
                self._tensors.add(f"Q-network / Q{number}", values)
            self._tensors.add("Target / Target", seen.target)
            if seen.entropy_loss is not None:
                self.tracking_data["Loss / Entropy loss"].append(seen.entropy_loss)
        self._module.seen.clear()
        for name, scheduler in (("Policy", self.policy_scheduler), ("Critic", self.critic_scheduler)):
            if scheduler is not None:
                self.track_data(f"Learning / {name} learning rate", scheduler.get_last_lr()[0])

    def tracked(self) -> dict[str, float]:
        """Tags and numbers since the last write."""
        losses = {} if self.learner is None else self.learner.drain()
        own = {tag: losses[name] for name, tag in _TAGS.items() if name in losses}
        return {**own, **self._tensors.take(), **Agent.tracked(self)}

    @property
    def _entropy_coefficient(self) -> Tensor:
        return self.log_entropy_coefficient.detach().exp()

    # Resume.

    def write_checkpoint(self, *, timestep: int, timesteps: int) -> None:
        """Saves the modules, as documented; and beside them, in `resume`, all that a run needs to be continued."""
        Agent.write_checkpoint(self, timestep=timestep, timesteps=timesteps)
        if self.training and timestep is not None:
            self._resume_files.save(self, timestep)

    def resume(self, path: str | None = None) -> int:
        """Continues the run whose experiment directory is `path`, this one by default; returns its timestep.

        Call it after the trainer was made and before `train`, which then goes on from there. Setting the environment
        variable OFFBEAT_RESUME to the directory does the same without a change of the script.
        """
        if path is not None:
            self.experiment_dir, self._resume_files = path, ResumeFiles(path)
        self.start_timestep = self._resume_files.load(self)
        return self.start_timestep

    # In another process.

    def __reduce__(self) -> Any:
        given = {"models": self.models, "memory": self.memory, "cfg": self.cfg, "device": str(self.device)}
        given |= {name: getattr(self, name) for name in ("observation_space", "state_space", "action_space")}
        return _remade, (type(self), given), {"experiment_dir": self.experiment_dir, "modules": self._module_states()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.experiment_dir = state["experiment_dir"]
        self._resume_files = ResumeFiles(self.experiment_dir)
        self._restore_modules(state["modules"], "another process")

    def learned_state(self) -> dict[str, Any]:
        """What `take_over` needs: all modules, and the memory."""
        return {"modules": self._module_states(), "memory": self.memory}

    def take_over(self, state: dict[str, Any]) -> None:
        """Takes over what this agent has learned in another process."""
        self._restore_modules(state["modules"], "another process")
        if self.memory is not None and state["memory"] is not None:
            self.memory.__dict__.update(state["memory"].__dict__)

    def state_arrays(self) -> dict[str, Array]:
        """Learner and preprocessors, for a checkpoint to resume from."""
        assert self.learner is not None
        arrays = {f"learner/{name}": array for name, array in self.learner.arrays().items()}
        for name in ("observation_preprocessor", "state_preprocessor"):
            for key, tensor in _state_of(self.checkpoint_modules.get(name)).items():
                arrays[f"{name}/{key}"] = np.asarray(tensor.detach().cpu().numpy())
        return arrays | {f"episodes/{name}": array for name, array in self.episodes.arrays().items()}

    def settings(self) -> dict[str, Any]:
        """The agent's settings as JSON, for notes."""
        return {field.name: repr(getattr(self.cfg, field.name)) for field in dataclasses.fields(self.cfg)}


def _space(name: str, space: gymnasium.Space | None, policy: Any) -> gymnasium.Space:
    found = space if space is not None else getattr(policy, name, None)
    if found is None:
        raise UsageError(f"{name} is None, and models['policy'] has none; pass {name}=env.{name}")
    return found


def _remade(kind: type[SAC], given: dict[str, Any]) -> SAC:
    return kind(**given)


def _unchanged(x: Any, train: bool = False) -> Any:
    return x


def _state_of(module: Any) -> dict[str, Any]:
    return {} if module is None else dict(module.state_dict())
