"""Creates N environments behind the Vector protocol from an id, a factory or a VectorEnv."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offbeat.envs.batched import BatchedVector, autoreset_mode
from offbeat.envs.fault_recovery import FaultRecovery
from offbeat.envs.inline import InlineVector
from offbeat.envs.model_warnings import hide_model_file_warnings
from offbeat.envs.reader import short_repr
from offbeat.envs.spaces import info_layout, make_spec, missing_key, read_action_space, read_observation_space
from offbeat.envs.vector import Vector
from offbeat.errors import EnvironmentFault, UsageError, describe
from offbeat.references import name_of, resolve
from offbeat.streams import episode_seed
from offbeat.types import EnvSpec

Factory = Callable[..., Any]
Keys = tuple[str | None, str | None]
"""state_key and mask_key."""


@dataclasses.dataclass(frozen=True)
class EnvSource:
    """How to create environments: a name for messages, and a function that creates one.

    limit: the steps after which Offbeat truncates an episode. make: takes a render mode or None.
    """

    name: str
    make: Callable[[str | None], Any]
    limit: int | None


def make_vector(
    env: str | Factory | Any,
    num_envs: int = 1,
    *,
    seed: int = 0,
    purpose: str = "train",
    env_kwargs: Mapping[str, Any] | None = None,
    env_wrapper: str | Factory | None = None,
    max_episode_steps: int | None = None,
    state_key: str | None = None,
    mask_key: str | None = None,
    render_mode: str | None = None,
    keep_num_envs: bool = False,
    first_env: int = 0,
    max_faults: int = 0,
) -> Vector:
    """Creates a vector of N environments.

    env: a Gymnasium id ("Pendulum-v1", "package:Env-v0"), "module:factory", a callable that returns a gymnasium.Env or
    a VectorEnv, or a VectorEnv. Episodes are reset with `streams.episode_seed(seed, environment, episode, purpose)`.
    state_key: the key of the privileged state in a Dict observation or in info. mask_key: the same for the action mask.
    render_mode: of environment 0. keep_num_envs: ignore num_envs for a VectorEnv, which has its own number.
    first_env: the number of the first environment in the run. Seeds, messages and finished episodes use the numbers
    first_env to first_env + N - 1; rows count from 0.
    max_faults: recover from this many faults of one environment in a row, without a valid step in between: it is reset
    or created again, and starts its next episode. A VectorEnv cannot be created again and always raises.
    """
    _check_least(1, num_envs=num_envs, max_episode_steps=max_episode_steps)
    _check_least(0, first_env=first_env, max_faults=max_faults)
    number = None if keep_num_envs else num_envs
    common, keys = {"seed": seed, "purpose": purpose, "first_env": first_env}, (state_key, mask_key)
    if is_vector_env(env):
        return _batched(env, None, number, env_kwargs, env_wrapper, max_episode_steps, keys, common)
    source = find_source(env, env_kwargs, max_episode_steps)
    first = source.make(render_mode)
    if is_vector_env(first):
        return _batched(first, source.name, number, None, env_wrapper, max_episode_steps, keys, common)
    return _inline(first, source, num_envs, env_wrapper, keys, render_mode, max_faults, common)


def _check_least(least: int, **settings: int | None) -> None:
    for name, value in settings.items():
        if value is not None and value < least:
            raise UsageError(f"{name}={value} is out of range: it must be at least {least}")


def is_vector_env(env: Any) -> bool:
    """Whether this is a VectorEnv object, not a name or a callable that creates environments."""
    from gymnasium.vector import VectorEnv

    return isinstance(env, VectorEnv)


def find_source(env: str | Factory, env_kwargs: Mapping[str, Any] | None, max_episode_steps: int | None) -> EnvSource:
    """The source of environments that `env` names; creates no environment."""
    kwargs = dict(env_kwargs or {})
    if "max_episode_steps" in kwargs:
        raise UsageError(
            f"env_kwargs has max_episode_steps={kwargs['max_episode_steps']!r}, but it is a separate setting: use "
            "max_episode_steps"
        )
    if isinstance(env, str):
        factory = _factory(env) if ":" in env else None
        if factory is None:
            return _registered(env.partition(":")[2] or env, kwargs, max_episode_steps)
        return _from_factory(factory, env, kwargs, max_episode_steps)
    if not callable(env):
        raise UsageError(_not_a_source(env))
    name = name_of(env) or getattr(env, "__qualname__", type(env).__name__)
    return _from_factory(env, str(name), kwargs, max_episode_steps)


def _not_a_source(env: Any) -> str:
    from gymnasium import Env

    rule = "it must be a Gymnasium id, module:factory, a callable that creates an environment, or a VectorEnv"
    if isinstance(env, Env):
        remedy = "pass the function that creates this environment"
        return f"env is a {type(env.unwrapped).__name__}, but {rule}; {remedy}"
    return f"env={short_repr(env)} is of type {type(env).__name__}, but {rule}"


def wrap(env: Any, env_wrapper: str | Factory | None, name: str) -> Any:
    """Applies the user's wrapper to an environment; the result must be a gymnasium.Env."""
    from gymnasium import Env

    maker = "env"
    if env_wrapper is not None:
        wrapper = resolve(env_wrapper, "env_wrapper")
        maker = f"env_wrapper {name_of(wrapper) or getattr(wrapper, '__qualname__', wrapper)!r}"
        try:
            env = wrapper(env)
        except Exception as error:
            raise EnvironmentFault(f"{maker} raised {type(error).__name__} for {name}: {error}") from error
    if not isinstance(env, Env):
        raise UsageError(f"{maker} ({name}) returned a {type(env).__name__}, but it must return a gymnasium.Env")
    return env


def read_spec(env: Any, source: EnvSource, keys: Keys) -> EnvSpec:
    """The spec of one environment; `state` is still None if the privileged state comes in info."""
    env_limit = env.spec.max_episode_steps if env.spec is not None else None
    limits = [limit for limit in (source.limit, env_limit) if limit is not None]
    observation, bounds = read_observation_space(env.observation_space, *keys), read_action_space(env.action_space)
    return make_spec(source.name, observation, bounds, keys[0], min(limits, default=None), keys[1])


def complete_spec(spec: EnvSpec, env: Any, seed: int, number: int = 0, row: int | None = None) -> EnvSpec:
    """Resets the environment to check that info has `state_key` and `mask_key`, if they come from there.

    Returns the spec with the layout of the privileged state in that info. row: of a batch, else None.
    """
    sources = (("state_key", spec.state_key, spec.state_from), ("mask_key", spec.mask_key, spec.mask_from))
    needed = {setting: key for setting, key, source in sources if key is not None and source == "info"}
    if not needed:
        return spec
    try:
        _, info = env.reset(seed=seed)
    except Exception as error:
        raise EnvironmentFault(
            f"environment {number} ({spec.name}), episode 0 (reset seed {seed}), reset: raised {type(error).__name__}: "
            f"{error}"
        ) from error
    for setting, key in needed.items():
        if key not in info:
            raise UsageError(missing_key(env.observation_space, setting, key))
    if "state_key" not in needed:
        return spec
    key = needed["state_key"]
    value = info[key] if row is None else info[key][row]
    return dataclasses.replace(spec, state=info_layout(value, key))


def _factory(reference: str) -> Factory | None:
    """The callable of module:factory; None for package:Id-v0, where the module only registers the id."""
    from gymnasium.envs.registration import registry

    try:
        return resolve(reference, "env")
    except UsageError as error:
        module, _, name = reference.partition(":")
        if module not in sys.modules:
            raise
        if name in registry:
            return None
        raise UsageError(
            f"{error}, nor did importing {module} register a Gymnasium id {name!r}{_closest(name)}"
        ) from error


def _registered(name: str, kwargs: dict[str, Any], max_episode_steps: int | None) -> EnvSource:
    import gymnasium

    try:
        registered = gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise UsageError(
            f"env={name!r} is not a registered Gymnasium id{_closest(name)} For your own environment, use "
            "module:factory"
        ) from error
    limit = max_episode_steps if max_episode_steps is not None else registered.max_episode_steps

    def make(render_mode: str | None) -> Any:
        arguments = kwargs if render_mode is None else {**kwargs, "render_mode": render_mode}
        # -1 disables Gymnasium's TimeLimit. Offbeat counts the steps itself, so that a resumed episode keeps the count.
        with hide_model_file_warnings(registered.entry_point):
            made = _call(
                lambda: gymnasium.make(name, max_episode_steps=-1, disable_env_checker=True, **arguments), name, kwargs
            )
        if made.unwrapped.spec is not None:
            # Wrappers such as TimeAwareObservation read the limit from the spec.
            made.unwrapped.spec.max_episode_steps = limit
        return made

    return EnvSource(name, make, limit)


def _from_factory(factory: Factory, name: str, kwargs: dict[str, Any], max_episode_steps: int | None) -> EnvSource:
    def make(render_mode: str | None) -> Any:
        renders = render_mode is not None and _takes(factory, "render_mode")
        arguments = {**kwargs, "render_mode": render_mode} if renders else kwargs
        return _call(lambda: factory(**arguments), name, kwargs)

    return EnvSource(name, make, max_episode_steps)


def _call(make: Callable[[], Any], name: str, kwargs: dict[str, Any]) -> Any:
    try:
        return make()
    except TypeError as error:
        if "argument" in str(error):
            raise UsageError(f"{name} could not be made with env_kwargs={kwargs!r}: {error}") from error
        raise EnvironmentFault(f"{name} could not be made: TypeError: {error}") from error
    except Exception as error:
        raise EnvironmentFault(f"{name} could not be made: {describe(error)}") from error


def _takes(factory: Factory, argument: str) -> bool:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False
    return argument in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _closest(name: str) -> str:
    from gymnasium.envs.registration import registry

    lowered = {each.lower(): each for each in registry}
    found = [lowered[each] for each in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)]
    return f"; did you mean {' or '.join(found)}?" if found else "."


def _inline(
    first: Any,
    source: EnvSource,
    num_envs: int,
    env_wrapper: str | Factory | None,
    keys: Keys,
    render_mode: str | None,
    max_faults: int,
    common: dict[str, Any],
) -> Vector:
    """A vector of `first`, which `source` created, and num_envs - 1 more environments."""

    def make(row: int) -> Any:
        return wrap(source.make(render_mode if row == 0 else None), env_wrapper, source.name)

    def remake(row: int, old: Any) -> Any:
        env = make(row)
        _check_new(env, [old], number + row, source.name)
        _check_same_spaces(env, spaces, number + row, source.name)
        return env

    number = common["first_env"]
    envs = [wrap(first, env_wrapper, source.name)]
    spaces = envs[0].observation_space, envs[0].action_space  # kept, because an environment may reassign them
    for row in range(1, num_envs):
        env = make(row)
        _check_new(env, envs, number + row, source.name)
        _check_same_spaces(env, spaces, number + row, source.name)
        envs.append(env)
    seed = episode_seed(common["seed"], number, 0, common["purpose"])
    spec = complete_spec(read_spec(envs[0], source, keys), envs[0], seed, number)
    recovery = FaultRecovery(max_faults, remake) if max_faults else None
    return InlineVector(envs, spec, limit=source.limit, recovery=recovery, **common)


def _check_new(env: Any, others: Sequence[Any], number: int, name: str) -> None:
    if any(env.unwrapped is other.unwrapped for other in others):
        raise UsageError(
            f"env={name} returned the same environment twice, but environment {number} must be a new object; create it "
            "inside the factory"
        )


def _check_same_spaces(env: Any, spaces: tuple[Any, Any], number: int, name: str) -> None:
    if (env.observation_space, env.action_space) != spaces:
        raise UsageError(
            f"environment {number} ({name}) has spaces {env.observation_space}, {env.action_space}, but another one "
            f"has {spaces[0]}, {spaces[1]}; all environments of a run must have the same spaces"
        )


def _batched(
    env: Any,
    name: str | None,
    num_envs: int | None,
    env_kwargs: Mapping[str, Any] | None,
    env_wrapper: str | Factory | None,
    max_episode_steps: int | None,
    keys: Keys,
    common: dict[str, Any],
) -> Vector:
    registered = env.spec.id if env.spec is not None else None
    name = name or registered or type(env.unwrapped).__name__
    if num_envs not in (None, 1, env.num_envs):
        raise UsageError(
            f"num_envs={num_envs}, but the VectorEnv {name} has {env.num_envs}; leave num_envs out, or create it with "
            f"{num_envs}"
        )
    for option, value in (("env_kwargs", env_kwargs), ("env_wrapper", env_wrapper)):
        if value:
            raise UsageError(
                f"{option} was given with the VectorEnv {name}, which already exists; apply it where you create its "
                "environments"
            )
    mode = autoreset_mode(env)
    if max_episode_steps is not None and mode != "disabled":
        raise UsageError(
            f"max_episode_steps={max_episode_steps} was given with the VectorEnv {name}, which resets itself "
            f"(autoreset {mode}); set the limit where you create its environments, or use AutoresetMode.DISABLED"
        )
    observation = read_observation_space(env.single_observation_space, *keys)
    bounds = read_action_space(env.single_action_space)
    env_limit = env.spec.max_episode_steps if env.spec is not None else None
    limits = [limit for limit in (max_episode_steps, env_limit) if limit is not None]
    spec = make_spec(name, observation, bounds, keys[0], min(limits, default=None), keys[1])
    number = common["first_env"]
    seed = episode_seed(common["seed"], number, 0, common["purpose"])
    spec = complete_spec(spec, env, seed, number, row=0)
    return BatchedVector(env, spec, limit=max_episode_steps, **common)
