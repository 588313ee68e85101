"""Specs and batches for tests that need no environment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offbeat.types import EnvSpec, Layout, Leaf


@dataclass
class Transitions:
    """One batch: obs, next_obs (B, O), action (B, A), reward, discount, rows (B,), state, next_state (B, S).

    mask, next_mask (B, K) bool, or None where there are no masks.
    """

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    next_obs: np.ndarray
    state: np.ndarray
    next_state: np.ndarray
    rows: np.ndarray
    mask: np.ndarray | None = None
    next_mask: np.ndarray | None = None


def vector_spec(observation: int = 5, action: int = 2, state: int = 0, low: float = -1.0, high: float = 1.0) -> EnvSpec:
    box = Leaf((), "box", (observation,), "float32")
    return EnvSpec(
        "test",
        Layout((box,)),
        (low,) * action,
        (high,) * action,
        (action,),
        state_key="state" if state else None,
        state_from="info" if state else None,
        state=Layout((Leaf((), "box", (state,), "float32"),)) if state else None,
    )


def choice_spec(observation: int = 5, choices: int = 3) -> EnvSpec:
    box = Leaf((), "box", (observation,), "float32")
    return EnvSpec("test", Layout((box,)), (0.0,), (choices - 1.0,), (), "int64", choices=choices)


def random_transitions(
    rng: np.random.Generator, spec: EnvSpec, batch: int = 32, dtype: type = np.float32
) -> Transitions:
    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    terminated = rng.random(batch) < 0.2
    action = np.tanh(normal(batch, spec.action_size)) if spec.choices is None else spec.random_actions(rng, batch)
    return Transitions(
        obs=normal(batch, spec.observation_size),
        action=action.astype(dtype),
        reward=normal(batch),
        discount=np.where(terminated, 0.0, 0.99).astype(dtype),
        next_obs=normal(batch, spec.observation_size),
        state=normal(batch, spec.state_size),
        next_state=normal(batch, spec.state_size),
        rows=np.arange(batch),
    )
