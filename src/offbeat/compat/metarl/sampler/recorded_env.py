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


class RecordedEnv(gymnasium.Env[Any, Any]):
    """info: of the last step. Old methods: reset returns the observation alone, step (observation, reward, done, info).

    There, `info["TimeLimit.truncated"]` says that a time limit ended the episode, and `seed` takes the seed.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.info: dict[str, Any] = {}
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.render_mode = getattr(env, "render_mode", None)
        self._takes_seed = _takes_seed(env.reset)

    @property
    def unwrapped(self) -> Any:
        return getattr(self.env, "unwrapped", self.env)

    def get_wrapper_attr(self, name: str) -> Any:
        found = getattr(self.env, "get_wrapper_attr", None)
        return found(name) if found is not None else getattr(self.env, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._takes_seed:
            result = self.env.reset(seed=seed)
        else:
            if callable(getattr(self.env, "seed", None)):
                self.env.seed(seed)
            result = self.env.reset()
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        return result, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        if isinstance(result, tuple) and len(result) == 4:
            observation, reward, done, info = result
            limit = bool(done) and bool(info.get("TimeLimit.truncated", False))
            result = observation, reward, bool(done) and not limit, limit, info
        self.info = result[4] if isinstance(result, tuple) and len(result) == 5 else {}
        return result

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def _takes_seed(reset: Any) -> bool:
    try:
        parameters = inspect.signature(reset).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.name == "seed" or each.kind is each.VAR_KEYWORD for each in parameters)


class RecordedVector:
    """Copies of an environment as one Vector. limit: steps after which an episode is truncated, or None."""

    def __init__(self, env: Any, num_envs: int, *, seed: int, purpose: str, limit: int | None) -> None:
        self._made: list[RecordedEnv] = []

        def make() -> RecordedEnv:
            self._made.append(RecordedEnv(copy_environment(env)))
            return self._made[-1]

        make.__qualname__ = type(getattr(env, "unwrapped", env)).__name__
        self.vector: Vector = make_vector(make, num_envs, seed=seed, purpose=purpose, max_episode_steps=limit)

    def infos(self) -> list[dict[str, Any]]:
        """The info of each environment's last step."""
        return [env.info for env in self._made]
