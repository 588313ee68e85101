"""Networks with a memory: a recurrent trunk over sequences of observations, and an MLP over its features.

Algorithms pass packed observations through unchanged; `packing` says what their columns are. The output has one row for
each step that is learned from, by time and then by sequence (row t B + b); the first `burn_in` steps only bring the
state up to date, without gradient.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.algorithms.configs.groups import recurrence_of
from offbeat.algorithms.packing import Packing
from offbeat.algorithms.torch.networks import WithLogStd, short_name
from offbeat.algorithms.torch.precision import full_precision
from offbeat.algorithms.torch.recurrent import Recurrent
from offbeat.errors import UsageError, describe
from offbeat.references import resolve
from offbeat.types import EnvSpec


class Trunk(Protocol):
    """What `Recurrent` is, and a user's module behind `UserRecurrent`. size: H. state_size: C."""

    size: int
    state_size: int

    def __call__(self, x: Tensor, state: Tensor, broken: Tensor, start: Tensor) -> tuple[Tensor, Tensor]: ...

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]: ...

    def initial_state(self, rows: int) -> Tensor: ...


class WithMemory(nn.Module):
    """A recurrent trunk over packed observations, then a network of its features (L B, H) and of the other inputs.

    stored: whether the state to begin with is that of the packed observations; otherwise it is the trunk's initial one.
    A packed observation without time, (R, O + 1 + C), is one step of R sequences. No gradient goes to observations. The
    trunk is not part of mixed precision: rounding errors of its state would add up over the steps.
    """

    def __init__(self, trunk: Recurrent | UserRecurrent, network: nn.Module, packing: Packing, stored: bool) -> None:
        super().__init__()
        self.trunk, self.mlp, self.packing, self._stored = trunk, network, packing, stored and packing.carry > 0

    def forward(self, obs: Tensor, *parts: Tensor) -> Tensor:
        with full_precision(obs.device):
            features = self.features(obs.detach())
        out: Tensor = self.mlp(features, *parts)
        return out

    def features(self, packed: Tensor) -> Tensor:
        """(S, B, ...) -> (L B, H): at the observations, or at those that come after them."""
        burn_in = self.packing.burn_in if packed.ndim == 3 else 0
        steps = packed if packed.ndim == 3 else packed.unsqueeze(0)
        x, flag, start, following, offset = self._columns(steps)
        trunk, broken, state = cast(Trunk, self.trunk), flag.squeeze(2) > 0.5, self.trunk.initial_state(steps.shape[1])
        if not self._stored:
            start = state.expand(len(steps), *state.shape)
        if burn_in:
            with torch.no_grad():
                state = trunk(x[:burn_in], state, broken[:burn_in], start[:burn_in])[1][-1]
        features, states = trunk(x[burn_in:], state, broken[burn_in:], start[burn_in:])
        if not following.shape[2]:
            return features.flatten(0, 1)
        if self.packing.ahead:
            learned = slice(burn_in, len(steps) - self.packing.ahead)
            following, rows = following[learned], offset[learned].long()
            rows = rows + torch.arange(len(rows), device=rows.device).view(-1, 1, 1)
            states = states.gather(0, rows.expand(-1, -1, states.shape[2]))
        else:
            following = following[burn_in:]
        return trunk.step(following.flatten(0, 1), states.flatten(0, 1))[0]

    def _columns(self, steps: Tensor) -> tuple[Tensor, ...]:
        """Observation, flag, state to begin with; and of a next observation what to bootstrap from, and its offset."""
        return steps.split(self.packing.sizes(steps.shape[2]), 2)


class UserRecurrent(nn.Module):
    """A user's recurrent module as a trunk: `initial_state(batch)` and `forward(x, state, mask) -> features, state`.

    It is called for one step of a batch: x (B, O), state (B, C), and mask (B, 1), which is 0 where the state is the
    initial one, as at the first step of an episode, and 1 elsewhere. Returns features (B, H) and the next state (B, C).
    """

    def __init__(self, own: Any, observations: int) -> None:
        super().__init__()
        self.own = own
        self.state_size, self.size = _try_module(own, observations)

    def initial_state(self, rows: int) -> Tensor:
        state: Tensor = self.own.initial_state(rows)
        like = next(self.own.parameters(), state)
        return state.to(like.device, like.dtype)

    def forward(self, x: Tensor, state: Tensor, broken: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        initial, features, states = self.initial_state(x.shape[1]), [], []
        for each, anew, begin in zip(x, broken, start, strict=True):
            state = torch.where(anew.unsqueeze(1), begin, state)
            out, state = self._step(each, state, initial)
            features.append(out)
            states.append(state)
        return torch.stack(features), torch.stack(states)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self._step(x, state, self.initial_state(len(x)))

    def _step(self, x: Tensor, state: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
        out, after = self.own(x, state, (state != initial).any(1, keepdim=True).to(x.dtype))
        return out, after


RULE = "initial_state(batch) must return a tensor (batch, C), and forward(x, state, mask), for x (batch, {}), state "
RULE += "(batch, C) and mask (batch, 1), features (batch, H) and the next state (batch, C)"


def _try_module(own: Any, observations: int) -> tuple[int, int]:
    """The sizes C and H of a user's module, found with two rows of zeros; UsageError if it does not keep the rule."""
    rule = RULE.format(observations)
    if not isinstance(own, nn.Module) or not hasattr(own, "initial_state"):
        raise UsageError(f"network: {type(own).__name__} is not a recurrent nn.Module with initial_state: {rule}")
    training = own.training
    own.eval()
    try:
        with torch.no_grad():
            state = cast(Any, own).initial_state(2)
            _check_state("initial_state(2)", state, None, rule)
            if tuple(one := cast(Any, own).initial_state(1).shape) != (1, state.shape[1]):
                raise UsageError(f"network: initial_state(1) gave a state {tuple(one)} for 1 row; {rule}")
            like = next(own.parameters(), state)
            x = torch.zeros(2, observations, dtype=like.dtype, device=like.device)
            found: Any = own(x, state.to(like.dtype), torch.zeros(2, 1, dtype=like.dtype, device=like.device))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"network: two rows of zeros raised {describe(error)}; {rule}") from error
    own.train(training)
    if not isinstance(found, tuple) or len(found) != 2:
        raise UsageError(f"network: forward returned a {type(found).__name__}, not a pair; {rule}")
    features, after = found
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        raise UsageError(f"network: forward gave features {_shape(features)} for 2 rows; {rule}")
    _check_state("forward", after, tuple(state.shape), rule)
    return state.shape[1], features.shape[1]


def _check_state(who: str, state: Any, wanted: tuple[int, ...] | None, rule: str) -> None:
    fits = isinstance(state, Tensor) and state.ndim == 2 and len(state) == 2 and state.shape[1] > 0
    if not fits or (wanted is not None and tuple(state.shape) != wanted):
        must = "" if wanted is None else f", but the state before was {wanted}"
        raise UsageError(
            f"network: {who} gave a state {_shape(state)} for 2 rows{must}; {rule}. Concatenate several parts (of "
            "layers, or h and c) along the last axis"
        )


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else f"of type {type(value).__name__}"


def make_trunk(config: Any, spec: EnvSpec, rng: np.random.Generator) -> Recurrent | UserRecurrent | None:
    """The trunk that the settings ask for, over observations; None for network=mlp."""
    recurrence = recurrence_of(config)
    if not recurrence.recurrent:
        return None
    if recurrence.own:
        return UserRecurrent(resolve(recurrence.network, "network")(spec), spec.observation_size)
    size, layers = recurrence.recurrent_size, recurrence.recurrent_layers
    return Recurrent(cast(str, recurrence.network), spec.observation_size, size, layers, rng)


def with_memory(
    config: Any, spec: EnvSpec, trunk: Recurrent | UserRecurrent | None, network: nn.Module, *, acts: bool
) -> nn.Module:
    """The network on top of its trunk, if there is one. acts: whether its state is the one that is stored."""
    if trunk is None:
        return network
    return WithMemory(trunk, network, Packing.of(config, spec, trunk.state_size), stored=acts)


def above(module: nn.Module) -> nn.Module:
    """The network above the trunk; the module itself where it has none."""
    return module.mlp if isinstance(module, WithMemory) else module


def observation_width(module: nn.Module, spec: EnvSpec) -> int:
    """Columns of the observations that a network takes: packed ones where it has a trunk."""
    inner = module.mlp if isinstance(module, WithLogStd) else module
    return inner.packing.width if isinstance(inner, WithMemory) else spec.observation_size


def first_observations(module: nn.Module, obs: Tensor) -> Tensor:
    """Observations (R, O) as a network takes them; for one with a trunk, those of first steps of episodes."""
    inner = module.mlp if isinstance(module, WithLogStd) else module
    if not isinstance(inner, WithMemory):
        return obs
    start = inner.trunk.initial_state(len(obs))[:, : inner.packing.carry]
    return torch.cat((obs, torch.ones_like(obs[:, :1]), start), 1)


def state_size(module: nn.Module) -> int:
    """Numbers in the recurrent state of a network; 0 where it has no trunk."""
    inner = module.mlp if isinstance(module, WithLogStd) else module
    return inner.trunk.state_size if isinstance(inner, WithMemory) else 0


def memory_name(name: str) -> str:
    """A parameter as `Weights` names it: `trunk.layers.0.input_weight` is `trunk/0/input_weight`.

    The names of a user's own module stay as they are after `trunk/`, and those above the trunk are as without it.
    """
    name = name.removeprefix("mlp.")
    if name.startswith("trunk.own."):
        return f"trunk/{name.removeprefix('trunk.own.')}"
    return f"trunk/{short_name(name.removeprefix('trunk.'))}" if name.startswith("trunk.") else short_name(name)
