"""A copy of the user's environment that keeps the info of its last step; also for environments of the old gym."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import gymnasium

from offbeat.envs import Vector, make_vector
from offbeat.errors import UsageError, describe


def copy_environment(env: Any) -> Any:
    """A copy with a state of its own."""
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise UsageError(
            f"env, a {type(env).__name__}, cannot be copied: {describe(error)}; each of the rollout_batch_size "
            "environments is a copy, so give its class a method __deepcopy__ that makes a new one"
        ) from error


class OldGymEnv(gymnasium.Env[Any, Any]):
    """An environment with the methods of the old gym: reset returns the observation alone, and step a `done`.

    `info["TimeLimit.truncated"]` says that a time limit ended the episode; `seed`, where there is one, takes the seed.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if _takes_seed(self.env.reset):
            result = self.env.reset(seed=seed)
        else:
            if callable(getattr(self.env, "seed", None)):
                self.env.seed(seed)
            result = self.env.reset()
        whole = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return result if whole else (result, {})

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 4:
            return result
        observation, reward, done, info = result
        limit = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return observation, reward, bool(done) and not limit, limit, info

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()


class RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """info: of the last step."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.info: dict[str, Any] = {}

    @property
    def spec(self) -> None:  # type: ignore[override]
        """A MetaRLEnv has an EnvSpec there, which is not Gymnasium's."""

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.info = result[4] if isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict) else {}
        return result


def recorded(env: Any, shown: bool = False) -> RecordedEnv:
    """A copy of the environment, recorded. Unless shown, it opens no window, which render_mode "human" would do."""
    made = copy_environment(env)
    if not shown and getattr(made, "render_mode", None) == "human":
        made.unwrapped.render_mode = None
    old = not isinstance(made, gymnasium.Env) or not _takes_seed(made.reset)
    return RecordedEnv(OldGymEnv(made) if old else made)


def _takes_seed(reset: Any) -> bool:
    try:
        parameters = inspect.signature(reset).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.name == "seed" or each.kind is each.VAR_KEYWORD for each in parameters)


class RecordedVector:
    """Copies of an environment as one Vector. limit: steps after which an episode is truncated, or None.

    shown: environments that were made to be shown in a window are.
    """

    def __init__(
        self, env: Any, num_envs: int, *, seed: int, purpose: str, limit: int | None, shown: bool = False
    ) -> None:
        self._made: list[RecordedEnv] = []

        def make() -> RecordedEnv:
            self._made.append(recorded(env, shown))
            return self._made[-1]

        make.__qualname__ = type(getattr(env, "unwrapped", env)).__name__
        self.vector: Vector = make_vector(make, num_envs, seed=seed, purpose=purpose, max_episode_steps=limit)

    def infos(self) -> list[dict[str, Any]]:
        """The info of each environment's last step."""
        return [env.info for env in self._made]
