"""Environments by name, and how they are stepped: Gymnasium ids, and factories that were registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from offbeat.errors import UsageError

BACKENDS: dict[str, str | None] = {
    "mujoco": None,
    "gymnasium": None,
    "sync": "sync",
    "async": "async",
    "vector": "vector_entry_point",
}
"""How a Gymnasium id is stepped: one environment after the other by our collector (None), or by gymnasium.make_vec in
this mode."""

_factories: dict[str, dict[str, Callable[..., Any]]] = {}


def register_env(name: str, factory: Callable[..., Any], sim_backend: str = "mujoco") -> None:
    """Makes `factory(**env_cfg_override)` known as `name`, to be stepped as `sim_backend` (any word).

    It returns a gymnasium.Env, or a gymnasium VectorEnv with all environments; a factory that takes `num_envs` gets it.
    """
    if not callable(factory):
        raise UsageError(f"register_env: {name!r} got a {type(factory).__name__}; pass a function that makes it")
    _factories.setdefault(name, {})[sim_backend] = factory


def registered() -> Mapping[str, tuple[str, ...]]:
    """The registered names, and the backends of each."""
    return {name: tuple(each) for name, each in _factories.items()}


@dataclass(frozen=True)
class MakeVectorEnv:
    """Makes a Gymnasium vector environment with all environments."""

    env_id: str
    num_envs: int
    mode: str

    def __call__(self, **settings: Any) -> Any:
        import gymnasium

        return gymnasium.make_vec(self.env_id, self.num_envs, vectorization_mode=self.mode, **settings)


def find_environment(env_name: str, sim_backend: str, num_envs: int) -> Any:
    """What our `make_vector` takes: an id, or a factory."""
    if env_name in _factories:
        known = _factories[env_name]
        if sim_backend not in known:
            raise UsageError(
                f"sim_backend={sim_backend!r} is not registered for env_name={env_name!r}; use {' or '.join(known)}"
            )
        factory = known[sim_backend]
        return partial(factory, num_envs=num_envs) if _takes_num_envs(factory) else factory
    if sim_backend not in BACKENDS:
        raise UsageError(
            f"sim_backend={sim_backend!r} is unknown for the Gymnasium id {env_name!r}; use {', '.join(BACKENDS)}, or "
            f"register_env({env_name!r}, factory, {sim_backend!r})"
        )
    mode = BACKENDS[sim_backend]
    return env_name if mode is None else MakeVectorEnv(env_name, num_envs, mode)


def _takes_num_envs(factory: Callable[..., Any]) -> bool:
    import inspect

    try:
        return "num_envs" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False
