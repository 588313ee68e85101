"""A learner object as a backend of our core: its half-updates, its actor's weights, and its state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.algorithms.torch.seeding import seeded
from offbeat.compat.unilab.algos.torch.offpolicy.state import pack_state, restore_learner, unpack_state
from offbeat.errors import UsageError
from offbeat.learn.backend import RolloutResult, Scalar, UpdateResult
from offbeat.learn.torch_devices import choose_device
from offbeat.learn.torch_schedulers import scheduler_factor
from offbeat.trace import NO_TRACE, Trace
from offbeat.types import Array, Batches, EnvSpec, RolloutBatch

METHODS = ("update_critic", "update_actor", "soft_update_target", "get_state_dict")
_STATE = "learner_state"


def check_learner(learner: Any) -> None:
    """Refuses an object without the documented interface."""
    missing = [name for name in METHODS if not callable(getattr(learner, name, None))]
    missing += [name for name in ("actor", "update_count") if not hasattr(learner, name)]
    if missing:
        raise UsageError(
            f"learner is a {type(learner).__name__} without {', '.join(missing)}; a learner has actor, update_count, "
            f"{', '.join(METHODS)}"
        )
    if not isinstance(learner.actor, torch.nn.Module):
        raise UsageError(f"learner.actor is a {type(learner.actor).__name__}, but it must be a torch nn.Module")


class LearnerBackend:
    """`Backend` of a learner object. An iteration is `per_iteration` updates, whose first always moves the actor.

    after_iteration: called with the number of the iteration that was just completed, from 1.
    """

    name = "torch"
    noise_shape: tuple[int, ...] = (0,)
    networks: tuple[str, ...] = ()
    growing = (_STATE,)
    updates_per_call = 1

    def __init__(
        self,
        learner: Any,
        config: Any,
        spec: EnvSpec,
        *,
        device: str,
        cuda_events: bool = True,
        after_iteration: Callable[[int], None],
    ) -> None:
        self.learner, self.spec = learner, spec
        self._device = choose_device(device)
        self.device = str(self._device)
        self._per_iteration, self._policy_frequency = config.updates_per_iteration, config.policy_frequency
        self._after_iteration, self._cuda_events = after_iteration, cuda_events
        self._trace: Callable[[str], Any] = NO_TRACE

    def update(
        self,
        batches: Batches,
        noise: Array,
        rates: Sequence[Mapping[str, float]],
        *,
        updates: int,
        seed: int,
        td_errors: bool,
    ) -> UpdateResult:
        metrics = defaultdict[str, list[Scalar]](list)
        columns = {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in batches.columns.items()}
        for index in range(len(batches)):
            batch = self._batch({name: each[index].to(self._device) for name, each in columns.items()})
            with seeded(seed + index, self._device):
                for name, value in self._update_once(batch, updates + index).items():
                    metrics[name].append(value)
        return UpdateResult(metrics)

    def _update_once(self, batch: dict[str, Tensor], updates: int) -> dict[str, Scalar]:
        learner, place = self.learner, updates % self._per_iteration
        with self._trace("update_critic"):
            metrics = dict(learner.update_critic(batch) or {})
        if place % self._policy_frequency == 0:
            with self._trace("update_actor"):
                metrics |= learner.update_actor(batch) or {}
        with self._trace("update_target"):
            learner.soft_update_target()
        if place == self._per_iteration - 1:
            learner.update_count += 1
            self._after_iteration((updates + 1) // self._per_iteration)
        return metrics

    def _batch(self, row: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The documented names. `critic` is the privileged state, or the observation itself where there is none."""
        terminated, truncated = (row[name].to(torch.float32) for name in ("terminated", "truncated"))
        truncated = truncated * (1.0 - terminated)  # what has terminated is not bootstrapped, whatever else ended it
        privileged = self.spec.state_size > 0
        return {
            "obs": row["obs"],
            "actions": row["action"],
            "rewards": row["reward"],
            "next_obs": row["next_obs"],
            "dones": torch.maximum(terminated, truncated),
            "truncated": truncated,
            "critic": row["state"] if privileged else row["obs"],
            "next_critic": row["next_state"] if privileged else row["next_obs"],
        }

    def learn_rollout(
        self, config: Any, rollout: RolloutBatch, orders: Array, rate: float, *, count: int, updates: int, seed: int
    ) -> RolloutResult:
        raise UsageError("a learner with update_critic and update_actor learns from transitions, not from rollouts")

    def weights(self) -> dict[str, Array]:
        state: Mapping[str, Tensor] = self.learner.actor.state_dict()
        return {f"actor/{name}": tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}

    def policy_description(self) -> dict[str, Any]:
        return {"kind": "module", "head": "deterministic", "actor": None}

    def arrays(self) -> dict[str, Array]:
        state = {"learner": self.learner.get_state_dict(), "update_count": self.learner.update_count}
        return {_STATE: pack_state(state)}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        state = unpack_state(arrays[_STATE])
        restore_learner(self.learner, state["learner"])
        self.learner.update_count = state["update_count"]

    def scheduler(self, kind: Any, options: Mapping[str, Any]) -> Callable[[int], float]:
        return scheduler_factor(kind, options)

    def trace_parts(self, trace: Trace) -> None:
        self._trace = trace.cuda if self._device.type == "cuda" and self._cuda_events else trace
