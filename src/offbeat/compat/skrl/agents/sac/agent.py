"""SAC's agent, whose updates, replay and checkpoints are ours, whatever framework its models are of."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np

from offbeat.compat.skrl.agents.agent import AnyAgent
from offbeat.compat.skrl.agents.configuration import settings_from
from offbeat.compat.skrl.agents.sac.resume import ResumeFiles
from offbeat.compat.skrl.agents.sac.sac_cfg import SAC_CFG
from offbeat.compat.skrl.agents.sac.settings import GROUPS, Sizes, core_config
from offbeat.compat.skrl.envs.wrappers.wrapper import true_step
from offbeat.compat.skrl.utils import ScopedTimer
from offbeat.compat.skrl.utils.spaces.sizes import compute_space_size
from offbeat.errors import SpaceError, UsageError
from offbeat.learn.learner import Learner
from offbeat.streams import Streams
from offbeat.types import Array, select_prefix

ROWS_PER_CALL = 4_096
"""Several gradient steps are made in one call of our learner, as long as their batches together have so many rows."""
PREPROCESSORS = ("observation_preprocessor", "state_preprocessor")
_TAGS = {
    "actor_loss": "Loss / Policy loss",
    "critic_loss": "Loss / Critic loss",
    "temperature": "Coefficient / Entropy coefficient",
}


class AnySAC(AnyAgent):
    """`SAC` of either framework, which writes the methods under "Of the framework".

    settings_kind: the class of `cfg`. memory_dtypes: of numbers and of flags in the memory.
    """

    settings_kind: ClassVar[type[SAC_CFG]]
    memory_dtypes: ClassVar[tuple[Any, Any]]
    cfg: Any

    def __init__(
        self,
        *,
        models: dict[str, Any],
        memory: Any = None,
        observation_space: gymnasium.Space | None = None,
        state_space: gymnasium.Space | None = None,
        action_space: gymnasium.Space | None = None,
        device: Any = None,
        cfg: Any = {},  # noqa: B006 - the documented default
    ) -> None:
        settings = settings_from(self.settings_kind, cfg)
        policy = models.get("policy") if isinstance(models, dict) else None
        observation_space = _space("observation_space", observation_space, policy)
        action_space = _space("action_space", action_space, policy)
        if not isinstance(action_space, gymnasium.spaces.Box):
            raise SpaceError(
                f"action_space={action_space}: SAC takes Box actions; wrap the environment so that it has them"
            )
        spaces = observation_space, state_space, action_space
        self._sizes = Sizes(*(compute_space_size(each, occupied_size=True) for each in spaces))
        self._check_models(models, training=memory is not None)
        super().__init__(
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
        self.streams = Streams(self.arrays.seed)
        # The first timestep of a run that is resumed; and what a trainer sets, if its environments can be saved.
        self.start_timestep, self.environment = 0, None
        self._resume_files = ResumeFiles(self.experiment_dir)
        self.learner: Learner | None = None
        self._schedulers: Sequence[Any] = (None, None, None)
        self._set_up_inputs()
        if self.critic_1 is not None:
            self._config_key = self._settings_now()
            self._target_entropy = (
                -float(self._sizes.action) if self.cfg.target_entropy is None else self.cfg.target_entropy
            )
            self._set_up_learning()
        self._set_up_checkpoint_modules()

    def _set_up_inputs(self) -> None:
        made = []
        for name in ("observation", "state"):
            kind = getattr(self.cfg, f"{name}_preprocessor")
            made.append(kind(**getattr(self.cfg, f"{name}_preprocessor_kwargs")) if kind else _unchanged)
        self._observation_preprocessor, self._state_preprocessor = made

    def _set_up_checkpoint_modules(self) -> None:
        modules = dict(self._learned_modules())
        for name in PREPROCESSORS:
            own = getattr(self, f"_{name}")
            modules[name] = own if hasattr(own, "state_dict") else None
        self.checkpoint_modules.update({name: module for name, module in modules.items() if module is not None})

    def init(self, *, trainer_cfg: Any = None) -> None:
        """Creates the memory's tensors, resolves intervals and opens TensorBoard; a trainer calls it."""
        super().init(trainer_cfg=trainer_cfg)
        self.enable_models_training_mode(False)
        if self.memory is not None:
            number, flag = self.memory_dtypes
            tensors: dict[str, tuple[Any, Any]] = {
                "observations": (self.observation_space, number),
                "next_observations": (self.observation_space, number),
                "states": (self.state_space, number),
                "next_states": (self.state_space, number),
                "actions": (self.action_space, number),
                "rewards": (1, number),
                "terminated": (1, flag),
            }
            for name, (size, dtype) in tensors.items():
                self.memory.create_tensor(name=name, size=size, dtype=dtype)

    # Interaction.

    def _inputs(self, observations: Any, states: Any) -> dict[str, Any]:
        """A model's inputs, preprocessed."""
        return {
            "observations": self._observation_preprocessor(observations, train=False),
            "states": self._state_preprocessor(states, train=False),
        }

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
        super().record_transition(**step, infos=infos, timestep=timestep, timesteps=timesteps)
        step = true_step(step | self._own_columns(len(observations)), infos)
        if self.training and len(step["observations"]):
            if self.cfg.rewards_shaper is not None:
                step["rewards"] = self.cfg.rewards_shaper(step["rewards"], timestep, timesteps)
            if not self._stores_truncated:
                del step["truncated"]
            self.memory.add_samples(**step)

    def _own_columns(self, count: int) -> dict[str, Any]:
        """More columns of the `count` rows of a step."""
        return {}

    @property
    def _stores_truncated(self) -> bool:
        return False

    def pre_interaction(self, *, timestep: int, timesteps: int) -> None:
        """Does nothing."""

    def post_interaction(self, *, timestep: int, timesteps: int) -> None:
        """Learns, from timestep `learning_starts` on, and writes what is due."""
        if self.training and timestep >= self.cfg.learning_starts and self._ready():
            with ScopedTimer() as timer:
                self.enable_models_training_mode(True)
                self.update(timestep=timestep, timesteps=timesteps)
                self.enable_models_training_mode(False)
            self.track_data("Stats / Algorithm update time (ms)", timer.elapsed_time_ms)
        super().post_interaction(timestep=timestep, timesteps=timesteps)

    def enable_training_mode(self, enabled: bool = True, *, apply_to_models: bool = False) -> None:
        """Training (True) or evaluation; training needs a memory and all five models."""
        if enabled and (self.memory is None or self.learner is None):
            missing = "memory" if self.memory is None else "critic_1, critic_2, target_critic_1 and target_critic_2"
            raise UsageError(f"this SAC has no {missing}, which training needs; pass it, or evaluate only")
        super().enable_training_mode(enabled, apply_to_models=apply_to_models)

    # Learning.

    def _settings_now(self) -> tuple[Any, ...]:
        cfg = self.cfg
        goal = cfg.learn_entropy, cfg.target_entropy
        return (cfg.batch_size, cfg.discount_factor, cfg.polyak, cfg.grad_norm_clip, *goal)

    def _ready(self) -> bool:
        """Whether the memory holds enough for a batch."""
        return True

    @property
    def _rows_per_batch(self) -> int:
        return int(self.cfg.batch_size)

    def update(self, *, timestep: int, timesteps: int) -> None:
        """`gradient_steps` updates of critics, policy, entropy coefficient and targets, each on a batch of its own."""
        learner, cfg = self.learner, self.cfg
        if learner is None or self.memory is None:
            raise UsageError("update: this SAC has no critics or no memory; pass all five models and a memory")
        if self._config_key != self._settings_now():  # settings may be changed at any time
            cfg.expand()
            cfg.validate()
            self._use_settings(core_config(cfg))
            self._config_key = self._settings_now()
            self._set_up_checkpoint_modules()
        watch = self.write_interval != "auto" and self.write_interval > 0
        made, most = 0, max(1, ROWS_PER_CALL // self._rows_per_batch)
        if any(self._schedulers):
            most = 1
        while made < cfg.gradient_steps:
            for group, rate in zip(GROUPS, self._rates(), strict=True):
                learner.set_rate(rate, group)
            count = min(most, cfg.gradient_steps - made)
            self._learn(learner, count, watch)
            made += count
            self._step_schedulers()
            if watch:
                self._track_updates()

    def tracked(self) -> dict[str, float]:
        """Tags and numbers since the last write."""
        losses = {} if self.learner is None else self.learner.drain()
        own = {tag: losses[name] for name, tag in _TAGS.items() if name in losses}
        return {**own, **self._tracked_arrays(), **super().tracked()}

    # Resume.

    def write_checkpoint(self, *, timestep: int, timesteps: int) -> None:
        """Saves the modules, as documented; and beside them, in `resume`, all that a run needs to be continued."""
        super().write_checkpoint(timestep=timestep, timesteps=timesteps)
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

    def state_arrays(self) -> dict[str, Array]:
        """Learner, preprocessors and episodes, for a checkpoint to resume from."""
        assert self.learner is not None
        arrays = {f"learner/{name}": array for name, array in self.learner.arrays().items()}
        for name in PREPROCESSORS:
            if name in self.checkpoint_modules:
                own = self._preprocessor_arrays(self.checkpoint_modules[name])
                arrays |= {f"{name}/{key}": np.array(array) for key, array in own.items()}
        return arrays | {f"episodes/{name}": array for name, array in self.episodes.arrays().items()}

    def state_values(self) -> dict[str, Any]:
        """Streams and rates, as JSON, for a checkpoint to resume from."""
        return {"streams": self.streams.state(), "rates": list(self._rates())}

    def restore_state(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """The inverse of `state_arrays` and `state_values`."""
        assert self.learner is not None
        self.learner.restore(select_prefix(arrays, "learner/"))
        for name in PREPROCESSORS:
            saved = select_prefix(arrays, f"{name}/")
            if saved:
                self._restore_preprocessor(self.checkpoint_modules[name], saved)
        self.episodes.restore(select_prefix(arrays, "episodes/"))
        self.streams.restore(values["streams"])

    def settings(self) -> dict[str, Any]:
        """The agent's settings as JSON, for notes."""
        return {field.name: repr(getattr(self.cfg, field.name)) for field in dataclasses.fields(self.cfg)}

    # Of the framework.

    @abstractmethod
    def _check_models(self, models: Any, training: bool) -> None:
        """Raises UsageError for wrong models. training: whether the critics are needed."""

    @abstractmethod
    def _set_up_learning(self) -> None:
        """Makes the learner."""

    @abstractmethod
    def _use_settings(self, config: Any) -> None:
        """Learns with other settings of our core from now on."""

    @abstractmethod
    def _learned_modules(self) -> Mapping[str, Any]:
        """What files hold besides preprocessors, by name; None for what is not there."""

    @abstractmethod
    def _rates(self) -> Sequence[float]:
        """The learning rates of policy, critics and entropy coefficient for the next update."""

    @abstractmethod
    def _learn(self, learner: Learner, count: int, watch: bool) -> None:
        """Draws batches and makes `count` updates. watch: whether values of theirs will be tracked."""

    @abstractmethod
    def _step_schedulers(self) -> None: ...

    @abstractmethod
    def _track_updates(self) -> None:
        """Keeps values of the last updates for tracking."""

    @abstractmethod
    def _tracked_arrays(self) -> dict[str, float]:
        """Tags and numbers of what `_track_updates` kept."""

    @abstractmethod
    def _preprocessor_arrays(self, module: Any) -> Mapping[str, Any]: ...

    @abstractmethod
    def _restore_preprocessor(self, module: Any, arrays: Mapping[str, Array]) -> None: ...


def _space(name: str, space: gymnasium.Space | None, policy: Any) -> gymnasium.Space:
    found = space if space is not None else getattr(policy, name, None)
    if found is None:
        raise UsageError(f"{name} is None, and models['policy'] has none; pass {name}=env.{name}")
    return found


def _unchanged(x: Any, train: bool = False) -> Any:
    return x
