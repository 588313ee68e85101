"""`Agent`: what every agent has: modes, tracking, and files."""

from __future__ import annotations

import dataclasses
import datetime
import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from offbeat.compat.skrl.agents.torch.configuration import AgentCfg, ExperimentCfg, settings_from
from offbeat.compat.skrl.agents.torch.tracking import EpisodeTracker, reduced
from offbeat.compat.skrl.envs.wrappers.torch.wrapper import valid_rows
from offbeat.compat.skrl.framework import config, logger
from offbeat.compat.skrl.models.torch import Model
from offbeat.errors import UsageError
from offbeat.observe.tensorboard import TensorBoard

RESUME = "OFFBEAT_RESUME"
"""An environment variable: the experiment directory of a run that ended before its time, to be continued."""


class Agent(ABC):
    """To subclass: `act`, `update`, `pre_interaction` and `post_interaction`. A trainer calls `init` first.

    checkpoint_modules: what files hold, by name. experiment_dir: where they are.
    """

    def __init__(
        self,
        *,
        cfg: AgentCfg,
        models: dict[str, Any],
        memory: Any = None,
        observation_space: gymnasium.Space | None = None,
        state_space: gymnasium.Space | None = None,
        action_space: gymnasium.Space | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        if config.torch.is_distributed:
            raise UsageError(
                f"WORLD_SIZE={config.torch.world_size}: several learners are not there yet; start one process"
            )
        self.training = False
        self.models, self.memory, self.device = models, memory, config.torch.parse_device(device)
        self.observation_space, self.state_space, self.action_space = observation_space, state_space, action_space
        self.cfg = cfg
        if isinstance(cfg.experiment, dict):
            cfg.experiment = settings_from(ExperimentCfg, cfg.experiment)
        cfg.expand()
        cfg.validate()
        for model in models.values():
            if isinstance(model, nn.Module):
                model.to(getattr(model, "device", self.device))
        self.tracking_data: defaultdict[str, list[Any]] = defaultdict(list)
        self.episodes = EpisodeTracker()
        self.write_interval: Any = _interval("write_interval", cfg.experiment.write_interval)
        self.checkpoint_interval: Any = _interval("checkpoint_interval", cfg.experiment.checkpoint_interval)
        self.checkpoint_modules: dict[str, Any] = {}
        self.checkpoint_best_modules: dict[str, Any] = {"timestep": 0, "reward": -np.inf, "saved": True, "modules": {}}
        self.writer: TensorBoard | None = None
        self._modes: list[_ModelMode] | None = None
        self.experiment_dir = os.environ.get(RESUME) or os.path.join(
            cfg.experiment.directory or os.path.join(os.getcwd(), "runs"),
            cfg.experiment.experiment_name or f"{datetime.datetime.now():%y-%m-%d_%H-%M-%S-%f}_{type(self).__name__}",
        )

    def __str__(self) -> str:
        lines = [f"Agent: {self!r}"]
        for name, value in dataclasses.asdict(self.cfg).items():
            lines.append(f"  |-- {name}: {value}" if not isinstance(value, dict) else f"  |-- {name}")
            if isinstance(value, dict):
                lines += [f"  |     |-- {key}: {each}" for key, each in value.items()]
        return "\n".join(lines)

    def init(self, *, trainer_cfg: Any = None) -> None:
        """Resolves the intervals by the trainer's timesteps, and opens TensorBoard and Weights & Biases.

        trainer_cfg: the trainer's settings, as an object or a dictionary.
        """
        settings = dataclasses.asdict(trainer_cfg) if dataclasses.is_dataclass(trainer_cfg) else dict(trainer_cfg or {})  # type: ignore[arg-type]
        timesteps = int(settings.get("timesteps", 0))
        self.write_interval = timesteps // 100 if self.write_interval == "auto" else self.write_interval
        self.checkpoint_interval = timesteps // 10 if self.checkpoint_interval == "auto" else self.checkpoint_interval
        self._modes = None  # models may have got other submodules since
        if self.cfg.experiment.wandb:
            self._open_wandb(settings)
        if self.write_interval > 0 and self.writer is None:
            self.writer = TensorBoard(self.experiment_dir)
        if self.checkpoint_interval > 0:
            os.makedirs(os.path.join(self.experiment_dir, "checkpoints"), exist_ok=True)

    def _open_wandb(self, trainer_settings: Mapping[str, Any]) -> None:
        import wandb

        defaults: dict[str, Any] = {"name": os.path.basename(self.experiment_dir), "sync_tensorboard": True}
        own = {**defaults, **self.cfg.experiment.wandb_kwargs}
        own["config"] = {**own.get("config", {}), **dataclasses.asdict(self.cfg), **trainer_settings}
        wandb.init(**own)

    # Tracking.

    def track_data(self, tag: str, value: float) -> None:
        """Keeps a number for the next write. Tags that end in (min) and (max) are reduced so, others by their mean.

        Nothing is kept where nothing is written (write_interval of 0 and less).
        """
        if _on(self.write_interval):
            self.tracking_data[tag].append(value)

    def tracked(self) -> dict[str, float]:
        """Tags and numbers since the last write."""
        return {tag: reduced(tag, values) for tag, values in self.tracking_data.items() if len(values)}

    def write_tracking_data(self, *, timestep: int, timesteps: int) -> None:
        """Writes what was tracked to TensorBoard, and forgets it."""
        numbers = {**self.episodes.take(), **self.tracked()}
        if self.writer is not None:
            self.writer.write(timestep, numbers)
            self.writer.flush()
        self.tracking_data.clear()

    # Interaction.

    @abstractmethod
    def act(
        self, observations: Tensor, states: Tensor | None, *, timestep: int, timesteps: int
    ) -> tuple[Tensor, dict[str, Any]]:
        """Actions, and a dictionary with more of the policy's outputs."""

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
        """Tracks rewards and episodes; a subclass also stores the transition.

        All rows are needed, also those of environments that were only reset, which infos tells apart.
        """
        if _on(self.write_interval) or _on(self.checkpoint_interval):  # a checkpoint has the best modules by returns
            own = rewards.detach().cpu().numpy().reshape(-1)
            ended = (terminated | truncated).detach().cpu().numpy().reshape(-1)
            valid = valid_rows(infos)
            self.episodes.keep_rewards = _on(self.write_interval)
            self.episodes.step(own, ended, None if valid is None else valid.cpu().numpy())

    @abstractmethod
    def pre_interaction(self, *, timestep: int, timesteps: int) -> None:
        """Called before each step of the environments."""

    @abstractmethod
    def post_interaction(self, *, timestep: int, timesteps: int) -> None:
        """Called after each step: writes checkpoints and tracked data where they are due."""
        timestep += 1
        if timestep > 1 and self.checkpoint_interval > 0 and timestep % self.checkpoint_interval == 0:
            self._keep_best(timestep)
            self.write_checkpoint(timestep=timestep, timesteps=timesteps)
        if timestep > 1 and self.write_interval > 0 and timestep % self.write_interval == 0:
            self.write_tracking_data(timestep=timestep, timesteps=timesteps)

    @abstractmethod
    def update(self, *, timestep: int, timesteps: int) -> None:
        """Learns."""

    def enable_training_mode(self, enabled: bool = True, *, apply_to_models: bool = False) -> None:
        """Training (True) or evaluation, as `training` says; apply_to_models: of all models, too."""
        self.training = enabled
        if apply_to_models:
            self.enable_models_training_mode(enabled)

    def enable_models_training_mode(self, enabled: bool = True) -> None:
        """Training (True) or evaluation mode of all models."""
        if self._modes is None:
            self._modes = [_ModelMode(model) for model in self.models.values() if model is not None]
        for mode in self._modes:
            mode.set(enabled)

    # Files.

    def _module_states(self) -> dict[str, Any]:
        """Copies of what files hold."""
        return {
            name: _copied(_state_of(module)) for name, module in self.checkpoint_modules.items() if module is not None
        }

    def save(self, path: str) -> None:
        """Saves all modules as a .pt file, which skrl's own agents load."""
        torch.save(self._module_states(), path)

    def load(self, path: str) -> None:
        """Loads a file that `save` or skrl wrote, without pickle (weights_only), onto the agent's device."""
        if not Path(path).is_file():
            raise UsageError(f"load: there is no file {path}; give the path of a .pt file")
        try:
            modules = torch.load(path, map_location=self.device, weights_only=True)
        except Exception as error:
            raise UsageError(f"load: {path} is not a file of weights that torch reads safely: {error}") from error
        if not isinstance(modules, dict):
            raise UsageError(f"load: {path} holds a {type(modules).__name__}; it must be a dictionary of modules")
        self._restore_modules(modules, path)

    def _restore_modules(self, modules: Mapping[str, Any], path: str) -> None:
        for name, state in modules.items():
            module = self.checkpoint_modules.get(name)
            if module is None:
                logger.warning(f"{path} has {name!r}, which this agent does not have; it is skipped")
            else:
                _restore(name, module, state, path)

    def write_checkpoint(self, *, timestep: int, timesteps: int) -> None:
        """Saves all modules in `checkpoints`, named by the timestep (by date and time if None), and the best ones."""
        tag = f"{datetime.datetime.now():%y-%m-%d_%H-%M-%S-%f}" if timestep is None else str(timestep)
        self._write_modules(self._module_states(), "", f"_{tag}")
        best = self.checkpoint_best_modules
        if best["modules"] and not best["saved"]:
            self._write_modules(best["modules"], "best_", "")
            best["saved"] = True

    def _write_modules(self, states: dict[str, Any], before: str, after: str) -> None:
        folder = Path(self.experiment_dir) / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        files = states if self.cfg.experiment.store_separately else {"agent": states}
        for name, state in files.items():
            path = folder / f"{before}{name}{after}.pt"
            aside = path.with_suffix(".aside")
            torch.save(state, aside)
            aside.replace(path)  # so that a process that is killed leaves no half-written file

    def _keep_best(self, timestep: int) -> None:
        """Keeps the modules where episodes since the last write had the best mean return so far."""
        returns, best = self.episodes.returns, self.checkpoint_best_modules
        if returns and np.mean(returns) > best["reward"]:
            mean = float(np.mean(returns))
            best.update(timestep=timestep, reward=mean, saved=False, modules=self._module_states())


class _ModelMode:
    """Sets a model's mode as its `enable_training_mode` does; twice per update, so without a call for each submodule.

    The calls are made where the model or a submodule has such a method of its own.
    """

    def __init__(self, model: Any) -> None:
        self._model, modules = model, list(model.modules())
        plain = getattr(type(model), "enable_training_mode", None) is Model.enable_training_mode
        plain = plain and all(type(each).train is nn.Module.train for each in modules)
        self._attributes = [each.__dict__ for each in modules] if plain else None

    def set(self, training: bool) -> None:
        if self._attributes is None:
            self._model.enable_training_mode(training)
            return
        for each in self._attributes:
            each["training"] = training


def _interval(name: str, value: Any) -> Any:
    if value != "auto" and not isinstance(value, int):
        raise UsageError(f"{name}={value!r} must be an integer, in timesteps, or auto")
    return value


def _on(interval: Any) -> bool:
    """Whether something is due at times; `auto` is resolved later."""
    return bool(interval == "auto" or interval > 0)


def _state_of(module: Any) -> Any:
    return module.state_dict() if hasattr(module, "state_dict") else module


def _copied(state: Any) -> Any:
    """Tensors as copies: of a view, torch would save all of the memory that it is a view of."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {name: _copied(value) for name, value in state.items()}
    return [_copied(value) for value in state] if isinstance(state, list) else state


def _restore(name: str, module: Any, state: Any, path: str) -> None:
    try:
        if hasattr(module, "load_state_dict"):
            module.load_state_dict(state)
            if isinstance(module, nn.Module):
                module.eval()
        elif isinstance(module, Tensor):
            with torch.no_grad():
                module.copy_(state)
        else:
            raise UsageError(
                f"load: {name!r} has no load_state_dict, so {path} cannot be loaded into it; add the method"
            )
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"load: {name!r} in {path} does not fit this agent: {error}") from error
