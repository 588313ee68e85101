"""What every agent has, whatever framework it learns with: modes, tracking, and files."""

from __future__ import annotations

import dataclasses
import datetime
import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np

from offbeat.compat.skrl.agents.configuration import AgentCfg, ExperimentCfg, settings_from
from offbeat.compat.skrl.agents.tracking import EpisodeTracker, reduced
from offbeat.compat.skrl.arrays import Arrays
from offbeat.compat.skrl.envs.wrappers.wrapper import valid_rows
from offbeat.compat.skrl.framework import logger
from offbeat.errors import UsageError
from offbeat.observe.tensorboard import TensorBoard
from offbeat.ranks import place

RESUME = "OFFBEAT_RESUME"
"""An environment variable: the experiment directory of a run that ended before its time, to be continued."""


class AnyAgent(ABC):
    """`Agent` of either framework, which says what files look like: `suffix`, and the methods under "Of the framework".

    checkpoint_modules: what files hold, by name. experiment_dir: where they are.
    """

    arrays: ClassVar[Arrays]
    suffix: ClassVar[str]

    def __init__(
        self,
        *,
        cfg: AgentCfg,
        models: dict[str, Any],
        memory: Any = None,
        observation_space: gymnasium.Space | None = None,
        state_space: gymnasium.Space | None = None,
        action_space: gymnasium.Space | None = None,
        device: Any = None,
    ) -> None:
        variable, learners = self.arrays.learners
        if learners > 1 and variable != "WORLD_SIZE":
            raise UsageError(
                f"{variable}={learners}: several learners need torch, not JAX; start one process, or use "
                "offbeat.compat.skrl.agents.torch with torchrun"
            )
        if learners > 1 and RESUME in os.environ:
            raise UsageError(
                f"{variable}={learners}: {RESUME} holds the memory of one learner; start one process to resume, or load"
                " the agent's file and start anew"
            )
        self.training = False
        self.models, self.memory, self.device = models, memory, self.arrays.device(device)
        self.observation_space, self.state_space, self.action_space = observation_space, state_space, action_space
        self.cfg = cfg
        if isinstance(cfg.experiment, dict):
            cfg.experiment = settings_from(ExperimentCfg, cfg.experiment)
        cfg.expand()
        cfg.validate()
        self.tracking_data: defaultdict[str, list[Any]] = defaultdict(list)
        self.episodes = EpisodeTracker()
        self.write_interval: Any = _interval("write_interval", cfg.experiment.write_interval)
        self.checkpoint_interval: Any = _interval("checkpoint_interval", cfg.experiment.checkpoint_interval)
        if learners > 1 and place().rank:  # only the first rank writes files
            self.write_interval = self.checkpoint_interval = 0
        self.checkpoint_modules: dict[str, Any] = {}
        self.checkpoint_best_modules: dict[str, Any] = {"timestep": 0, "reward": -np.inf, "saved": True, "modules": {}}
        self.writer: TensorBoard | None = None
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
    def act(self, observations: Any, states: Any, *, timestep: int, timesteps: int) -> tuple[Any, dict[str, Any]]:
        """Actions, and a dictionary with more of the policy's outputs."""

    def record_transition(
        self,
        *,
        observations: Any,
        states: Any,
        actions: Any,
        rewards: Any,
        next_observations: Any,
        next_states: Any,
        terminated: Any,
        truncated: Any,
        infos: Any,
        timestep: int,
        timesteps: int,
    ) -> None:
        """Tracks rewards and episodes; a subclass also stores the transition.

        All rows are needed, also those of environments that were only reset, which infos tells apart.
        """
        if _on(self.write_interval) or _on(self.checkpoint_interval):  # a checkpoint has the best modules by returns
            own, ended, cut = (self.arrays.get(each).reshape(-1) for each in (rewards, terminated, truncated))
            self.episodes.keep_rewards = _on(self.write_interval)
            self.episodes.step(own, ended.astype(bool) | cut.astype(bool), valid_rows(infos))

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
        for model in self.models.values():
            if model is not None:
                model.enable_training_mode(enabled)

    # Files.

    def _module_states(self) -> dict[str, Any]:
        """Copies of what files hold."""
        return {name: self._state_of(module) for name, module in self.checkpoint_modules.items() if module is not None}

    def save(self, path: str) -> None:
        """Saves all modules as a file, which skrl's own agents load."""
        self._write(self._module_states(), Path(path))

    def load(self, path: str) -> None:
        """Loads a file that `save` or skrl wrote; nothing in it is executed."""
        if not Path(path).is_file():
            raise UsageError(f"load: there is no file {path}; give the path of a {self.suffix} file")
        modules = self._read(Path(path))
        if not isinstance(modules, dict):
            raise UsageError(f"load: {path} holds a {type(modules).__name__}; it must be a dictionary of modules")
        self._restore_modules(modules, path)

    def _restore_modules(self, modules: Mapping[str, Any], path: str) -> None:
        for name, state in modules.items():
            module = self.checkpoint_modules.get(name)
            if module is None:
                logger.warning(f"{path} has {name!r}, which this agent does not have; it is skipped")
            else:
                self._restore(name, module, state, path)

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
            path = folder / f"{before}{name}{after}{self.suffix}"
            aside = path.with_suffix(".aside")
            self._write(state, aside)
            aside.replace(path)  # so that a process that is killed leaves no half-written file

    # Of the framework.

    @abstractmethod
    def _state_of(self, module: Any) -> Any:
        """What a file holds of a module, as copies."""

    @abstractmethod
    def _write(self, states: Any, path: Path) -> None:
        """Writes what `_state_of` returned, of one module or of several by name."""

    @abstractmethod
    def _read(self, path: Path) -> Any:
        """What a file holds; UsageError where it cannot be read safely."""

    @abstractmethod
    def _restore(self, name: str, module: Any, state: Any, path: str) -> None:
        """Sets a module to a saved state; UsageError where it does not fit."""

    def _keep_best(self, timestep: int) -> None:
        """Keeps the modules where episodes since the last write had the best mean return so far."""
        returns, best = self.episodes.returns, self.checkpoint_best_modules
        if returns and np.mean(returns) > best["reward"]:
            mean = float(np.mean(returns))
            best.update(timestep=timestep, reward=mean, saved=False, modules=self._module_states())


def _interval(name: str, value: Any) -> Any:
    if value != "auto" and not isinstance(value, int):
        raise UsageError(f"{name}={value!r} must be an integer, in timesteps, or auto")
    return value


def _on(interval: Any) -> bool:
    """Whether something is due at times; `auto` is resolved later."""
    return bool(interval == "auto" or interval > 0)
