"""A rollout as UniLab names its parts, as the tensors that our APPO learns from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from offbeat.algorithms.torch.rollout import RolloutTensors
from offbeat.errors import UsageError

NEEDED = ("observations", "actions", "rewards", "dones", "actions_log_prob", "last_obs")
TIME_OUTS = ("time_outs", "truncated")
"""Either name marks the rows whose episode ended by time, not by termination."""


def rollout_tensors(batch: Mapping[str, Any], device: torch.device, dtype: torch.dtype) -> RolloutTensors:
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
    _check(tensors)
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


def _check(tensors: Mapping[str, Tensor]) -> None:
    obs = tensors["observations"]
    if obs.ndim != 3:
        raise UsageError(f"batch['observations'] has shape {tuple(obs.shape)}, but it must be [T, N, D]")
    if ("critic" in tensors) != ("last_critic" in tensors):
        raise UsageError("batch has only one of critic and last_critic: pass both, or neither")
    lead = obs.shape[:2]
    shapes = dict.fromkeys(("rewards", "dones", "actions_log_prob", *TIME_OUTS), lead)
    for name, tensor in tensors.items():
        wanted = shapes.get(name, lead[1:] if name.startswith("last_") else lead)
        if tensor.shape[: len(wanted)] != wanted or (name in shapes and tensor.ndim != 2):
            rule = f"[{', '.join(map(str, wanted))}{'' if name in shapes else ', size'}]"
            raise UsageError(
                f"batch[{name!r}] has shape {tuple(tensor.shape)}, but with these observations it must be {rule}"
            )
