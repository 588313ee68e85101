"""torch's Adam as a face of ours: for learning-rate schedulers, saved files and a user's own code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from offbeat.algorithms.torch.differentiate import Gradient, Network, Tape, views
from offbeat.algorithms.torch.optimise import Adam, Optimiser
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


class ScaledAdam:
    """Our `Optimiser` in mixed precision: torch's scaler leaves a step out where gradients are not finite."""

    def __init__(self, optimizer: FlatAdam, scaler: torch.amp.GradScaler) -> None:
        self._optimizer, self._scaler = optimizer, scaler

    def step(self, flat: Tensor, gradient: Tensor, rate: float) -> None:
        if gradient is not self._optimizer._gradient:  # clipped
            self._optimizer._gradient.copy_(gradient)
        self._scaler.step(self._optimizer)

    def named(self) -> Iterator[tuple[str, Tensor]]:
        return self._optimizer._adam.named()


class ScaledNetwork(Network):
    """A network whose gradients are computed times the scaler's factor, and divided by it again.

    Small gradients would otherwise vanish in half precision. optimizer: set before the first gradient.
    """

    scaler: torch.amp.GradScaler
    optimizer: FlatAdam

    def backward(self, tape: Tape, gradient: Tensor, add: bool = False) -> None:
        Network.backward(self, tape, self.scaler.scale(gradient), add)
        self.scaler.unscale_(self.optimizer)

    def forward_backward(self, parts: Sequence[Tensor], gradient: Gradient, add: bool = False) -> Tensor:
        out = Network.forward_backward(self, parts, lambda values: self.scaler.scale(gradient(values)), add)
        self.scaler.unscale_(self.optimizer)
        return out


def make_optimizers(
    state: SACState, parameters: Sequence[Sequence[Tensor]], rates: Sequence[float], scaler: torch.amp.GradScaler
) -> list[FlatAdam]:
    """Optimizers of policy, critics and entropy coefficient over the state's own; with the scaler, where it is enabled.

    parameters: of the user's modules, and the coefficient's logarithm.
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
    if scaler.is_enabled():
        state.actor_optimiser, state.critic_optimiser = (ScaledAdam(each, scaler) for each in made[:2])
        for network, optimizer in zip((state.actor, state.critic), made[:2], strict=True):
            assert isinstance(network, ScaledNetwork)
            network.scaler, network.optimizer = scaler, optimizer
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
