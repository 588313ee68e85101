"""torch's Adam as a face of ours: for learning-rate schedulers, saved files and a user's own code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from offbeat.algorithms.torch.differentiate import views
from offbeat.algorithms.torch.optimise import Adam, Guarded, Optimiser
from offbeat.algorithms.torch.precision import all_finite
from offbeat.algorithms.torch.sac import SACState
from offbeat.errors import UsageError


class FlatAdam(torch.optim.Adam):
    """A torch optimizer over parameters that are views of one flat vector, whose state is that of our Adam.

    Moments are views of ours, so nothing is copied: `state_dict` is what torch's own Adam would give, and the rate that
    a scheduler sets in `param_groups` is the one that the next update uses. parameters: also those that are frozen.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, *, flat: Tensor, gradient: Tensor, adam: Optimiser
    ) -> None:
        assert isinstance(adam, Adam)
        everything = list(parameters)
        self._flat, self._gradient, self._adam = flat, gradient, adam
        self._learned = [each for each in everything if each.requires_grad]
        super().__init__(everything, lr=lr)
        self._opt_called = True  # our learner steps: schedulers need not warn that this object did not
        self._link()

    def _link(self) -> None:
        """Makes gradients and moments of the parameters views of the flat ones."""
        parts = (views(each, self._learned) for each in (self._gradient, self._adam.mean, self._adam.square))
        for parameter, gradient, mean, square in zip(self._learned, *parts, strict=True):
            parameter.grad = gradient
            self.state[parameter] = {"step": self._adam.steps, "exp_avg": mean, "exp_avg_sq": square}

    @property
    def rate(self) -> float:
        return float(self.param_groups[0]["lr"])

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._gradient.zero_()
        for parameter, gradient in zip(self._learned, views(self._gradient, self._learned), strict=True):
            parameter.grad = gradient

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step by the parameters' gradients, for a user's own update; the agent's update steps our Adam itself."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for parameter, gradient in zip(self._learned, views(self._gradient, self._learned), strict=True):
            if parameter.grad is None:
                gradient.zero_()
            elif parameter.grad.data_ptr() != gradient.data_ptr():
                gradient.copy_(parameter.grad)
        self._adam.step(self._flat, self._gradient, self.rate)
        return loss

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over the state of torch's Adam, also one that has made no step yet."""
        super().load_state_dict(dict(state_dict))
        loaded = [self.state.get(each, {}) for each in self._learned]
        with torch.no_grad():
            for name, flat in (("exp_avg", self._adam.mean), ("exp_avg_sq", self._adam.square)):
                for state, view in zip(loaded, views(flat, self._learned), strict=True):
                    view.copy_(state[name]) if state else view.zero_()
            self._adam.steps.fill_(float(loaded[0]["step"]) if loaded and loaded[0] else 0.0)
        self._link()


class AgentScaler:
    """Our scaler of gradients over torch's, which is the agent's: its scale changes once in each update, as in skrl.

    A user's own update may use torch's directly. skipped: steps left out since the last call of `finish_update`.
    """

    def __init__(self, own: torch.amp.GradScaler, device: torch.device) -> None:
        own._lazy_init_scale_growth_tracker(device)
        assert own._scale is not None
        assert own._growth_tracker is not None
        self._own, self.scale, self._growth, self.skipped = own, own._scale, own._growth_tracker, 0

    def accepts(self, gradients: Sequence[Tensor]) -> bool:
        """Whether the gradients of one step are finite."""
        finite = all_finite(gradients)
        self.skipped += not finite
        return finite

    def finish_update(self) -> int:
        """Halves the scale where a step was left out, or doubles it after many updates; returns the steps left out."""
        own, found, skipped = self._own, torch.full_like(self.scale, float(self.skipped > 0)), self.skipped
        factors = own.get_growth_factor(), own.get_backoff_factor(), own.get_growth_interval()
        torch._amp_update_scale_(self.scale, self._growth, found, *factors)
        self.skipped = 0
        return skipped


def make_optimizers(
    state: SACState, parameters: Sequence[Sequence[Tensor]], rates: Sequence[float], scaler: AgentScaler | None
) -> list[FlatAdam]:
    """Optimizers of policy, critics and entropy coefficient over the state's own.

    parameters: of the user's modules, and the coefficient's logarithm. scaler: leaves out steps in mixed precision.
    """
    coefficient = state.log_temperature
    parts = (
        (state.actor.flat, state.actor.gradient, state.actor_optimiser),
        (state.critic.flat, state.critic.gradient, state.critic_optimiser),
        (coefficient, torch.zeros_like(coefficient), state.temperature_optimiser),
    )
    made = [
        FlatAdam(own, rate, flat=flat, gradient=gradient, adam=adam)
        for own, rate, (flat, gradient, adam) in zip(parameters, rates, parts, strict=True)
    ]
    if scaler is not None:
        state.actor_optimiser, state.critic_optimiser, state.temperature_optimiser = (
            Guarded(adam, scaler) for _, _, adam in parts
        )
    return made


def make_schedulers(kinds: Any, optimizers: Sequence[FlatAdam], kwargs: Any) -> list[Any]:
    """A scheduler for each optimizer; None where there is none."""
    return [
        None if kind is None else _scheduler(kind, optimizer, own)
        for kind, optimizer, own in zip(kinds, optimizers, kwargs, strict=True)
    ]


def _scheduler(kind: Any, optimizer: FlatAdam, kwargs: dict[str, Any]) -> Any:
    if not callable(kind):
        raise UsageError(f"learning_rate_scheduler={kind!r} is not a class; use one of torch.optim.lr_scheduler")
    if isinstance(kind, type) and issubclass(kind, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise UsageError(
            "ReduceLROnPlateau needs a metric in each step, which SAC does not have; use another scheduler"
        )
    try:
        return kind(optimizer, **kwargs)
    except TypeError as error:
        name = getattr(kind, "__name__", kind)
        raise UsageError(f"{name} does not take learning_rate_scheduler_kwargs={kwargs!r}: {error}") from error
