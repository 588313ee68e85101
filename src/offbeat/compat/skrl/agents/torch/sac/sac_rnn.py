"""`SAC_RNN`: skrl's agent for recurrent models in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.compat.skrl.agents.sac.sequence_draws import ENVIRONMENTS, SequenceDraws
from offbeat.compat.skrl.agents.torch.sac.check_models import check_recurrent_models
from offbeat.compat.skrl.agents.torch.sac.sac import SAC
from offbeat.compat.skrl.agents.torch.sac.sequences import Recurrence, SequenceInputs
from offbeat.compat.skrl.envs.wrappers.wrapper import valid_rows
from offbeat.compat.skrl.memories.random import RandomRows
from offbeat.errors import UsageError
from offbeat.types import Array


class SAC_RNN(SAC):
    """`SAC` with recurrent models: RNN, GRU, LSTM, or any other whose policy says its states in `get_specification`.

    `batch_size` counts sequences. Models get `rnn`, the states before each step, and in updates also `terminated` and
    `truncated`; the policy returns its new states as outputs["rnn"]. `act` keeps the states from call to call, and
    `record_transition` resets those of environments whose episode has ended. Without states in the specification, it is
    `SAC`.
    """

    _recurrence: Recurrence | None
    _before: list[Tensor]  # the states before the last act
    _now: list[Tensor]
    _restored = False

    # Construction.

    def _check_models(self, models: Any, training: bool) -> None:
        self._recurrence = Recurrence.of(models.get("policy")) if isinstance(models, Mapping) else None
        if self._recurrence is None:
            super()._check_models(models, training)
            return
        check_recurrent_models(models, self._sizes, training, self._recurrence)

    def _set_up_learning(self) -> None:
        if self._recurrence is not None:
            length, size = self._recurrence.length, getattr(self.memory, "memory_size", None)
            if isinstance(self.memory, RandomRows) and length > self.memory.memory_size:
                raise UsageError(
                    f"sequence_length={length} is more than the memory keeps of an environment (memory_size={size}); "
                    "use a larger memory, or shorter sequences"
                )
            self._packing = SequenceInputs(self._sizes, self._recurrence)
        super()._set_up_learning()

    def _set_up_inputs(self) -> None:
        super()._set_up_inputs()
        if self._recurrence is not None:
            self._begin_anew()

    def _sequences(self) -> SequenceInputs | None:
        return None if self._recurrence is None else self._packing

    def _make_draws(self, dtype: torch.dtype) -> Any:
        if self._recurrence is None:
            return super()._make_draws(dtype)
        options = self._draw_options(dtype)
        return SequenceDraws(length=self._recurrence.length, names=self._recurrence.names, **options)

    def init(self, *, trainer_cfg: Any = None) -> None:
        """Creates the memory's tensors, also of the states, and begins with states of zeros; a trainer calls it."""
        super().init(trainer_cfg=trainer_cfg)
        if self._recurrence is None:
            return
        if self.memory is not None:
            self.memory.create_tensor(name="truncated", size=1, dtype=torch.bool)
            self.memory.create_tensor(name=ENVIRONMENTS, size=1, dtype=torch.int32)
            for name, (layers, _, hidden) in zip(self._recurrence.names, self._recurrence.sizes, strict=True):
                self.memory.create_tensor(name=name, size=(layers, hidden), dtype=torch.float32, keep_dimensions=True)
        self._begin_anew()

    # Interaction.

    def _begin_anew(self) -> None:
        """States of zeros, as at the first step of an episode."""
        assert self._recurrence is not None
        first = next(self.policy.parameters())
        self._before = self._now = self._recurrence.zeros(self._recurrence.num_envs, first.detach())

    def act(
        self, observations: Tensor, states: Tensor | None, *, timestep: int, timesteps: int
    ) -> tuple[Tensor, dict[str, Any]]:
        """Actions of the policy with its states, which advance by one step; random first actions advance them too."""
        if self._recurrence is None:
            return super().act(observations, states, timestep=timestep, timesteps=timesteps)
        count = len(observations)
        if count != self._recurrence.num_envs:
            raise UsageError(
                f"act: {count} observations, but get_specification of models['policy'] has states of "
                f"num_envs={self._recurrence.num_envs} environments; make the models with num_envs={count}"
            )
        inputs = {**self._inputs(observations, states), "rnn": self._now}
        with self._precision():
            actions, outputs = self.policy.act(inputs, role="policy")
        new = self._recurrence.checked(outputs, count)
        self._before, self._now = (
            self._now,
            [each.detach().to(old.dtype) for each, old in zip(new, self._now, strict=True)],
        )
        if timestep < self.cfg.random_timesteps:
            random: tuple[Tensor, dict[str, Any]] = self.policy.random_act(inputs, role="policy")
            return random
        return actions.to(observations.dtype), outputs

    def _own_columns(self, count: int) -> dict[str, Any]:
        if self._recurrence is None:
            return {}
        numbers = {ENVIRONMENTS: torch.arange(count, dtype=torch.int32).reshape(-1, 1)}
        pairs = zip(self._recurrence.names, self._before, strict=True)
        return numbers | {name: state.transpose(0, 1) for name, state in pairs}

    @property
    def _stores_truncated(self) -> bool:
        return self._recurrence is not None

    def record_transition(
        self,
        *,
        observations: Any,
        states: Any,
        actions: Any,
        rewards: Any,
        next_observations: Any,
        next_states: Any,
        terminated: Any,
        truncated: Any,
        infos: Any,
        timestep: int,
        timesteps: int,
    ) -> None:
        """Stores the transition with the states before it, and resets the states where an episode has ended."""
        super().record_transition(
            observations=observations,
            states=states,
            actions=actions,
            rewards=rewards,
            next_observations=next_observations,
            next_states=next_states,
            terminated=terminated,
            truncated=truncated,
            infos=infos,
            timestep=timestep,
            timesteps=timesteps,
        )
        if self._recurrence is None:
            return
        ended = (terminated.bool() | truncated.bool()).reshape(-1)
        if (valid := valid_rows(infos)) is not None:  # a step that only reset an environment is no step of an episode
            ended = ended | ~torch.from_numpy(valid).to(ended.device)
        if ended.any():
            self._now = [torch.where(ended[None, :, None], torch.zeros_like(each), each) for each in self._now]

    def enable_training_mode(self, enabled: bool = True, *, apply_to_models: bool = False) -> None:
        """Training (True) or evaluation; where that changes, the states begin anew, except after `resume`."""
        changed = enabled != self.training
        super().enable_training_mode(enabled, apply_to_models=apply_to_models)
        if changed and self._recurrence is not None and not self._restored:
            self._begin_anew()
        self._restored = False

    # Learning.

    def _ready(self) -> bool:
        return self._recurrence is None or bool(self._draws.ready())

    @property
    def _rows_per_batch(self) -> int:
        return super()._rows_per_batch * (1 if self._recurrence is None else self._recurrence.length)

    # Resume.

    def state_arrays(self) -> dict[str, Array]:
        """As of `SAC`, and the policy's states, for a checkpoint to resume from."""
        if self._recurrence is None:
            return super().state_arrays()
        pairs = zip(self._recurrence.names, self._now, strict=True)
        return super().state_arrays() | {name: self.arrays.get(state) for name, state in pairs}

    def restore_state(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """The inverse of `state_arrays` and `state_values`."""
        super().restore_state(arrays, values)
        if self._recurrence is not None:
            own = [torch.from_numpy(np.array(arrays[name])) for name in self._recurrence.names]
            self._before = self._now = [each.to(old.device) for each, old in zip(own, self._now, strict=True)]
            self._restored = not self.training
