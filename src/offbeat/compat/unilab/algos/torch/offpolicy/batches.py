"""A batch by UniLab's names as the one that our SAC and TD3 take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from offbeat.algorithms.torch.batch import Batch
from offbeat.errors import UsageError
from offbeat.types import EnvSpec, Layout, Leaf


def make_spec(obs_dim: int, action_dim: int, critic_obs_dim: int | None) -> EnvSpec:
    """Sizes of observation, action and privileged state. critic_obs_dim: None or obs_dim is no state of its own."""
    own = critic_obs_dim not in (None, obs_dim)
    return EnvSpec(
        "learner",
        Layout((Leaf((), "box", (obs_dim,), "float32"),)),
        (-1.0,) * action_dim,
        (1.0,) * action_dim,
        (action_dim,),
        state=Layout((Leaf((), "box", (int(critic_obs_dim or 0),), "float32"),)) if own else None,
    )


def to_batch(batch: Mapping[str, Any], spec: EnvSpec, gamma: float, like: Tensor) -> Batch:
    """Tensors on the learner's device. What ended by time is bootstrapped, what terminated is not."""
    names = ("obs", "actions", "rewards", "next_obs", "dones")
    if missing := [name for name in names if name not in batch]:
        raise UsageError(f"batch has no {', '.join(missing)}; an update needs {', '.join(names)}")
    columns = {
        name: torch.as_tensor(batch[name]).to(like)
        for name in (*names, "truncated", "critic", "next_critic")
        if name in batch
    }
    truncated = columns.get("truncated", torch.zeros_like(columns["dones"]))
    goes_on = (1.0 - columns["dones"] + truncated).clamp(0.0, 1.0)
    return Batch(
        obs=columns["obs"],
        action=columns["actions"],
        reward=columns["rewards"].reshape(-1),
        discount=gamma * goes_on.reshape(-1),
        next_obs=columns["next_obs"],
        state=_state(columns, "critic", "obs", spec),
        next_state=_state(columns, "next_critic", "next_obs", spec),
    )


def _state(columns: Mapping[str, Tensor], name: str, obs: str, spec: EnvSpec) -> Tensor:
    """What critics see besides the observation (B, S)."""
    if not spec.state_size:
        given = columns.get(name)
        if given is not None and (given.shape != columns[obs].shape or not torch.equal(given, columns[obs])):
            raise UsageError(
                f"batch[{name!r}] is not the observation, but this learner's critics see obs alone, because "
                "critic_obs_dim is None or equals obs_dim: pass the size of the critic's own observations"
            )
        return columns[obs][:, :0]
    if name not in columns or columns[name].shape[-1] != spec.state_size:
        found = tuple(columns[name].shape) if name in columns else "missing"
        raise UsageError(
            f"batch[{name!r}] is {found}, but critic_obs_dim={spec.state_size}; pass (batch, {spec.state_size})"
        )
    return columns[name]
