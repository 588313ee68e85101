"""A rollout as UniLab names its parts, as the tensors that our APPO learns from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from offbeat.algorithms.torch.rollout import RolloutTensors
from offbeat.errors import UsageError

NEEDED = ("observations", "actions", "rewards", "dones", "actions_log_prob", "last_obs")
TIME_OUTS = ("time_outs", "truncated")
"""Either name marks the rows whose episode ended by time, not by termination."""


PROCESSED = ("actions_log_prob", "target_log_probs", "advantages", "returns", "values")
"""Numbers [T, N] of a processed rollout that an update learns from."""


@dataclass(frozen=True)
class Widths:
    """Sizes of the actor's observations, of its actions and of the critic's observations; None where not known."""

    obs: int | None
    action: int
    critic: int | None

    def of(self, name: str) -> int | None:
        """The last dimension that an entry of a batch must have."""
        if name in ("critic", "last_critic", "final_critic"):
            return self.critic
        return self.action if name == "actions" else self.obs


def rollout_tensors(
    batch: Mapping[str, Any], widths: Widths, device: torch.device, dtype: torch.dtype
) -> RolloutTensors:
    """T steps of N environments. A row that ends by time is bootstrapped from `final_obs`, or from its own observation.

    `dones` is set at every end of an episode; where `time_outs` is set too, the value of what follows still counts.
    """
    if missing := [name for name in NEEDED if batch.get(name) is None]:
        raise UsageError(f"batch has no {', '.join(missing)}; a rollout needs {', '.join(NEEDED)}")
    tensors = {
        name: torch.as_tensor(batch[name]).detach().to(device, dtype)
        for name in (*NEEDED, *TIME_OUTS, "critic", "last_critic", "final_obs", "final_critic")
        if batch.get(name) is not None
    }
    _check(tensors, widths)
    obs, done = tensors["observations"], tensors["dones"] > 0.5
    by_time = torch.zeros_like(done)
    for name in TIME_OUTS:
        by_time |= tensors[name] > 0.5 if name in tensors else by_time
    nothing = obs[..., :0]
    state, next_state = nothing, nothing
    if "critic" in tensors:
        state = tensors["critic"]
        next_state = _following(state, tensors["last_critic"], by_time, tensors.get("final_critic"))
    return RolloutTensors(
        obs=obs,
        next_obs=_following(obs, tensors["last_obs"], by_time, tensors.get("final_obs")),
        state=state,
        next_state=next_state,
        action=tensors["actions"],
        mask=nothing,
        reward=tensors["rewards"],
        log_prob=tensors["actions_log_prob"],
        terminated=done & ~by_time,
        truncated=by_time,
        valid=torch.ones_like(done),
    )


def _following(rows: Tensor, last: Tensor, by_time: Tensor, final: Tensor | None) -> Tensor:
    """What followed each row (T, N, D), as far as it is read: in the last row, and where an episode ended by time."""
    following = torch.cat((rows[1:], last.unsqueeze(0)))
    return torch.where(by_time.unsqueeze(-1), rows if final is None else final, following)


def check_processed(batch: Mapping[str, Any], widths: Widths) -> None:
    """Refuses a processed rollout whose entries were changed to other shapes since."""
    needed = ("observations", "actions", *PROCESSED)
    if missing := [name for name in needed if batch.get(name) is None]:
        raise UsageError(f"batch was processed, but has no {', '.join(missing)}; pass it as process_batch returned it")
    tensors = {name: torch.as_tensor(batch[name]) for name in needed}
    _check_shapes(tensors, widths)
    rows = math.prod(tensors["observations"].shape[:2])
    if len(batch["_policy"]) != rows:
        raise UsageError(
            f"batch was processed with {len(batch['_policy'])} rows, and now has {rows}; process the new one"
        )


def _check(tensors: Mapping[str, Tensor], widths: Widths) -> None:
    if ("critic" in tensors) != ("last_critic" in tensors):
        raise UsageError("batch has only one of critic and last_critic: pass both, or neither")
    if "critic" not in tensors and widths.critic not in (None, widths.obs):
        raise UsageError(
            f"batch has no critic, but the critic takes {widths.critic} numbers and the actor {widths.obs}: pass the "
            "critic's own observations as critic [T, N, size] and last_critic [N, size]"
        )
    _check_shapes(tensors, widths)


def _check_shapes(tensors: Mapping[str, Tensor], widths: Widths) -> None:
    """Refuses entries that do not fit the observations [T, N, D] and the models."""
    obs = tensors["observations"]
    if obs.ndim != 3:
        raise UsageError(f"batch['observations'] has shape {tuple(obs.shape)}, but it must be [T, N, D]")
    lead = tuple(obs.shape[:2])
    for name, tensor in tensors.items():
        wanted: tuple[int, ...] = lead
        if name not in ("rewards", "dones", *TIME_OUTS, *PROCESSED):
            width = widths.of(name)
            wanted = (*(lead[1:] if name.startswith("last_") else lead), tensor.shape[-1] if width is None else width)
        if tuple(tensor.shape) != wanted:
            raise UsageError(
                f"batch[{name!r}] has shape {tuple(tensor.shape)}, but with these observations and models it must be "
                f"{list(wanted)}"
            )
