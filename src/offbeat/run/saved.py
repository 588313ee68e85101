"""A run's policy as a checkpoint holds it, and environments to play it on; no learner is built."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import durable
from offbeat import settings as settings_module
from offbeat.algorithms.configs import ALGORITHMS, Config
from offbeat.envs import Vector
from offbeat.errors import OffbeatError, UsageError
from offbeat.observe.video import frame_rate, write_video
from offbeat.policies import Policy, make_policy
from offbeat.references import resolve
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.directory import RunDirectory
from offbeat.run.environments import Environments
from offbeat.run.same import check_same
from offbeat.run.snapshot import under
from offbeat.types import Array


class SavedPolicy:
    """A run's policy at a checkpoint. env and callables replace what the run's files could not hold."""

    def __init__(
        self, path: str | Path, checkpoint: str, *, seed: int | None = None, env: Any = None, **callables: Any
    ) -> None:
        if seed is not None and seed < 0:
            raise UsageError(f"seed={seed} is out of range: it must be at least 0")
        self.path = RunDirectory.open(path).path
        snapshot = Checkpoints(self.path).load(checkpoint)
        self.step, self._notes = int(snapshot.values["steps"]), snapshot.notes
        self.version = int(snapshot.arrays["learner/updates"])
        algorithm = self._notes["algorithm"]
        self._acting = ALGORITHMS[algorithm].acts_with
        own = _without_training_code(self._notes["config"], self._acting)
        self._config = settings_module.build(algorithm, {**own, **callables})
        self._weights = _acting_weights(snapshot.arrays, self._config)
        self._environments = Environments(self._config, env, None)
        self._seed = self._config.run.seed if seed is None else seed

    def vector(self, episodes: int, **options: Any) -> Vector:
        """Environments for evaluation episodes; whoever asks for them closes them."""
        on_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if options.get("render_mode") == "rgb_array" and sys.platform.startswith("linux") and not on_screen:
            os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo's own choice needs a display
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # SDL would look for one, and complain
        vector = self._environments.evaluation(episodes, self._seed, **options)
        try:
            check_same(self._notes, self._config.algorithm, vector.spec)
        except OffbeatError:
            vector.close()
            raise
        return vector

    def policy(self, vector: Vector) -> Policy:
        """The policy for the vector's environments, with its weights."""
        own = getattr(self._config.learner, self._acting)
        policy = make_policy(
            self._notes["policy"],
            num_envs=vector.num_envs,
            spec=vector.spec,
            actor=resolve(own, self._acting) if own else None,
        )
        policy.load(self._weights)
        return policy

    def write_video(self, frames: Iterable[Array], vector: Vector, name: str) -> Path:
        """A film of the vector's pictures under the run's `videos`, as fast as its environment says."""
        frames = iter(frames)
        first = next(frames, None)
        if first is None:
            raise OffbeatError(f"{vector.spec.name} rendered no frame: it needs render_mode='rgb_array' for a video")
        durable.stay_inside(self.path / "videos", self.path)
        path = self.path / "videos" / name
        return write_video(itertools.chain([first], frames), path, frame_rate(vector.owned[0]))


def _without_training_code(settings: Mapping[str, Any], acting: str) -> dict[str, Any]:
    """Settings without the callables that only training needs, which a file may have been unable to hold."""
    only_training = {"reward_shaping", "critic"} - {acting}
    return {key: value for key, value in settings.items() if key not in only_training and "schedule" not in key}


def _acting_weights(arrays: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The acting weights inside a checkpoint, without building a learner."""
    learner = under(arrays, "learner/")
    weights = {
        f"actor/{name}": array.astype(np.float32) if np.issubdtype(array.dtype, np.floating) else array
        for name, array in under(learner, f"{config.learner.acts_with}/").items()
    }
    if "observations/mean" in learner:
        from offbeat.learn.statistics import RunningMoments

        moments = RunningMoments(len(learner["observations/mean"]))
        moments.restore(under(learner, "observations/"))
        weights["normaliser/mean"] = moments.mean.astype(np.float32)
        weights["normaliser/scale"] = moments.scale.astype(np.float32)
        weights["normaliser/clip"] = np.asarray(config.learner.observation_clip, np.float32)
    return weights
