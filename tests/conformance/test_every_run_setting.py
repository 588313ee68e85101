"""Every setting of a run changes what can be seen of a short one; a new one without a change here fails."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import offbeat
from offbeat.algorithms.configs import Run
from offbeat.collect.processes import Processes
from offbeat.collect.rollout_processes import QueueSlot
from offbeat.errors import OffbeatError
from offbeat.observe.jsonl import read
from offbeat.policies.mlp import MLPPolicy
from offbeat.replay.settings import ReplaySettings
from offbeat.replay.uniform import UniformReplay
from offbeat.run.api import RunResult
from offbeat.run.callbacks import CheckpointEvent, ChunkEvent, UpdateEvent
from offbeat.run.checkpoint import Checkpoints
from offbeat.settings import settings_of, train_settings
from offbeat.types import Batches, Schema
from pacing import Holding
from short_runs import SETTINGS


def brief(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(env, 3)


def halved(reward: Any, step: int, total_steps: int) -> Any:
    return reward / 2


@dataclass(frozen=True)
class Change:
    """Another value for a setting. shows: in what of the run it must show. besides: what both runs have."""

    value: Any
    shows: str
    besides: dict[str, Any] = field(default_factory=dict)


class Newest(UniformReplay):
    """Draws from the newest share of the rows alone."""

    def __init__(self, schema: Schema, settings: ReplaySettings, share: float = 0.5) -> None:
        super().__init__(schema, settings)
        self._share = share

    def draw(self, rng: Any, count: int) -> Batches:
        late = SimpleNamespace(random=lambda size: (1.0 - self._share * rng.random(size)) * (1.0 - 1e-12))
        return super().draw(late, count)


COLLECTED: dict[str, Any] = {"collectors": 1, "num_envs": 2}
BUSY: dict[str, Any] = {**COLLECTED, "num_envs": 1, "updates_per_step": 5.0, "total_steps": 80}
CHANGED: dict[str, Change] = {
    "env": Change("counting:make", "rows"),
    "env_kwargs": Change({"g": 5.0}, "rows"),
    "env_wrapper": Change(f"{__name__}:brief", "rows"),
    "max_episode_steps": Change(5, "rows"),
    "state_key": Change("state", "learned", {"env": "counting:make", "env_kwargs": {"state": "info"}}),
    "mask_key": Change("allowed", "rows", {"env": "guarded:make"}),
    "preset": Change("Swimmer-v5", "learned"),
    "num_envs": Change(3, "rows"),
    "total_steps": Change(60, "rows"),
    "total_updates": Change(30, "updates"),
    "init_from": Change("saved", "learned"),
    "seed": Change(1, "rows"),
    "out": Change("there", "path"),
    "name": Change("other", "path"),
    "updates_per_step": Change(1.0, "updates"),
    "random_steps": Change(60, "rows"),
    "warmup_steps": Change(60, "updates"),
    "update_every": Change(7, "learned"),
    "pace": Change("free", "updates", COLLECTED),
    "capacity": Change(60, "replay"),
    "replay": Change(f"{__name__}:Newest", "learned"),
    "replay_kwargs": Change({"share": 0.1}, "learned", {"replay": f"{__name__}:Newest"}),
    "reward_shaping": Change(f"{__name__}:halved", "rows"),
    "collectors": Change(2, "collectors"),
    "collector": Change("own_parts.collector:Background", "collectors", COLLECTED),
    "slack": Change(0, "lag", {**BUSY, "collect_ahead": 8}),
    "collect_ahead": Change(1, "lag", {**BUSY, "slack": 64}),
    "max_policy_lag": Change(2, "lag", BUSY),
    "hang_seconds": Change(77.0, "patience", COLLECTED),
    "max_crashes": Change(2, "patience", COLLECTED),
    "acting": Change("torch", "backend"),
    "eval_every": Change(60, "evaluated"),
    "eval_episodes": Change(3, "evaluated"),
    "stop_return": Change(-1e9, "updates"),
    "checkpoint_every": Change(20, "saved"),
    "keep_checkpoints": Change(1, "kept"),
    "log_every": Change(60, "logged"),
    "logger": Change(("tensorboard",), "files"),
    "backend": Change("jax", "device"),
    "device": Change("cuda", "device"),
    "devices": Change(2, "device", {"backend": "jax"}),
    "threads": Change(2, "threads"),
    "precision": Change("bfloat16", "learned"),
    "tf32": Change(True, "device"),
    "trace": Change(True, "files"),
    "trace_cpu": Change(True, "traced", {"trace": True}),
    "quiet": Change(False, "printed"),
}
ELSEWHERE = {"ray_address", "ray_cpus", "ray_resources", "ray_placement", "ray_working_dir", "learners"}
"""Shown by tests/collect/test_ray_settings.py and tests/run/test_learners_command.py, because a cluster and ranks are
several processes."""
OF_COLLECTED_ROLLOUTS = {
    "queue": Change(3, "queues", {"algorithm": "appo", "rollout_steps": 5, **COLLECTED}),
    "when_full": Change("drop-oldest", "queues", {"algorithm": "appo", "rollout_steps": 5, **COLLECTED}),
}
"""Settings of algorithms that act only with collectors."""
NAMES = [each.name for each in settings_of(Run)]


class Watching:
    """What callbacks see of a run."""

    def __init__(self) -> None:
        self.rows, self.saved = hashlib.sha256(), [0]
        self.threads: set[int] = set()
        self.agent: Any = None

    def on_chunk(self, event: ChunkEvent) -> None:
        for name, column in sorted(event.chunk.columns.items()):
            self.rows.update(name.encode() + np.array(column).tobytes())

    def on_update(self, event: UpdateEvent) -> None:
        self.agent = event.agent
        self.threads.add(torch.get_num_threads())

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        self.saved.append(event.step)


@contextlib.contextmanager
def spied() -> Iterator[tuple[list[Processes[Any]], set[str]]]:
    """The collectors of a run, if it has any, and what its policies act with."""
    processes: list[Processes[Any]] = []
    backends: set[str] = set()
    load, act = Processes.publish, MLPPolicy.act

    def loaded(self: Processes[Any], *arguments: Any) -> None:
        processes[:] = [self]
        load(self, *arguments)

    def acted(self: MLPPolicy, *arguments: Any) -> Any:
        backends.add("torch" if self._backend.tanh is torch.tanh else "numpy")
        return act(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Processes, "publish", loaded)
        patch.setattr(MLPPolicy, "act", acted)
        yield processes, backends


def seen(changes: dict[str, Any]) -> dict[str, Any]:
    """All that can be seen of a run of 120 steps, in a directory of its own."""
    settings = {"env": "Pendulum-v1", "name": "run", "out": "here", **SETTINGS, **changes}
    algorithm = settings.pop("algorithm", "sac")
    names = {each.name for each in train_settings(algorithm)}
    settings = {name: value for name, value in settings.items() if name in names}
    watching, printed, before = Watching(), io.StringIO(), os.getcwd()
    with tempfile.TemporaryDirectory() as root, spied() as (processes, backends):
        os.chdir(root)
        if "init_from" in settings:
            offbeat.Agent(algorithm, settings["env"], hidden=settings["hidden"], seed=9).save(settings["init_from"])
        try:
            with contextlib.redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
                holding = [Holding(patch)] if settings.get("collectors") else []
                run = offbeat.train(algorithm, callbacks=[watching, *holding], **settings)
            return _of_files(run) | {
                "rows": watching.rows.hexdigest(),
                "saved": watching.saved,
                "threads": watching.threads,
                "replay": len(watching.agent.experience),
                "device": str(watching.agent.learner.backend.device),
                "printed": bool(printed.getvalue()),
                "backend": backends,
                "lag": max(holding[0].lags) if holding else 0,
                "collectors": [len(each._slots) for each in processes],
                "patience": [(each._context.hang_seconds, each._context.max_crashes) for each in processes],
                "queues": [(place.plan.slots, place.plan.when_full) for place in _queues(processes)],
            }
        except OffbeatError:
            return {}  # refused, or ended by an environment
        finally:
            os.chdir(before)


def _queues(processes: list[Processes[Any]]) -> list[Any]:
    return [place for each in processes for place in each._slots if isinstance(place, QueueSlot)]


def _of_files(run: RunResult) -> dict[str, Any]:
    """What the run has left on disk, but for its config."""
    arrays = Checkpoints(run.path).load().arrays
    learned = {name: array for name, array in sorted(arrays.items()) if name.startswith("learner/")}
    lines = read(run.path / "metrics.jsonl")
    trace = run.path / "trace.json"
    return {
        "path": str(run.path),
        "files": sorted({path.name.split(".")[0] for path in run.path.iterdir()}),
        "traced": "tdur" in trace.read_text() if trace.exists() else None,
        "learned": [(name, array.dtype, array.shape, array.tobytes()) for name, array in learned.items()],
        "logged": [line["step"] for line in lines],
        "kept": sorted(Checkpoints(run.path).names()),
        "updates": int(arrays["learner/updates"]),
        "evaluated": [(each.step, each.lengths) for each in run.history],
    }


_usual: dict[str, dict[str, Any]] = {}


def usual(besides: dict[str, Any]) -> dict[str, Any]:
    """What is seen without the change, once for all settings that are compared with it."""
    key = repr(besides)
    if key not in _usual:
        _usual[key] = seen(besides)
    return _usual[key]


@pytest.mark.parametrize("setting", [name for name in NAMES if name not in ELSEWHERE] + [*OF_COLLECTED_ROLLOUTS])
def test_every_setting_of_a_run_changes_something(setting: str) -> None:
    changes = CHANGED | OF_COLLECTED_ROLLOUTS
    assert setting in changes, f"{setting} is shown by no test: add another value for it to CHANGED"
    change = changes[setting]
    changed = seen({**change.besides, setting: change.value})
    assert changed.get(change.shows) != usual(change.besides).get(change.shows)


def test_what_is_seen_of_a_run_repeats() -> None:
    assert seen({}) == usual({})


def test_no_change_is_for_a_setting_that_is_gone() -> None:
    assert set(CHANGED) | ELSEWHERE == set(NAMES)
