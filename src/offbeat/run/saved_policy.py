"""`offbeat.evaluate`, and the policy of a checkpoint with environments to run it in; no learner is built."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from offbeat import durable, flat
from offbeat import settings as settings_module
from offbeat.algorithms.configs.groups import own_acting_module
from offbeat.algorithms.registry import ALGORITHMS, find_recorded, key_of
from offbeat.coercion import suggestion
from offbeat.deploy import LoadedPolicy
from offbeat.envs import Vector, make_vector
from offbeat.errors import OffbeatError, UsageError
from offbeat.observe.video import frame_rate, write_video
from offbeat.policies import Policy, make_policy
from offbeat.references import resolve
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.compatibility import check_env_fits
from offbeat.run.directory import RunDirectory
from offbeat.run.environments import Environments
from offbeat.run.evaluation import MAX_EVALUATION_ENVS, Evaluation, record_frames, run_episodes
from offbeat.run.load_policy import acting_weights, version_of
from offbeat.types import Array, EnvSpec


class SavedPolicy:
    """The policy of a run's checkpoint, or of what `Agent.save` wrote.

    env: another environment with the same spaces, or the Python object that the run's files could not hold. settings:
    override the run's own (env_kwargs are merged), and pass callables that its files could not hold.
    """

    def __init__(
        self,
        path: str | Path,
        checkpoint: str,
        *,
        seed: int | None = None,
        env: Any = None,
        algorithm: Any = None,
        **settings: Any,
    ) -> None:
        if algorithm is not None:
            key_of(algorithm)  # from now on it is known by its name
        if seed is not None and seed < 0:
            raise UsageError(f"seed={seed} is out of range: it must be at least 0")
        self.path = Path(path) if (Path(path) / "checkpoints").is_dir() else RunDirectory.open(path).path
        snapshot = Checkpoints(self.path).load(checkpoint)
        self.step, self._notes = int(snapshot.values["steps"]), snapshot.notes
        self.version = version_of(snapshot)
        name = self._notes["algorithm"]
        self._acting = find_recorded(name).acts_with
        recorded = _without_training_code(self._notes["config"], self._acting)
        if isinstance(env, str) and env != recorded["env"]:
            recorded["env_kwargs"] = {}  # they belong to the run's environment, not to this one
        given = {name: value for name, value in settings.items() if value is not None}
        self._config = settings_module.make_config(name, settings_module.merge(recorded, given))
        self._weights = acting_weights(snapshot)
        self._environments = Environments(self._config, env, None)
        self._seed = self._config.run.start.seed if seed is None else seed

    def vector(self, episodes: int, **options: Any) -> Vector:
        """Makes environments for evaluation episodes; the caller closes them."""
        display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if options.get("render_mode") == "rgb_array" and sys.platform.startswith("linux") and not display:
            os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo's default needs a display
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # SDL's default needs a display, too
        vector = self._environments.evaluation(episodes, self._seed, **options)
        try:
            check_env_fits(EnvSpec.from_json(self._notes["spec"]), vector.spec)
        except OffbeatError:
            vector.close()
            raise
        return vector

    def policy(self, vector: Vector) -> Policy:
        """Makes the policy for the vector's environments and loads its weights."""
        own = flat.values(self._config.learner)
        own_actor, preprocessor = own_acting_module(own, self._acting), own.get("preprocessor")
        policy = make_policy(
            self._notes["policy"],
            num_envs=vector.num_envs,
            spec=vector.spec,
            actor=resolve(own_actor, self._acting) if own_actor else None,
            preprocessor=resolve(preprocessor, "preprocessor") if preprocessor else None,
        )
        policy.load(self._weights)
        return policy

    def write_video(self, frames: Iterable[Array], vector: Vector, name: str) -> Path:
        """Writes a video of these frames to the run's `videos`, at the environment's frame rate."""
        frames = iter(frames)
        first = next(frames, None)
        if first is None:
            raise OffbeatError(f"{vector.spec.name} rendered no frame: it needs render_mode='rgb_array' for a video")
        durable.check_inside(self.path / "videos", self.path)
        path = self.path / "videos" / name
        return write_video(itertools.chain([first], frames), path, frame_rate(vector.unwrapped_envs[0]))


def evaluate(
    policy: Any,
    env: Any = None,
    *,
    episodes: int = 20,
    checkpoint: str = "latest",
    seed: int | None = None,
    video: bool = False,
    **settings: Any,
) -> Evaluation:
    """Evaluates a policy, deterministically, on evaluation episodes. video: also record one episode.

    policy: a run (its directory, or what `train` returned), what `Agent.save` wrote, an `Agent`, or what `load_policy`
    returned. env: another environment with the same spaces; the default is the run's own. The run's env_kwargs do not
    apply to another environment id. settings: env_kwargs, env_wrapper and max_episode_steps override the run's, and
    what its files could not hold: callables (actor, ...), and your own algorithm's record as `algorithm`. seed: of the
    episodes; the default is the run's.
    """
    if episodes < 1:
        raise UsageError(f"episodes={episodes} is out of range: it must be at least 1")
    _check_settings(settings, from_files=isinstance(policy, str | Path) or hasattr(policy, "path"))
    if not isinstance(policy, str | Path):
        if not hasattr(policy, "path"):
            return _evaluate_loaded(policy, env, episodes, checkpoint, seed, video, settings)
        policy = policy.path
    saved = SavedPolicy(policy, checkpoint, seed=seed, env=env, **settings)
    with closing(saved.vector(episodes)) as vector:
        results = run_episodes(vector, saved.policy(vector), episodes)
    assert results is not None  # no stop was requested
    result = Evaluation(saved.step, saved.version, *results)
    if not video:
        return result
    with closing(saved.vector(1, render_mode="rgb_array")) as vector:
        path = saved.write_video(record_frames(vector, saved.policy(vector)), vector, f"step-{saved.step}")
    return replace(result, video=path)


def _check_settings(settings: Mapping[str, Any], from_files: bool) -> None:
    """Raises UsageError for unknown settings. from_files: also allow the callables that files could not hold."""
    acting = ["algorithm", *sorted({owner.acts_with for owner in ALGORITHMS.values()})] if from_files else []
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
) -> Evaluation:
    """Evaluates an `Agent` or a loaded policy, which have no directory."""
    if not isinstance(policy, LoadedPolicy) and not hasattr(policy, "publication"):
        raise UsageError(
            f"evaluate: {policy!r:.80} cannot be evaluated; pass a run's directory, what train returned, an Agent, or "
            "what load_policy returned"
        )
    if checkpoint != "latest" or video:
        raise UsageError("evaluate: checkpoint and video need a run's directory; pass it instead of a policy")
    spec: EnvSpec = policy.spec
    given = {name: value for name, value in settings.items() if value is not None}
    fixed: dict[str, Any] = {"purpose": "eval", "keep_num_envs": True}
    fixed |= {"state_key": spec.state_key, "mask_key": spec.mask_key}
    count = min(episodes, MAX_EVALUATION_ENVS)
    if seed is None:
        seed = 0 if isinstance(policy, LoadedPolicy) else policy.config.run.start.seed
    with closing(make_vector(spec.name if env is None else env, count, seed=seed, **fixed, **given)) as vector:
        check_env_fits(spec, vector.spec)
        if isinstance(policy, LoadedPolicy):
            acting, step, version = policy.policy, int(policy.notes.get("step", 0)), policy.version
        else:
            acting, step, version = policy.policy(vector.num_envs), policy.steps, policy.learner.updates
            acting.load(policy.publication().weights)
        results = run_episodes(vector, acting, episodes)
    assert results is not None  # no stop was requested
    return Evaluation(step, version, *results)


def _without_training_code(settings: Mapping[str, Any], acting: str) -> dict[str, Any]:
    """Removes the callables that only training needs, because config.yaml may not hold them."""
    only_training = {"reward_shaping", "critic", "exploration", "exploration_make", "replay", "collector"} - {acting}
    return {key: value for key, value in settings.items() if key not in only_training and "schedule" not in key}
