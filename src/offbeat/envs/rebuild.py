"""Saving and restoring an interrupted episode, by the environment's save_state or by replaying its actions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from offbeat.envs.env_slot import MAX_REPLAYED_ACTIONS, EnvSlot
from offbeat.errors import EnvironmentFault
from offbeat.types import Array, EnvSpec, Observation, select_prefix


def save(slot: EnvSlot) -> tuple[dict[str, Array], dict[str, Any]]:
    """The state of one environment that `rebuild` needs, as arrays and JSON values."""
    values: dict[str, Any] = {"episode": slot.episode, "steps": slot.steps, "total_reward": slot.total_reward}
    if not slot.can_save_state:
        return {"actions": slot.actions.copy()}, values
    arrays, values["own"] = _split(slot)
    return {f"own/{key}": array for key, array in arrays.items()}, values


def rebuild(
    slot: EnvSlot,
    spec: EnvSpec,
    arrays: Mapping[str, Array],
    values: Mapping[str, Any],
    saved: Observation,
    into: Observation,
) -> str | None:
    """Restores one environment and writes its observation into its row of `into`; returns a message if it is inexact.

    saved: the observations of all environments at the time of saving. If the episode cannot be restored, the next one
    starts.
    """
    where = f"environment {slot.number} ({slot.name})"
    episode, steps = values["episode"], values["steps"]
    problem = _why_not_restorable(slot, values)
    if problem is None:
        try:
            slot.begin(episode, into)
            if "own" in values:
                _load(slot, arrays, values, saved, into)
                return None
            problem = _replay(slot, spec, arrays["actions"], into)
        except EnvironmentFault as error:
            problem = f"could not be rebuilt: {error}"
    if problem is not None:
        slot.begin(episode + 1, into)
        return (
            f"{where}: episode {episode}, interrupted at step {steps}, {problem}; the next episode starts instead, so "
            "the resume is not exact"
        )
    difference = _difference(slot, values, saved, into)
    if difference is None:
        return None
    return (
        f"{where}: rebuilt episode {episode} by replaying {steps} actions, but {difference}; the run continues, but "
        "the resume is not exact. An environment that is not deterministic can offer save_state and load_state"
    )


def _why_not_restorable(slot: EnvSlot, values: Mapping[str, Any]) -> str | None:
    if "own" in values and slot.load_state is None:
        return "was saved with the environment's save_state, but the environment has no load_state now"
    if "own" not in values and values["steps"] > MAX_REPLAYED_ACTIONS:
        return (
            f"is longer than the {MAX_REPLAYED_ACTIONS:,} actions that are kept for replaying (use save_state instead)"
        )
    return None


def _replay(slot: EnvSlot, spec: EnvSpec, actions: Array, into: Observation) -> str | None:
    for done, action in enumerate(actions, start=1):
        _, terminated, truncated = slot.step(action, spec.to_environment(action[None])[0], into)
        if terminated or truncated:
            return f"ended after {done} of its actions during replaying"
    return None


def _load(
    slot: EnvSlot, arrays: Mapping[str, Array], values: Mapping[str, Any], saved: Observation, into: Observation
) -> None:
    state: dict[str, Any] = {**values["own"], **select_prefix(arrays, "own/")}
    assert slot.load_state is not None
    try:
        slot.load_state(state)
    except Exception as error:
        raise slot.fault(f"load_state raised {type(error).__name__}: {error}", None) from error
    slot.steps, slot.total_reward = values["steps"], values["total_reward"]
    _set_elapsed(slot.env, slot.steps)
    for row, old in _rows(slot.index, into, saved):
        row[...] = old


def _set_elapsed(env: Any, steps: int) -> None:
    """Sets the step count of Gymnasium's TimeLimit wrappers, which `load_state` does not restore."""
    from gymnasium import Wrapper
    from gymnasium.wrappers import TimeLimit

    while isinstance(env, Wrapper):
        if isinstance(env, TimeLimit):
            setattr(env, "_elapsed_steps", steps)  # noqa: B010
        env = env.env


def _difference(slot: EnvSlot, values: Mapping[str, Any], saved: Observation, into: Observation) -> str | None:
    pairs = list(_rows(slot.index, into, saved))
    if any(new.tobytes() != old.tobytes() for new, old in pairs):
        gap = max(float(np.abs(new.astype(np.float64) - old).max(initial=0.0)) for new, old in pairs)
        return f"its observation differs by up to {gap:.3g}"
    if slot.total_reward != values["total_reward"]:
        return f"its return so far is {slot.total_reward!r} instead of {values['total_reward']!r}"
    return None


def _rows(index: int, new: Observation, old: Observation) -> list[tuple[Array, Array]]:
    """One environment's rows of two batches, as views: vector, state, mask, images."""
    pairs = [(new.vector[index], old.vector[index]), (new.state[index], old.state[index])]
    if new.mask is not None and old.mask is not None:
        pairs.append((new.mask[index], old.mask[index]))
    return pairs + [(images[index], old.images[name][index]) for name, images in new.images.items()]


def _split(slot: EnvSlot) -> tuple[dict[str, Array], dict[str, Any]]:
    """The result of `save_state`, split into arrays and JSON values."""
    assert slot.save_state is not None
    rule = "save_state must return a dict from names to arrays or JSON values"
    try:
        state = slot.save_state()
    except Exception as error:
        raise slot.fault(f"save_state raised {type(error).__name__}: {error}", slot.steps) from error
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise slot.fault(f"{rule}, not a {type(state).__name__}", slot.steps)
    arrays = {key: value.copy() for key, value in state.items() if isinstance(value, np.ndarray)}
    others = {key: value.item() if isinstance(value, np.generic) else value for key, value in state.items()}
    others = {key: value for key, value in others.items() if key not in arrays}
    for key, value in others.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise slot.fault(f"{rule}; {key!r} is a {type(value).__name__}", slot.steps) from error
    if any(array.dtype.kind not in "biuf" for array in arrays.values()):
        raise slot.fault(f"{rule}; its arrays must hold numbers", slot.steps)
    return arrays, others
