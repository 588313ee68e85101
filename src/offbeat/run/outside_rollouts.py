"""Rollouts that were collected outside this library, as one that PPO and APPO can learn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from offbeat import masks
from offbeat.errors import UsageError
from offbeat.run.observe_arguments import check_rows
from offbeat.types import Array, EnvSpec, RolloutBatch


@dataclass(frozen=True)
class OutsideRollout:
    """T steps of N environments as a user has them: each array (T, N, ...), actions in the environment's own units.

    action: as it was drawn, so beyond the bounds where the environment was given the bound instead.
    final_obs, final_state: what followed each row; read where an episode ended and in the last row, so it may be the
    true successor of every row. log_prob: of the actions under the policy that drew them, for actions in [-1, 1].
    """

    obs: Any
    action: Any
    log_prob: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any
    state: Any = None
    final_state: Any = None
    mask: Any = None

    def batch(self, spec: EnvSpec, episodes: Array, steps: Array, version: int) -> RolloutBatch:
        """episodes, steps (N,): those of each environment's first row. version: of the weights that acted."""
        lead = self.shape
        terminated, truncated = (_flags(name, getattr(self, name), lead) for name in ("terminated", "truncated"))
        ended = terminated | truncated
        rows = lead[0] * lead[1]
        flat: dict[str, Array] = {
            "action": spec.from_environment(_numbers("action", self.action, (*lead, *spec.action_shape), rows)),
            "reward": _numbers("reward", self.reward, lead, rows).astype(np.float32),
            "log_prob": _numbers("log_prob", self.log_prob, lead, rows).astype(np.float32),
        }
        if spec.mask_size:
            mask = None if self.mask is None else _joined(self.mask, lead)
            flat["mask"] = np.asarray(masks.read_masks(mask, _joined(self.obs, lead), rows, spec, "mask"))
        within = flat["action"] if spec.counts else flat["action"].clip(-1.0, 1.0)
        check_rows({**flat, "action": within}, spec)
        columns = {name: column.reshape(*lead, *column.shape[1:]) for name, column in flat.items()}
        columns |= _with_successors(
            "obs", self._encoded(spec, "obs", lead), self._encoded(spec, "final_obs", lead), ended
        )
        if spec.state_size:
            if self.state is None or self.final_state is None:
                raise UsageError("observe_rollout: the critic uses a privileged state: pass state= and final_state=")
            shape = *lead, spec.state_size
            here, final = (
                _numbers(name, getattr(self, name), shape, rows).astype(np.float32).reshape(shape)
                for name in ("state", "final_state")
            )
            columns |= _with_successors("state", here, final, ended)
        episode, step = _counted(ended, episodes, steps)
        columns |= {"terminated": terminated, "truncated": truncated, "episode": episode, "step": step}
        columns["env"] = np.broadcast_to(np.arange(lead[1]), lead)
        columns["version"] = np.full(lead, version, np.int32)
        return RolloutBatch(columns, np.ones(lead, bool))

    @property
    def shape(self) -> tuple[int, int]:
        """T and N, by the rewards."""
        shape = np.shape(self.reward)
        if len(shape) != 2 or 0 in shape:
            raise UsageError(f"observe_rollout: reward has shape {shape}; it must be (T, N), steps by environments")
        return shape[0], shape[1]

    def _encoded(self, spec: EnvSpec, name: str, lead: tuple[int, int]) -> Array:
        rows, _ = spec.layout.read(_joined(getattr(self, name), lead))
        return rows.reshape(*lead, -1)


def _joined(raw: Any, lead: tuple[int, int]) -> Any:
    """Observations (T, N, ...), nested in dicts and tuples or not, as (T * N, ...)."""
    if isinstance(raw, Mapping):
        return {key: _joined(value, lead) for key, value in raw.items()}
    if isinstance(raw, tuple):
        return tuple(_joined(value, lead) for value in raw)
    array = np.asarray(raw)
    if array.shape[:2] != lead:
        raise UsageError(f"observe_rollout: an array has shape {array.shape}; with these rewards it must begin {lead}")
    return array.reshape(lead[0] * lead[1], *array.shape[2:])


def _numbers(name: str, value: Any, shape: tuple[int, ...], rows: int) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.shape != shape:
        raise UsageError(
            f"observe_rollout: {name} has shape {array.shape} of {array.dtype}; it must be {shape}, numbers"
        )
    if not np.isfinite(array).all():
        raise UsageError(f"observe_rollout: {name} holds numbers that are not finite")
    return array.reshape(rows, *shape[2:])


def _flags(name: str, value: Any, lead: tuple[int, int]) -> Array:
    array = np.asarray(value)
    if array.shape != lead or not np.isin(array, (0, 1)).all():
        raise UsageError(f"observe_rollout: {name} must be True or False, of shape {lead}; it is {array.shape}")
    return array.astype(bool)


def _with_successors(name: str, here: Array, final: Array, ended: Array) -> dict[str, Array]:
    """The column and its true successors: the next row, or `final` where an episode ended and in the last row."""
    following = np.array(final)
    following[:-1] = np.where(ended[:-1, :, None], final[:-1], here[1:])
    return {name: here, f"next_{name}": following}


def _counted(ended: Array, episodes: Array, steps: Array) -> tuple[Array, Array]:
    """Episode and step of each row (T, N), from those of the first."""
    episode, step = np.empty(ended.shape, np.int32), np.empty(ended.shape, np.int32)
    for row, over in enumerate(ended):
        episode[row], step[row] = episodes, steps
        episodes, steps = episodes + over, np.where(over, 0, steps + 1)
    return episode, step
