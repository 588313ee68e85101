"""From what a user names to N environments behind the Vector protocol."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offbeat.envs.batched import BatchedVector, autoreset_mode
from offbeat.envs.chatter import without_chatter
from offbeat.envs.contain import Containment
from offbeat.envs.inline import InlineVector
from offbeat.envs.reader import short
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
class Source:
    """Where environments come from: a name for messages, and what makes one.

    limit: the steps after which we truncate. `make` takes a render mode or None.
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
    own_number: bool = False,
    first_env: int = 0,
    contain: int = 0,
) -> Vector:
    """N environments that step together.

    env: a Gymnasium id ("Pendulum-v1", "package:Env-v0"), "module:factory", a callable that returns a gymnasium.Env or
    a VectorEnv, or a VectorEnv. Episodes are reset with `streams.episode_seed(seed, environment, episode, purpose)`.
    state_key: the privileged state, a key of a Dict observation or of info. mask_key: the same of the mask of allowed
    actions. render_mode: for environment 0.
    own_number: a VectorEnv keeps its number of environments, whatever num_envs says.
    first_env: these are environments first_env to first_env + N - 1 of the run: seeds, messages and finished episodes
    name them so, while rows count from 0.
    contain: so many faults of one environment in a row, without a good step in between, are not raised; instead it is
    made anew, or only reset, and begins its next episode. A VectorEnv cannot be made anew: it raises all the same.
    """
    _check_least(1, num_envs=num_envs, max_episode_steps=max_episode_steps)
    _check_least(0, first_env=first_env, contain=contain)
    number = None if own_number else num_envs
    common, keys = {"seed": seed, "purpose": purpose, "first_env": first_env}, (state_key, mask_key)
    if is_vector_env(env):
        return _batched(env, None, number, env_kwargs, env_wrapper, max_episode_steps, keys, common)
    source = find(env, env_kwargs, max_episode_steps)
    first = source.make(render_mode)
    if is_vector_env(first):
        return _batched(first, source.name, number, None, env_wrapper, max_episode_steps, keys, common)
    return _inline(first, source, num_envs, env_wrapper, keys, render_mode, contain, common)


def _check_least(least: int, **settings: int | None) -> None:
    for name, value in settings.items():
        if value is not None and value < least:
            raise UsageError(f"{name}={value} is out of range: it must be at least {least}")


def is_vector_env(env: Any) -> bool:
    """Whether this is a VectorEnv that is already made, rather than a name or a callable that makes environments."""
    from gymnasium.vector import VectorEnv

    return isinstance(env, VectorEnv)


def find(env: str | Factory, env_kwargs: Mapping[str, Any] | None, max_episode_steps: int | None) -> Source:
    """What `env` names, without making it."""
    kwargs = dict(env_kwargs or {})
    if "max_episode_steps" in kwargs:
        raise UsageError(
            f"env_kwargs has max_episode_steps={kwargs['max_episode_steps']!r}; it is a setting of its own: "
            "use max_episode_steps"
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

    rule = "it must be a Gymnasium id, module:factory, a callable that makes an environment, or a VectorEnv"
    if isinstance(env, Env):
        remedy = "for an environment that you have, pass the function that made it"
        return f"env is a {type(env.unwrapped).__name__}, but {rule}; {remedy}"
    return f"env={short(env)} is of type {type(env).__name__}, but {rule}"


def wrap(env: Any, env_wrapper: str | Factory | None, name: str) -> Any:
    """One environment within the user's wrapper; what comes out must be a gymnasium.Env."""
    from gymnasium import Env

    maker = "env"
    if env_wrapper is not None:
        wrapper = resolve(env_wrapper, "env_wrapper")
        maker = f"env_wrapper {name_of(wrapper) or getattr(wrapper, '__qualname__', wrapper)!r}"
        try:
            env = wrapper(env)
        except Exception as error:
            raise EnvironmentFault(f"{maker} raised {type(error).__name__} around {name}: {error}") from error
    if not isinstance(env, Env):
        raise UsageError(f"{maker} ({name}) returned a {type(env).__name__}, but it must return a gymnasium.Env")
    return env


def read_spec(env: Any, source: Source, keys: Keys) -> EnvSpec:
    """The spec of one environment; `state` is still None where the privileged state comes in info."""
    own = env.spec.max_episode_steps if env.spec is not None else None
    limits = [limit for limit in (source.limit, own) if limit is not None]
    seen, bounds = read_observation_space(env.observation_space, *keys), read_action_space(env.action_space)
    return make_spec(source.name, seen, bounds, keys[0], min(limits, default=None), keys[1])


def complete_spec(spec: EnvSpec, env: Any, seed: int, number: int = 0, row: int | None = None) -> EnvSpec:
    """The spec; where the privileged state comes in info, with the layout of a first reset's (of `row`, in a batch).

    That info has what the settings name is checked by the same reset.
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
    """The callable of module:factory; None for package:Id-v0, whose module only registers the id."""
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


def _registered(name: str, kwargs: dict[str, Any], max_episode_steps: int | None) -> Source:
    import gymnasium

    try:
        registered = gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise UsageError(
            f"env={name!r} is no registered Gymnasium id{_closest(name)} An environment of your own is named "
            "module:factory"
        ) from error
    limit = max_episode_steps if max_episode_steps is not None else registered.max_episode_steps

    def make(render_mode: str | None) -> Any:
        arguments = kwargs if render_mode is None else {**kwargs, "render_mode": render_mode}
        # -1 leaves out Gymnasium's TimeLimit: the count of steps is ours, so that a resumed episode keeps it.
        with without_chatter(registered.entry_point):
            made = _call(
                lambda: gymnasium.make(name, max_episode_steps=-1, disable_env_checker=True, **arguments), name, kwargs
            )
        if made.unwrapped.spec is not None:
            # Wrappers that ask for the limit (TimeAwareObservation) still find it.
            made.unwrapped.spec.max_episode_steps = limit
        return made

    return Source(name, make, limit)


def _from_factory(factory: Factory, name: str, kwargs: dict[str, Any], max_episode_steps: int | None) -> Source:
    def make(render_mode: str | None) -> Any:
        draws = render_mode is not None and _takes(factory, "render_mode")
        arguments = {**kwargs, "render_mode": render_mode} if draws else kwargs
        return _call(lambda: factory(**arguments), name, kwargs)

    return Source(name, make, max_episode_steps)


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
    source: Source,
    num_envs: int,
    env_wrapper: str | Factory | None,
    keys: Keys,
    render_mode: str | None,
    contain: int,
    common: dict[str, Any],
) -> Vector:
    """`first`, which `source` made, and as many more as there must be."""

    def make(row: int) -> Any:
        return wrap(source.make(render_mode if row == 0 else None), env_wrapper, source.name)

    def remake(row: int, old: Any) -> Any:
        env = make(row)
        _check_new(env, [old], number + row, source.name)
        _check_alike(env, spaces, number + row, source.name)
        return env

    number = common["first_env"]
    envs = [wrap(first, env_wrapper, source.name)]
    spaces = envs[0].observation_space, envs[0].action_space  # as they were: an environment may reassign its own
    for row in range(1, num_envs):
        env = make(row)
        _check_new(env, envs, number + row, source.name)
        _check_alike(env, spaces, number + row, source.name)
        envs.append(env)
    seed = episode_seed(common["seed"], number, 0, common["purpose"])
    spec = complete_spec(read_spec(envs[0], source, keys), envs[0], seed, number)
    containment = Containment(contain, remake) if contain else None
    return InlineVector(envs, spec, limit=source.limit, containment=containment, **common)


def _check_new(env: Any, others: Sequence[Any], number: int, name: str) -> None:
    if any(env.unwrapped is other.unwrapped for other in others):
        raise UsageError(
            f"env={name} returned the same environment twice, but environment {number} needs one of its own; make it "
            "inside the factory"
        )


def _check_alike(env: Any, spaces: tuple[Any, Any], number: int, name: str) -> None:
    if (env.observation_space, env.action_space) != spaces:
        raise UsageError(
            f"environment {number} ({name}) has spaces {env.observation_space}, {env.action_space}, but one before it "
            f"has {spaces[0]}, {spaces[1]}; those of a run must be alike"
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
            f"num_envs={num_envs}, but the VectorEnv {name} has {env.num_envs}; leave num_envs out, or make it with "
            f"{num_envs}"
        )
    for option, value in (("env_kwargs", env_kwargs), ("env_wrapper", env_wrapper)):
        if value:
            raise UsageError(
                f"{option} was given with the VectorEnv {name}, which is already made; apply it where you make its "
                "environments"
            )
    mode = autoreset_mode(env)
    if max_episode_steps is not None and mode != "disabled":
        raise UsageError(
            f"max_episode_steps={max_episode_steps} was given with the VectorEnv {name}, which resets itself "
            f"(autoreset {mode}); set the limit where you make its environments, or make it with AutoresetMode.DISABLED"
        )
    seen = read_observation_space(env.single_observation_space, *keys)
    bounds = read_action_space(env.single_action_space)
    own = env.spec.max_episode_steps if env.spec is not None else None
    limits = [limit for limit in (max_episode_steps, own) if limit is not None]
    spec = make_spec(name, seen, bounds, keys[0], min(limits, default=None), keys[1])
    number = common["first_env"]
    seed = episode_seed(common["seed"], number, 0, common["purpose"])
    spec = complete_spec(spec, env, seed, number, row=0)
    return BatchedVector(env, spec, limit=max_episode_steps, **common)
