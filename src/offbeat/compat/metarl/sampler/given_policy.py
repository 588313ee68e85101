"""A user's policy object (`get_action`, `get_actions`, `reset`) as Offbeat's policy protocol."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from offbeat.compat.metarl.process_randomness import process_randomness, set_process_randomness
from offbeat.errors import UsageError
from offbeat.types import Array, EnvSpec, Weights


def check_policy(policy: Any, name: str) -> None:
    """UsageError for an object that cannot act. name: of the argument."""
    if not (callable(getattr(policy, "get_action", None)) or callable(getattr(policy, "get_actions", None))):
        raise UsageError(
            f"{name} is a {type(policy).__name__} without get_action and get_actions; it needs one of them, and reset"
        )
    if not callable(getattr(policy, "reset", None)):
        raise UsageError(f"{name} is a {type(policy).__name__} without reset; add a method reset(dones=None)")


def try_policy(policy: Any, spec: EnvSpec, name: str) -> None:
    """UsageError for actions of another shape. name: of the argument.

    A copy of it acts once, so that neither it nor the process's random generators change. An object that cannot be
    copied is checked at its first action.
    """
    try:
        tried = copy.deepcopy(policy)
    except (TypeError, RuntimeError, NotImplementedError):
        return
    states = process_randomness()
    try:
        tried.reset(np.ones(1, bool))
        read_actions(tried, np.zeros((1, spec.observation_size), np.float32), spec, name)
    except UsageError:
        raise
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError) as error:
        raise UsageError(f"{name} raised {type(error).__name__} on an observation of zeros: {error}") from error
    finally:
        set_process_randomness(states)


def read_actions(policy: Any, observations: Array, spec: EnvSpec, name: str, *, singly: bool = False) -> Array:
    """The policy's actions for observations (N, O), in the environment's units, checked: (N, *action shape).

    singly: prefers `get_action`, called for each, to `get_actions`.
    """
    has_one, has_many = (callable(getattr(policy, each, None)) for each in ("get_action", "get_actions"))
    if has_many and not (singly and has_one):
        given = _action_of(policy.get_actions(observations))
    else:
        given = [_action_of(policy.get_action(observation)) for observation in observations]
    return _checked(given, len(observations), spec, name)


def read_best_actions(policy: Any, observations: Array, spec: EnvSpec, name: str) -> Array:
    """As `read_actions`, with the mean where the policy gives one with its action."""
    chosen = []
    for observation in observations:
        if callable(getattr(policy, "get_action", None)):
            given = policy.get_action(observation)
        else:
            given = policy.get_actions(observation[None])
        info = given[1] if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict) else {}
        action = info["mean"] if "mean" in info else _action_of(given)
        chosen.append(action if callable(getattr(policy, "get_action", None)) else action[0])
    return _checked(chosen, len(observations), spec, name)


def _action_of(given: Any) -> Any:
    """The action of (action, information), or of an action alone."""
    return given[0] if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict | list) else given


def _checked(given: Any, count: int, spec: EnvSpec, name: str) -> Array:
    try:
        actions = np.asarray(given)
    except (ValueError, RuntimeError, TypeError) as error:
        raise UsageError(f"{name} gave actions that are no array: {error}; return a NumPy array") from error
    expected = (count, *spec.action_shape)
    if actions.dtype.kind not in "biuf" or actions.size != np.prod(expected) or actions.shape[:1] != (count,):
        raise UsageError(
            f"{name} gave actions of shape {actions.shape} ({actions.dtype}) for {count} observations; they must be "
            f"numbers of shape {expected}"
        )
    actions = actions.reshape(expected)
    if spec.choices is not None:
        first, last = int(spec.action_low[0]), int(spec.action_high[0])
        if actions.dtype.kind == "f" or actions.min() < first or actions.max() > last:
            raise UsageError(
                f"{name} gave the actions {actions.tolist()}; they must be integers from {first} to {last}"
            )
    return actions


class GivenPolicy:
    """Acts through a user's object. ended (N,) bool: environments whose episode begins; passed to `reset`.

    given: the actions of the last call, in the environment's units. best: take the mean of a stochastic policy.
    """

    def __init__(self, policy: Any, spec: EnvSpec, num_envs: int, name: str, *, best: bool = False) -> None:
        self._policy, self._spec, self._name = policy, spec, name
        self._read = read_best_actions if best else read_actions
        self.ended: Array = np.ones(num_envs, bool)
        self.given: Array = np.zeros((0, *spec.action_shape))

    def load(self, weights: Weights) -> None:
        """The object holds its own weights."""

    def initial_carry(self, num_envs: int) -> Array:
        return np.zeros((num_envs, 0), np.float32)

    def act(
        self, obs: Array, carry: Array, rng: np.random.Generator | None, step: int = 0, mask: Array | None = None
    ) -> tuple[Array, Array, dict[str, Array]]:
        if self.ended.any():
            self._policy.reset(self.ended.copy())
        self.given = self._read(self._policy, obs.copy(), self._spec, self._name)
        return self._spec.from_environment(self.given), carry, {}
