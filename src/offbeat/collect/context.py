"""Everything that a collector is made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from offbeat.collect.shaping import Shaping
from offbeat.collect.stepper import Stepper, make_stepper
from offbeat.envs.vector import Vector
from offbeat.errors import UsageError
from offbeat.policies import Policy
from offbeat.replay.experience import Experience, attach
from offbeat.replay.stores import Writer

StepperMaker = Callable[[Writer, np.random.Generator], Stepper]


@dataclass(frozen=True)
class CollectorContext:
    """Everything that a collector is made from; a user's own collector is a callable (context) -> Collector.

    num_envs: environments to step in total.
    make_vector(first_env, num_envs), make_policy(first_env, num_envs): return a function that makes the vector or the
    policy of these environments. That function can be sent to another process with cloudpickle.
    experience: plans and attaches the stores that rows are written to.
    rng: the run's own acting generator, for a collector in this process; a checkpoint holds its state.
    generator(worker, boot): the state of a NumPy PCG64 generator for a worker elsewhere. boot: how often the worker's
    process was started before, since the run was begun or resumed.
    random_steps: the first steps, over all environments, that act uniformly at random. recurrent: whether the policy
    has a recurrent state, which random steps advance, too. reward_shaping, total_steps: as in the settings of a run.
    wants_infos: whether episodes need their final infos.
    collectors: the number of workers. slack: vector steps that collecting may be ahead of learning. collect_ahead:
    vector steps that a worker may make without a new permit. synchronous: no worker begins a step, or a rollout, before
    all earlier ones are polled. hang_seconds: a step that takes longer is interrupted. max_crashes: crashes of a worker
    in a row, without a row collected, that end the run. other_rows: rows that other learners have collected so far,
    which count for random_steps and for exploration that decays.
    """

    num_envs: int
    make_vector: Callable[[int, int], Callable[[], Vector]]
    make_policy: Callable[[int, int], Callable[[], Policy]]
    experience: Experience
    rng: np.random.Generator
    generator: Callable[[int, int], dict[str, Any]]
    random_steps: int = 0
    recurrent: bool = False
    reward_shaping: Shaping | None = None
    total_steps: int = 0
    wants_infos: bool = False
    collectors: int = 0
    slack: int = 0
    collect_ahead: int = 1
    synchronous: bool = False
    hang_seconds: float = 60.0
    max_crashes: int = 5
    other_rows: Callable[[], int] = int

    def stepper(self, rng: np.random.Generator | None = None) -> Stepper:
        """Makes all environments and a policy in this process, and the store that they write to.

        rng: acts with this generator instead of the run's own.
        """
        plan = self.experience.plan(0, self.num_envs, self.num_envs)
        try:
            store = plan.open()
        except (MemoryError, ValueError) as error:
            raise UsageError(f"{plan} needs {plan.nbytes / 2**30:,.0f} GiB of memory: {error}; use less") from error
        attach(self.experience, store)
        return self.stepper_maker(0, self.num_envs)(store, self.rng if rng is None else rng)

    def stepper_maker(self, first_env: int, num_envs: int, worker: int = 0, boot: int = 0) -> StepperMaker:
        """Returns a function that makes these environments, their policy and the stepper of both.

        It can be sent to another process with cloudpickle. worker, boot: the key of its chunks.
        """
        return partial(
            make_stepper,
            self.make_vector(first_env, num_envs),
            self.make_policy(first_env, num_envs),
            self.experience.schema,
            first_env=first_env,
            random_steps=self.random_steps,
            recurrent=self.recurrent,
            reward_shaping=self.reward_shaping,
            total_steps=self.total_steps,
            worker=worker,
            boot=boot,
        )
