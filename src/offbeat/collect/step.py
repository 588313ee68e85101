"""The only place where environments are stepped: act, step, and reset the carry of ended episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from offbeat.envs.vector import Vector
from offbeat.policies import Policy
from offbeat.trace import NO_TRACE, Trace
from offbeat.types import Array, Observation, Step

NO_EXTRAS: Mapping[str, Array] = {}


class VectorStep(NamedTuple):
    """One vector step: the action (N, A), the policy's extras, the environments' step, and the next carry (N, C)."""

    action: Array
    extras: Mapping[str, Array]
    step: Step
    carry: Array


def advance(
    vector: Vector,
    policy: Policy,
    observation: Observation,
    carry: Array,
    rng: np.random.Generator | None,
    random_rows: int = 0,
    need_policy: bool = False,
    step: int = 0,
    trace: Trace = NO_TRACE,
) -> VectorStep:
    """Acts on `observation` and steps the vector; rng None acts deterministically.

    The first `random_rows` environments act uniformly at random. If all of them do, the policy is not called, unless
    `need_policy` says that the rows store its extras, or that it has a recurrent state. step: as for `Policy.act`.
    """
    extras = NO_EXTRAS
    with trace("act"):
        if random_rows < vector.num_envs or need_policy:
            mask = () if observation.mask is None else (observation.mask,)
            action, carry, extras = policy.act(observation.vector, carry, rng, step, *mask)
        if random_rows > 0:
            if rng is None:
                raise ValueError(f"random_rows={random_rows} needs a generator, but rng is None; pass a generator")
            count = min(random_rows, vector.num_envs)
            allowed = None if observation.mask is None else observation.mask[:count]
            uniform = vector.spec.random_actions(rng, count, allowed)
            action = np.concatenate([uniform, action[len(uniform) :]]) if len(uniform) < vector.num_envs else uniform
    with trace("env step"):
        taken = vector.step(action)
    if carry.size:
        # An environment without a valid row was only reset, so its new episode starts with the initial carry, too.
        fresh = taken.terminated | taken.truncated | ~taken.valid
        if fresh.any():
            carry = np.where(fresh[:, None], policy.initial_carry(vector.num_envs), carry)
    return VectorStep(action, extras, taken, carry)
