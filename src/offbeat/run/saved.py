"""A run's policy as a checkpoint holds it, environments to play it on, and its evaluation; no learner is built."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offbeat import durable
from offbeat import settings as settings_module
from offbeat.algorithms.configs import ALGORITHMS
from offbeat.coercion import suggestion
from offbeat.deploy import LoadedPolicy
from offbeat.envs import Vector, make_vector
from offbeat.errors import OffbeatError, UsageError
from offbeat.observe.video import frame_rate, write_video
from offbeat.policies import Policy, make_policy
from offbeat.references import resolve
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.directory import RunDirectory
from offbeat.run.environments import Environments
from offbeat.run.evaluate import MOST_ENVIRONMENTS, Evaluation, record
from offbeat.run.evaluate import evaluate as play
from offbeat.run.policy import acting_weights, version_of
from offbeat.run.same import check_spaces
from offbeat.types import Array, EnvSpec


@dataclass(frozen=True)
class EvaluationOfRun(Evaluation):
    """An evaluation of a checkpoint, and the video if one was asked for."""

    video: Path | None = None


class SavedPolicy:
    """A run's policy at a checkpoint, or what `Agent.save` wrote.

    env: another environment with the same spaces, or the one that the run's files could only name. settings: in the
    place of the run's own (env_kwargs are laid over these), and callables that its files could not hold.
    """

    def __init__(
        self, path: str | Path, checkpoint: str, *, seed: int | None = None, env: Any = None, **settings: Any
    ) -> None:
        if seed is not None and seed < 0:
            raise UsageError(f"seed={seed} is out of range: it must be at least 0")
        self.path = Path(path) if (Path(path) / "checkpoints").is_dir() else RunDirectory.open(path).path
        snapshot = Checkpoints(self.path).load(checkpoint)
        self.step, self._notes = int(snapshot.values["steps"]), snapshot.notes
        self.version = version_of(snapshot)
        algorithm = self._notes["algorithm"]
        self._acting = ALGORITHMS[algorithm].acts_with
        own = _without_training_code(self._notes["config"], self._acting)
        if isinstance(env, str) and env != own["env"]:
            own["env_kwargs"] = {}  # they are the other environment's
        given = {name: value for name, value in settings.items() if value is not None}
        self._config = settings_module.build(algorithm, settings_module.merge(own, given))
        self._weights = acting_weights(snapshot)
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
            check_spaces(EnvSpec.from_json(self._notes["spec"]), vector.spec)
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


def evaluate(
    policy: Any,
    env: Any = None,
    *,
    episodes: int = 20,
    checkpoint: str = "latest",
    seed: int | None = None,
    video: bool = False,
    **settings: Any,
) -> EvaluationOfRun:
    """Plays a policy, deterministically, on evaluation episodes; `video` records one and says where it is.

    policy: a run (its directory, or what `train` returned), what `Agent.save` wrote, an `Agent`, or what `load_policy`
    returned. env: another environment with the same spaces; the run's own by default, with its env_kwargs, which
    another id goes without. settings: env_kwargs, env_wrapper and max_episode_steps in the place of the run's, and
    callables (actor, ...) that its files could not hold. seed: of the episodes, the run's by default.
    """
    if episodes < 1:
        raise UsageError(f"episodes={episodes} is out of range: it must be at least 1")
    _check_settings(settings, of_files=isinstance(policy, str | Path) or hasattr(policy, "path"))
    if not isinstance(policy, str | Path):
        if not hasattr(policy, "path"):
            return _evaluate_loaded(policy, env, episodes, checkpoint, seed, video, settings)
        policy = policy.path
    saved = SavedPolicy(policy, checkpoint, seed=seed, env=env, **settings)
    with closing(saved.vector(episodes)) as vector:
        results = play(vector, saved.policy(vector), episodes)
    assert results is not None  # only a wish to stop gives None
    result = EvaluationOfRun(saved.step, saved.version, *results)
    if not video:
        return result
    with closing(saved.vector(1, render_mode="rgb_array")) as vector:
        film = saved.write_video(record(vector, saved.policy(vector)), vector, f"step-{saved.step}")
    return replace(result, video=film)


def _check_settings(settings: Mapping[str, Any], of_files: bool) -> None:
    """Refuses what an evaluation would not read. of_files: what files could not hold may be given again."""
    acting = sorted({owner.acts_with for owner in ALGORITHMS.values()}) if of_files else []
    known = ["episodes", "checkpoint", "seed", "video", "env_kwargs", "env_wrapper", "max_episode_steps", *acting]
    for name in settings:
        if name not in known:
            remedy = suggestion(name, known) or f"; it takes {', '.join(known)}"
            raise UsageError(f"evaluate has no argument {name!r}{remedy}")


def _evaluate_loaded(
    policy: Any,
    env: Any,
    episodes: int,
    checkpoint: str,
    seed: int | None,
    video: bool,
    settings: Mapping[str, Any],
) -> EvaluationOfRun:
    """Of an `Agent`, or of a loaded policy, which have no directory."""
    if not isinstance(policy, LoadedPolicy) and not hasattr(policy, "publication"):
        raise UsageError(
            f"evaluate: {policy!r:.80} is none of what can be evaluated: a run's directory, what train returned, an "
            "Agent, or what load_policy returned"
        )
    if checkpoint != "latest" or video:
        raise UsageError("evaluate: checkpoint and video are about a run's directory; pass that instead of a policy")
    spec: EnvSpec = policy.spec
    given = {name: value for name, value in settings.items() if value is not None}
    fixed: dict[str, Any] = {"purpose": "eval", "own_number": True}
    fixed |= {"state_key": spec.state_key, "mask_key": spec.mask_key}
    count = min(episodes, MOST_ENVIRONMENTS)
    if seed is None:
        seed = 0 if isinstance(policy, LoadedPolicy) else policy.config.run.seed
    with closing(make_vector(spec.name if env is None else env, count, seed=seed, **fixed, **given)) as vector:
        check_spaces(spec, vector.spec)
        if isinstance(policy, LoadedPolicy):
            acting, step, version = policy.policy, int(policy.notes.get("step", 0)), policy.version
        else:
            acting, step, version = policy.policy(vector.num_envs), policy.steps, policy.learner.updates
            acting.load(policy.publication().weights)
        results = play(vector, acting, episodes)
    assert results is not None  # only a wish to stop gives None
    return EvaluationOfRun(step, version, *results)


def _without_training_code(settings: Mapping[str, Any], acting: str) -> dict[str, Any]:
    """Settings without the callables that only training needs, which a file may have been unable to hold."""
    only_training = {"reward_shaping", "critic"} - {acting}
    return {key: value for key, value in settings.items() if key not in only_training and "schedule" not in key}
