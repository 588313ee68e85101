"""Agents and environments in turn, one step after the other, whatever framework their tensors are of."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from offbeat.compat.skrl.agents.agent import RESUME
from offbeat.compat.skrl.agents.configuration import settings_from
from offbeat.compat.skrl.arrays import Arrays
from offbeat.compat.skrl.envs.wrappers.wrapper import scoped
from offbeat.compat.skrl.framework import logger
from offbeat.compat.skrl.utils import ScopedTimer
from offbeat.errors import UsageError
from offbeat.ranks import place

REPORTS = 200
"""The progress bar moves this many times in a run."""


@dataclasses.dataclass(kw_only=True)
class TrainerCfg:
    """timesteps: vector steps. headless: without rendering; otherwise each render_interval steps are shown.

    disable_progressbar: None hides it where standard output is no terminal. close_environment_at_exit: as Python ends.
    environment_info: the key in infos whose numbers are tracked. stochastic_evaluation: evaluation also draws actions,
    instead of using their means.
    """

    timesteps: int = 100000
    headless: bool = False
    render_interval: int = 1
    disable_progressbar: bool | None = False
    close_environment_at_exit: bool = True
    environment_info: str = "episode"
    stochastic_evaluation: bool = False

    def validate(self) -> bool:
        """Raises UsageError for a value that is out of range."""
        for name, least in (("timesteps", 0), ("render_interval", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise UsageError(f"{name}={value!r} must be an integer of at least {least}")
        return True

    def expand(self) -> None:
        """There is nothing to expand."""


@dataclasses.dataclass
class Position:
    """The inputs of the next actions: observations (N, O), and states (N, S) or None."""

    observations: Any
    states: Any

    def rows(self, scope: tuple[int, int]) -> tuple[Any, Any]:
        if scope[1] - scope[0] == len(self.observations):
            return self.observations, self.states
        rows = slice(*scope)
        return self.observations[rows], None if self.states is None else self.states[rows]


Results = tuple[Any, Any, Any, Any, Any]
"""Observations, rewards, terminated, truncated and infos of one step."""


class AnyTrainer:
    """`Trainer` of either framework, which sets `arrays`.

    agents: one, or several that share the environments; scopes: how many each of them has.
    """

    arrays: ClassVar[Arrays]

    def __init__(self, *, cfg: TrainerCfg, env: Any, agents: Any, scopes: list[int] | None = None) -> None:
        cfg.expand()
        cfg.validate()
        self.cfg, self.env = cfg, env
        several = list(agents) if isinstance(agents, list | tuple) else [agents]
        if not several:
            raise UsageError("agents=[] has no agent; pass one, or a list of some")
        self.scopes = _scopes(env.num_envs, len(several), scopes or [])
        self.num_simultaneous_agents = len(several)
        self.agents: Any = several[0] if len(several) == 1 else several
        for agent, (start, stop) in zip(several, self.scopes, strict=True):
            _check_memory(getattr(agent, "memory", None), stop - start)
        if cfg.close_environment_at_exit:
            atexit.register(env.close)

    @property
    def _all(self) -> list[Any]:
        return self.agents if isinstance(self.agents, list) else [self.agents]

    def __str__(self) -> str:
        lines = [f"Trainer: {type(self).__name__}", f"  |-- Number of parallelizable environments: {self.env.num_envs}"]
        lines += [f"  |-- Number of simultaneous agents: {self.num_simultaneous_agents}", "  |-- Agents and scopes:"]
        for agent, (start, stop) in zip(self._all, self.scopes, strict=True):
            lines += [
                f"  |     |-- agent: {type(agent)}",
                f"  |     |     |-- scope: {stop - start} environments ({start}:{stop})",
            ]
        return "\n".join(lines)

    # The loop.

    def train(self) -> Any:
        """Trains for `timesteps` vector steps; a run that is resumed goes on from its timestep."""
        self._call("enable_training_mode", [((True,), {})] * len(self._all))
        start, position = self._begin(resumes=True)
        self._loop(start, position, training=True)

    def eval(self) -> Any:
        """Evaluates for `timesteps` vector steps, without learning."""
        self._call("enable_training_mode", [((False,), {})] * len(self._all))
        _, position = self._begin(resumes=False)
        self._loop(0, position, training=False)

    def _loop(self, start: int, position: Position, training: bool) -> None:
        for timestep in self._progress(start):
            position, _ = self._interact(position, timestep, self.cfg.timesteps, training)

    def _begin(self, resumes: bool) -> tuple[int, Position]:
        """The first timestep, and the first observations: of a saved run, or after a reset."""
        start, saved, first = 0, None, self._all[0]
        if resumes and len(self._all) == 1 and hasattr(first, "resume"):
            if os.environ.get(RESUME) and not first.start_timestep:
                first.resume()
            start, saved = first.start_timestep, getattr(first, "saved_environment", None)
            first.start_timestep, first.saved_environment = 0, None
            first.environment = self.env if hasattr(self.env, "snapshot") else None
        elif resumes and os.environ.get(RESUME):
            raise UsageError(
                f"{RESUME} is set, but several agents cannot be resumed yet; load their .pt files with agent.load"
            )
        if saved is not None and hasattr(self.env, "restore"):
            observations, _ = self.env.restore(*saved)
        else:
            if start:
                logger.warning("the environments could not be saved: the resumed run begins new episodes")
            observations, _ = self.env.reset()
        return start, Position(observations, self.env.state())

    def _interact(self, position: Position, timestep: int, timesteps: int, training: bool) -> tuple[Position, Results]:
        """One step of everything: agents act, environments step, agents record and learn."""
        when = {"timestep": timestep, "timesteps": timesteps}
        self._call("pre_interaction", [((), when)] * len(self._all))
        with self.arrays.without_gradients():
            actions = self._actions(position, when, training)
            with ScopedTimer() as timer:
                observations, rewards, terminated, truncated, infos = self.env.step(actions)
                following = Position(observations, self.env.state())
            self._track("Stats / Env stepping time (ms)", timer.elapsed_time_ms)
            if not self.cfg.headless and timestep % self.cfg.render_interval == 0:
                self.env.render()
            step = {"actions": actions, "rewards": rewards, "terminated": terminated, "truncated": truncated}
            calls = []
            for scope in self.scopes:
                own: dict[str, Any] = {**when, "infos": scoped(infos, *scope), **step}
                if len(self.scopes) > 1:
                    own |= {name: tensor[slice(*scope)] for name, tensor in step.items()}
                own["observations"], own["states"] = position.rows(scope)
                own["next_observations"], own["next_states"] = following.rows(scope)
                calls.append(((), own))
            self._call("record_transition", calls)
            self._track_info(infos)
            following = self._after(following, bool((terminated | truncated).any()))
        self._call("post_interaction", [((), when)] * len(self._all))
        return following, (observations, rewards, terminated, truncated, infos)

    def _actions(self, position: Position, when: dict[str, int], training: bool) -> Any:
        with ScopedTimer() as timer:
            found = self._call("act", [(position.rows(scope), when) for scope in self.scopes])
        self._track("Stats / Inference time (ms)", timer.elapsed_time_ms)
        drawn = training or self.cfg.stochastic_evaluation
        chosen = [actions if drawn else outputs.get("mean_actions", actions) for actions, outputs in found]
        return chosen[0] if len(chosen) == 1 else self.arrays.concatenate(chosen)

    def _after(self, following: Position, ended: bool) -> Position:
        """The next inputs: a single environment is reset where its episode ended; vectors reset themselves."""
        if self.env.num_envs > 1 or not ended:
            return following
        observations, _ = self.env.reset()
        return Position(observations, self.env.state())

    def _call(self, method: str, arguments: Sequence[tuple[Any, dict[str, Any]]]) -> list[Any]:
        """Calls a method of every agent, each with its own arguments."""
        return [getattr(agent, method)(*own, **named) for agent, (own, named) in zip(self._all, arguments, strict=True)]

    def _track(self, tag: str, value: float) -> None:
        self._call("track_data", [((tag, value), {})] * len(self._all))

    def _track_info(self, infos: Any) -> None:
        """Tracks single numbers under the key `environment_info`."""
        own = infos.get(self.cfg.environment_info) if isinstance(infos, dict) else None
        for name, value in own.items() if isinstance(own, dict) else ():
            if isinstance(value, bool | int | float | np.number) or (
                isinstance(value, self.arrays.kind) and math.prod(value.shape) == 1
            ):
                self._track(name if "/" in name else f"Info / {name}", float(self.arrays.get(value).reshape(())))

    def _progress(self, start: int) -> Iterator[int]:
        """The timesteps, with a progress bar on standard output."""
        with self._bar(start) as advance:
            for timestep in range(start, self.cfg.timesteps):
                yield timestep
                advance(timestep + 1)

    @contextlib.contextmanager
    def _bar(self, start: int) -> Iterator[Any]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

        hidden, total = True if place().rank else self.cfg.disable_progressbar, self.cfg.timesteps
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        disable = not sys.stdout.isatty() if hidden is None else hidden
        every = max(1, total // REPORTS)
        with Progress(*columns, console=Console(file=sys.stdout), disable=disable) as progress:
            task = progress.add_task("train", total=total, completed=start)

            def advance(done: int) -> None:
                if done % every == 0 or done == total:
                    progress.update(task, completed=done)

            yield advance


def initialised(trainer: AnyTrainer) -> None:
    """Calls `init` of every agent, and tells it the trainer's settings."""
    for agent in trainer._all:
        agent.init(trainer_cfg=trainer.cfg)


def trainer_settings(kind: Any, cfg: Any) -> Any:
    """Settings of this kind from a dictionary or an object."""
    return settings_from(kind, cfg)


def _scopes(num_envs: int, agents: int, given: list[int]) -> list[tuple[int, int]]:
    """The environments [start, stop) of each agent; as equal as possible where none are given."""
    if not given:
        if agents > num_envs:
            raise UsageError(f"{agents} agents cannot share num_envs={num_envs}; use at most {num_envs} agents")
        given = [num_envs // agents] * agents
        given[-1] += num_envs - sum(given)
    if len(given) != agents or sum(given) != num_envs or min(given) < 1:
        raise UsageError(
            f"scopes={given} must be {agents} positive numbers, one for each agent, whose sum is num_envs={num_envs}"
        )
    stops = np.cumsum(given).tolist()
    return [(stop - count, stop) for stop, count in zip(stops, given, strict=True)]


def _check_memory(memory: Any, count: int) -> None:
    """Refuses a memory that cannot hold the rows of `count` environments."""
    envs = getattr(memory, "num_envs", 1)
    if envs > 1 and (count > envs or envs % count):
        raise UsageError(
            f"the memory has num_envs={envs}, but its agent steps {count} environments; make it with num_envs={count}"
        )
