"""The algorithms: one record each, from which everything that depends on the algorithm is derived. Imports no backend.

A record of your own makes a new algorithm: `offbeat.train(ALGORITHM, env)` in Python, or by its name as `module:thing`
in YAML and on the command line.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from offbeat import flat, foreign_names, references
from offbeat.algorithms.configs import APPO, DQN, PPO, SAC, TD3, Run
from offbeat.coercion import accepts_callables, is_setting_type, shown, suggestion
from offbeat.errors import SpaceError, UsageError
from offbeat.types import EnvSpec

Actions = Literal["box", "discrete", "multidiscrete"]
SPACES = {"box": "Box", "discrete": "Discrete", "multidiscrete": "MultiBinary or MultiDiscrete"}
"""Gymnasium's names for each kind of actions."""

CALLS: dict[str, tuple[str, ...]] = {
    "init": ("config", "spec", "rng", "device", "dtype"),
    "update": ("state", "config", "spec", "batch", "noise", "rates", "updates"),
    "learn_rollout": ("state", "config", "spec", "rollout", "orders", "rate", "count", "updates"),
    "policy_description": ("config", "spec"),
}
"""The functions of an algorithm, and the arguments that they are called with, by position."""


@dataclass(frozen=True, eq=False)
class Algorithm:
    """One algorithm.

    config: its settings, a frozen dataclass of `setting`s and `group`s. modules: backend to the module with its
    functions (an import path, `module:thing`, or an object that has them), or to such a module for each kind of
    actions. groups: each group of parameters, and the prefix of its learning_rate and schedule settings. acts_with: the
    network that acts. scheduled: other settings that follow a schedule, and the setting that names the schedule.
    own_rollouts: each collector's rollouts are learned from apart, as they arrive.
    explicit: its functions compute gradients without autograd (`Network.backward`), so updates run with autograd off.
    variant_of: the algorithm that this one is, with other defaults. defaults, run_defaults: by flat key, where they
    differ from those of the config class and of the run. without: settings that it does not have. summary: one line for
    the help; the first of the config's docstring if there is none.
    """

    name: str
    config: type
    modules: Mapping[str, Any]
    learns_from: Literal["replay", "rollouts"]
    actions: tuple[Actions, ...]
    groups: Mapping[str, str]
    acts_with: str = "actor"
    scheduled: Mapping[str, str] = field(default_factory=dict)
    own_rollouts: bool = False
    explicit: bool = False
    variant_of: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    run_defaults: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    summary: str = ""

    @property
    def description(self) -> str:
        return self.summary or (self.config.__doc__ or "").splitlines()[0]

    def module(self, backend: str, spec: EnvSpec) -> Any:
        """The functions of the algorithm on a backend, for the environment's kind of actions."""
        if backend not in self.modules:
            raise UsageError(f"backend={backend!r} does not have {self.name}; use {' or '.join(self.modules)}")
        check_actions(self, spec)
        found = self.modules[backend]
        if isinstance(found, Mapping):
            kind = kind_of_actions(spec)
            if kind not in found:
                others = [name for name, each in self.modules.items() if not isinstance(each, Mapping) or kind in each]
                remedy = f"use {' or '.join(others)}" if others else f"add one for {kind} to modules"
                raise UsageError(f"backend={backend!r} does not have {self.name} for {SPACES[kind]} actions; {remedy}")
            found = found[kind]
        if isinstance(found, str):
            where = f"modules of {self.name}"
            found = references.find(found, where) if ":" in found else references.import_module(found, found, where)
        if hasattr(found, "make_backend"):
            return found
        for name in ("init", "update" if self.learns_from == "replay" else "learn_rollout", "policy_description"):
            self._check_function(name, getattr(found, name, None))
        return found

    def _check_function(self, name: str, function: Any) -> None:
        arguments = CALLS[name]
        try:
            inspect.signature(function).bind(*arguments)
        except (TypeError, ValueError) as error:
            problem = "is missing" if function is None else f"cannot be called: {error}"
            raise UsageError(
                f"the algorithm {self.name}: its function {name} {problem}; define {name}({', '.join(arguments)})"
            ) from error


_OF_REPLAY = (
    *("updates_per_step", "random_steps", "warmup_steps", "update_every", "pace"),
    *("capacity", "replay", "replay_kwargs"),
    *("slack", "collect_ahead"),
)
_NEEDED_GROUPS = {"replay": ("returns", "replay", "networks"), "rollouts": ("returns", "rollouts", "networks")}
_ACTOR_CRITIC = {"actor": "actor_", "critic": "critic_"}
_SCHEDULED = {"clip": "clip_schedule", "entropy_coefficient": "entropy_schedule"}
_ALL: tuple[Actions, ...] = ("box", "discrete", "multidiscrete")

_SAC = Algorithm(
    "sac",
    SAC,
    {
        "torch": {
            "box": "offbeat.algorithms.torch.sac",
            "discrete": "offbeat.algorithms.torch.sac_discrete",
        },
        "jax": {
            "box": "offbeat.algorithms.jax.sac",
            "discrete": "offbeat.algorithms.jax.sac_discrete",
        },
    },
    learns_from="replay",
    actions=("box", "discrete"),
    groups={**_ACTOR_CRITIC, "temperature": "temperature_"},
)
_TD3 = Algorithm(
    "td3",
    TD3,
    {"torch": "offbeat.algorithms.torch.td3", "jax": "offbeat.algorithms.jax.td3"},
    learns_from="replay",
    actions=("box",),
    groups=_ACTOR_CRITIC,
)
_BUILT_IN = (
    _SAC,
    replace(
        _SAC,
        name="redq",
        variant_of="sac",
        defaults={"critics": 10, "target_subset": 2, "actor_value": "mean", "actor_every": 20},
        run_defaults={"updates_per_step": 20.0},
        summary="Randomised ensembled double Q-learning (Chen et al. 2021): SAC with many critics, for many updates "
        "per step.",
    ),
    _TD3,
    replace(
        _TD3,
        name="ddpg",
        variant_of="td3",
        defaults={"critics": 1, "actor_every": 1, "target_every": 1, "target_noise": 0.0},
        summary="Deep deterministic policy gradient (Lillicrap et al. 2016): TD3 with one critic, no delay and no "
        "noise on the target.",
    ),
    Algorithm(
        "dqn",
        DQN,
        {"torch": "offbeat.algorithms.torch.dqn", "jax": "offbeat.algorithms.jax.dqn"},
        learns_from="replay",
        actions=("discrete",),
        groups={"critic": ""},
        acts_with="critic",
    ),
    Algorithm(
        "ppo",
        PPO,
        {"torch": "offbeat.algorithms.torch.appo", "jax": "offbeat.algorithms.jax.appo"},
        learns_from="rollouts",
        actions=_ALL,
        groups={"learning": ""},
        scheduled=_SCHEDULED,
        without=(*_OF_REPLAY, "max_policy_lag"),
    ),
    Algorithm(
        "appo",
        APPO,
        {"torch": "offbeat.algorithms.torch.appo", "jax": "offbeat.algorithms.jax.appo"},
        learns_from="rollouts",
        actions=_ALL,
        groups={"learning": ""},
        scheduled=_SCHEDULED,
        own_rollouts=True,
        without=_OF_REPLAY,
    ),
)
ALGORITHMS: dict[str, Algorithm] = {each.name: replace(each, explicit=True) for each in _BUILT_IN}
"""Our own algorithms, by name."""
_given: dict[str, Algorithm] = {}
"""Records that were passed in this process, by name."""


def find(algorithm: Any) -> Algorithm:
    """The record of a name, of `module:thing`, or of a record itself, which is then known by its name."""
    if isinstance(algorithm, Algorithm):
        return _remembered(algorithm)
    if isinstance(algorithm, str):
        if algorithm in ALGORITHMS or algorithm in _given:
            return ALGORITHMS.get(algorithm) or _given[algorithm]
        if ":" in algorithm:
            return _imported(algorithm)
    names = [*ALGORITHMS, *_given]
    nearest = foreign_names.ALGORITHMS.get(algorithm.lower()) if isinstance(algorithm, str) else None
    remedy = f"; the nearest is {nearest}" if nearest else suggestion(algorithm, names)
    form = f"module:thing{_own_module(algorithm)}"
    raise UsageError(
        f"there is no algorithm {shown(algorithm)}; there is {', '.join(names)}{remedy}. Your own is given "
        f"as {form} or, in Python, as an Algorithm"
    )


def _own_module(algorithm: Any) -> str:
    """The name of the user's module that a text names alone, or by its file, in the form that `find` takes."""
    module = references.module_of(algorithm) if isinstance(algorithm, str) else ""
    there = module and Path(*module.split(".")).with_suffix(".py").exists()
    return f" ({module}:ALGORITHM if the record in {module} is ALGORITHM)" if there else ""


def key_of(algorithm: Any) -> str:
    """What a config calls the algorithm: its name as it was given; for a record `module:thing`, or else its name."""
    record = find(algorithm)
    if isinstance(algorithm, str) or record.name in ALGORITHMS:
        return algorithm if isinstance(algorithm, str) else record.name
    key = references.name_of_object(record, record.config.__module__) or record.name
    _given[key] = record  # this very record, also after its module was loaded again
    return key


def find_recorded(name: str) -> Algorithm:
    """As `find`, for the algorithm of a run that was saved."""
    try:
        return find(name)
    except UsageError as error:
        if ":" in name:
            raise
        raise UsageError(
            f"this run's algorithm {name!r} is not known here. If it is an Algorithm of your own, pass it again: "
            "offbeat.resume(path, algorithm=ALGORITHM), and likewise offbeat.evaluate"
        ) from error


def _remembered(record: Algorithm) -> Algorithm:
    if ALGORITHMS.get(record.name) is not record:
        _check_record(record)
        _given[record.name] = record
    return record


def _check_record(record: Algorithm) -> None:
    if record.name in ALGORITHMS:
        raise UsageError(f"Algorithm(name={record.name!r}) has the name of one of Offbeat's own; use another name")
    if not record.name.isidentifier():
        raise UsageError(f"Algorithm(name={record.name!r}) must be letters, digits and _; use another name")
    _check_config_class(record)


def _check_config_class(record: Algorithm) -> None:
    """Raises UsageError for a config class without the settings that a run or the record itself reads."""
    kind, who = record.config, f"Algorithm {record.name!r}"
    frozen = isinstance(kind, type) and dataclasses.is_dataclass(kind) and vars(kind)["__dataclass_params__"].frozen
    if not frozen:
        raise UsageError(
            f"{who}: config={kind!r} must be a frozen dataclass of settings; decorate it with dataclass(frozen=True)"
        )
    for name, example in (("modules", '{"torch": __name__}'), ("groups", '{"actor": "actor_"}')):
        if not isinstance(given := getattr(record, name), Mapping):
            raise UsageError(f"{who}: {name}={given!r} must be a mapping; write for example {example}")
    if record.learns_from not in _NEEDED_GROUPS or not record.actions or not {*record.actions} <= {*SPACES}:
        raise UsageError(
            f"{who}: learns_from={record.learns_from!r}, actions={record.actions!r}, but learns_from must be replay or "
            f"rollouts, and actions some of {', '.join(SPACES)}"
        )
    fields = {each.name: each.metadata for each in dataclasses.fields(kind)}
    if bare := [name for name, metadata in fields.items() if "group" not in metadata and "help" not in metadata]:
        raise UsageError(
            f"{who}: the field {bare[0]} of {kind.__name__} has no help text; write it as {bare[0]}: TYPE = "
            "setting(default, help), or as group(KIND) for a group of settings"
        )
    if missing := [name for name in _NEEDED_GROUPS[record.learns_from] if name not in fields]:
        raise UsageError(
            f"{who}: {kind.__name__} has no group {' and no group '.join(missing)}, which runs read; add it from "
            "offbeat.algorithms.configs.groups (or on_policy), for example replay: ReplayUse = group(ReplayUse)"
        )
    _check_settings(record, who)
    own, of_run = ({leaf.name for leaf in flat.leaves(each)} for each in (kind, Run))
    rates = [f"{prefix}{name}" for prefix in record.groups.values() for name in ("learning_rate", "schedule")]
    named = dict.fromkeys((*rates, *record.scheduled, *record.scheduled.values(), *record.defaults), own)
    named |= dict.fromkeys(record.run_defaults, of_run) | dict.fromkeys(record.without, own | of_run)
    if unknown := [name for name, there in named.items() if name not in there]:
        raise UsageError(
            f"{who}: its record names the setting {unknown[0]}, which {kind.__name__}, or the run, does not have; add "
            "the setting, or correct groups, scheduled, defaults, run_defaults or without"
        )


def _check_settings(record: Algorithm, who: str) -> None:
    """Raises UsageError for a setting with a type that no flag or file could give, or with the name of another one."""
    kind = record.config.__name__
    try:
        leaves = flat.leaves(record.config)
    except NameError as error:
        raise UsageError(
            f"{who}: a type in {kind} cannot be read: {error}; import it at the top of the module"
        ) from error
    schedules = {*record.scheduled.values(), *(f"{prefix}schedule" for prefix in record.groups.values())}
    where = {leaf.name: "the run" for leaf in flat.leaves(Run)}
    for leaf in leaves:
        here = f"the group {leaf.path[-1]}" if leaf.path else kind
        if leaf.name in where:
            raise UsageError(f"{who}: the setting {leaf.name} of {here} is also in {where[leaf.name]}; rename one")
        where[leaf.name] = here
        if not is_setting_type(leaf.hint):
            raise UsageError(
                f"{who}: the setting {leaf.name} has the type {leaf.hint}; use float, int, bool, str, Literal[...], "
                "tuple[T, ...], Mapping[str, Any], each of them or None, or Reference (offbeat.algorithms.configs) for "
                "a callable"
            )
        if leaf.name in schedules and not accepts_callables(leaf.hint):
            raise UsageError(
                f"{who}: the schedule {leaf.name} has the type {leaf.hint}, which takes no callable; use Reference "
                "(offbeat.algorithms.configs)"
            )


@functools.cache
def _imported(name: str) -> Algorithm:
    record = references.find(name, "algorithm")
    if not isinstance(record, Algorithm):
        raise UsageError(
            f"algorithm={name!r} is a {type(record).__name__}, not an offbeat.algorithms.registry.Algorithm"
        )
    _check_record(record)
    return record


def kind_of_actions(spec: EnvSpec) -> Actions:
    if spec.choices is not None:
        return "discrete"
    return "multidiscrete" if spec.branches else "box"


def check_actions(algorithm: Algorithm, spec: EnvSpec) -> None:
    """Raises SpaceError if the algorithm does not take the environment's actions, and says which ones do."""
    kind = kind_of_actions(spec)
    if kind in algorithm.actions:
        return
    others = [name for name, each in ALGORITHMS.items() if kind in each.actions]
    listing = " or ".join(filter(None, (", ".join(others[:-1]), others[-1])))
    raise SpaceError(f"{spec.name} has {SPACES[kind]} actions, which {algorithm.name} does not take; use {listing}")
