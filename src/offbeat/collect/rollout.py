"""The only loop step of environments: act, step, and start the memory of ended episodes afresh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from offbeat.envs.vector import Vector
from offbeat.policies import Policy
from offbeat.trace import NO_TRACE, Trace
from offbeat.types import Array, Observation, Step

NO_EXTRAS: Mapping[str, Array] = {}


@dataclass(frozen=True)
class Moved:
    """One vector step: the action taken (N, A), what came of it, and the carry (N, C) to act with next."""

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
    need_extras: bool = False,
    step: int = 0,
    trace: Trace = NO_TRACE,
) -> Moved:
    """Acts on `observation` and steps the vector; rng None acts deterministically.

    The first `random_rows` environments act uniformly instead. Where all do, the policy is not asked, unless
    `need_extras` says that rows want what it has to say beside the action. step: as for `Policy.act`.
    """
    extras = NO_EXTRAS
    with trace("act"):
        if random_rows < vector.num_envs or need_extras:
            mask = () if observation.mask is None else (observation.mask,)
            action, carry, extras = policy.act(observation.vector, carry, rng, step, *mask)
        if random_rows > 0:
            if rng is None:
                raise ValueError("random actions need a generator, and acting deterministically has none")
            count = min(random_rows, vector.num_envs)
            allowed = None if observation.mask is None else observation.mask[:count]
            uniform = vector.spec.random_actions(rng, count, allowed)
            action = np.concatenate([uniform, action[len(uniform) :]]) if len(uniform) < vector.num_envs else uniform
    with trace("env step"):
        taken = vector.step(action)
    if carry.size:
        # A row that is not valid acted on what was left of an ended episode: its new episode starts afresh as well.
        fresh = taken.terminated | taken.truncated | ~taken.valid
        if fresh.any():
            carry = np.where(fresh[:, None], policy.initial_carry(vector.num_envs), carry)
    return Moved(action, extras, taken, carry)
