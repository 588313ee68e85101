"""Modules of the torch algorithms: an MLP (one, or E stacked as a batch of matrices), critics, and a user's own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from offbeat.algorithms.configs.groups import Reference
from offbeat.errors import UsageError
from offbeat.memory import check_fits
from offbeat.pure_networks import is_pure
from offbeat.references import resolve
from offbeat.types import EnvSpec

BYTES_PER_WEIGHT = 16
"""At least: the weight, its gradient and two moments of the optimiser, of four bytes each."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "elu": functional.elu,
    "silu": functional.silu,
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "leaky_relu": functional.leaky_relu,
}


class Layer(nn.Module):
    """Weight (in, out) and bias (out), each with a leading E when stacked; optional dropout and layer norm after."""

    def __init__(
        self, size: tuple[int, int], members: int | None, norm: bool, rng: np.random.Generator, dropout: float = 0.0
    ) -> None:
        super().__init__()
        lead = () if members is None else (members,)
        bound = 1.0 / math.sqrt(size[0])
        self.weight = nn.Parameter(torch.from_numpy(rng.uniform(-bound, bound, (*lead, *size))))
        self.bias = nn.Parameter(torch.from_numpy(rng.uniform(-bound, bound, (*lead, size[1]))))
        self.norm = _Norm((*lead, size[1])) if norm else None
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.ndim == 2:
            x = torch.addmm(self.bias, x, self.weight)
        else:
            x = torch.baddbmm(self.bias.unsqueeze(1), x, self.weight)
        if self.dropout:
            x = functional.dropout(x, self.dropout, self.training)
        return x if self.norm is None else self.norm(x)


class _Norm(nn.Module):
    """Layer norm whose scale and offset are (out,), or (E, out) for stacked members."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(shape))
        self.offset = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.layer_norm(x, x.shape[-1:], eps=1e-5)
        if self.scale.ndim == 2:
            return x * self.scale.unsqueeze(1) + self.offset.unsqueeze(1)
        return x * self.scale + self.offset


class MLP(nn.Module):
    """Linear layers with an activation between them: (B, in) -> (B, out), or (E, B, in) -> (E, B, out) when stacked.

    First weights are uniform in +-1/sqrt(in). NumPy's `rng` draws them, so that all backends start with the same ones.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        activation: str,
        layer_norm: bool,
        rng: np.random.Generator,
        members: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        pairs, last = list(itertools.pairwise(sizes)), len(sizes) - 2
        count = (members or 1) * sum(math.prod(pair) for pair in pairs)
        check_fits(f"a network of {count:,} weights (layers {' '.join(map(str, sizes))})", count * BYTES_PER_WEIGHT)
        self.layers = nn.ModuleList(
            Layer(pair, members, layer_norm and index < last, rng, dropout if index < last else 0.0)
            for index, pair in enumerate(pairs)
        )
        self.activation, self.activation_name = ACTIVATIONS[activation], activation
        self.plain, self.members = not (layer_norm or dropout), members

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self.layers
        for layer in hidden:
            x = self.activation(layer(x))
        out: Tensor = last(x)
        return out


class StackedCritics(nn.Module):
    """E critics as one stacked MLP over observation, privileged state and action: -> (E, B).

    For Discrete actions they take no action and return the values of all: -> (E, B, choices). features: size of what
    they take in place of the observation.
    """

    def __init__(
        self, spec: EnvSpec, members: int, hidden: Sequence[int], features: int | None = None, **settings: Any
    ) -> None:
        super().__init__()
        self.members = members
        seen = (spec.observation_size if features is None else features) + spec.state_size
        self.scalar = spec.choices is None
        sizes = (seen + spec.action_size, *hidden, 1) if spec.choices is None else (seen, *hidden, spec.choices)
        self.mlp = MLP(sizes, members=members, **settings)

    def forward(self, *parts: Tensor) -> Tensor:
        x = torch.cat(parts, 1)
        out: Tensor = self.mlp(x.expand(self.members, *x.shape))
        return out.squeeze(2) if self.scalar else out


class Values(nn.Module):
    """The value V of states, from observation, or so many features of it, and privileged state: -> (B, 1)."""

    def __init__(self, spec: EnvSpec, hidden: Sequence[int], features: int | None = None, **settings: Any) -> None:
        super().__init__()
        seen = spec.observation_size if features is None else features
        self.mlp = MLP((seen + spec.state_size, *hidden, 1), **settings)

    def forward(self, *parts: Tensor) -> Tensor:
        out: Tensor = self.mlp(torch.cat(parts, 1))
        return out


class UserValues(nn.Module):
    """A user's module of state values, (obs[, privileged state]) -> (B,) or (B, 1): -> (B, 1)."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(self, obs: Tensor, state: Tensor) -> Tensor:
        value = self.own(obs, state) if state.shape[1] else self.own(obs)
        return _values(value, len(obs), 1)


class WithLogStd(nn.Module):
    """An actor of means, with the log standard deviation (A,) of its actions as a parameter of its own.

    The output is the actor's. In the network's flat vector the log standard deviation comes first.
    """

    def __init__(self, actor: nn.Module, log_std: Tensor) -> None:
        super().__init__()
        self.log_std = nn.Parameter(log_std)
        self.mlp = actor

    def forward(self, obs: Tensor) -> Tensor:
        out: Tensor = self.mlp(obs)
        return out


def make_orthogonal(mlp: MLP, rng: np.random.Generator, last: float) -> MLP:
    """Sets orthogonal weights, times sqrt 2, or times `last` in the last layer, and biases of 0."""
    for index, layer in enumerate(layer for layer in mlp.layers if isinstance(layer, Layer)):
        gain = last if index == len(mlp.layers) - 1 else math.sqrt(2.0)
        rows, columns = layer.weight.shape
        square, triangle = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        square = square * np.sign(np.diag(triangle))  # else signs would not be equally likely
        layer.weight.data = torch.from_numpy(gain * (square if rows >= columns else square.T)).contiguous()
        layer.bias.data = torch.zeros_like(layer.bias)
    return mlp


class UserCritics(nn.Module):
    """A user's E critic modules, each (obs, action[, privileged state]) -> (B,) or (B, 1).

    For Discrete actions: (obs[, privileged state]) -> (B, choices).
    """

    def __init__(self, modules: Sequence[nn.Module], choices: int | None = None) -> None:
        super().__init__()
        self.members, self.choices = nn.ModuleList(modules), choices

    def forward(self, obs: Tensor, state: Tensor, *action: Tensor) -> Tensor:
        inputs = (obs, *action, state) if state.shape[1] else (obs, *action)
        values = torch.stack([_values(member(*inputs), len(obs), self.choices or 1) for member in self.members])
        return values.squeeze(-1) if self.choices is None else values


def _values(found: Any, rows: int, each: int) -> Tensor:
    """What a user's critic returned, as (rows, each)."""
    if isinstance(found, Tensor) and found.numel() == rows * each:
        return found.reshape(rows, each)
    gave = tuple(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
    wanted = "one value per row" if each == 1 else f"{each} values per row"
    raise UsageError(f"your critic gave {gave} for a batch of {rows}; return {wanted}")


def own_module(reference: Reference, name: str, spec: EnvSpec) -> Any:
    """The module that the setting `name` makes for an environment."""
    made = resolve(reference, name)(spec)
    if isinstance(made, nn.Module):
        return made
    if is_pure(made):
        raise UsageError(
            f"your {name} is a network of JAX ({type(made).__name__}), which backend=torch cannot use: return a "
            "torch.nn.Module, or use backend=jax"
        )
    raise UsageError(f"your {name} is a {type(made).__name__}; return a torch.nn.Module")


class UserNetwork(nn.Module):
    """A user's module of observations: -> (B, n). Several outputs (mean and log_std) are concatenated."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(self, obs: Tensor) -> Tensor:
        out = self.own(obs)
        joined: Tensor = torch.cat(tuple(out), -1) if isinstance(out, tuple | list) else out
        return joined


class UserSampler(nn.Module):
    """A user's actor with its own `sample(obs, noise)`: -> (B, A + 1), action and log-probability concatenated."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        action, log_prob = self.own.sample(obs, noise)
        return torch.cat((action, log_prob.reshape(-1, 1)), 1)


class OwnSampler(nn.Module):
    """A user's policy that draws its actions itself: -> (B, A + 1), action and log-probability concatenated.

    own: its module, for the parameters. draw: observations (B, O) to actions (B, A) and log_prob (B,), in any units,
    with noise from torch.
    """

    def __init__(self, own: nn.Module, draw: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.own, self.draw = own, draw

    def forward(self, obs: Tensor) -> Tensor:
        action, log_prob = self.draw(obs)
        return torch.cat((action, log_prob.reshape(-1, 1)), 1)


def check_no_shared_parameters(**networks: nn.Module) -> None:
    """Raises UsageError where two networks share parameters, or two members of a user's critic do.

    Each network is one flat vector with an optimiser, so only one of them would train a shared parameter.
    """
    parts: dict[str, nn.Module] = {}
    for name, module in networks.items():
        members = enumerate(module.members) if isinstance(module, UserCritics) else ()
        parts |= {f"{name} {index}": member for index, member in members} or {name: module}
    owner: dict[int, str] = {}
    for name, module in parts.items():
        for parameter_name, parameter in module.named_parameters():
            other = owner.setdefault(id(parameter), name) if parameter.requires_grad else name
            if other != name:
                raise UsageError(
                    f"{other} and {name} share the parameter {user_name(parameter_name)}: each network has its own "
                    "loss and optimiser, so only one of them would train it; create it inside each function, or freeze "
                    "it with requires_grad_(False)"
                )


def user_name(name: str) -> str:
    """A parameter of a user's own module, as the user named it."""
    return name.removeprefix("mlp.").removeprefix("own.")


def short_name(name: str) -> str:
    """A parameter of our MLPs as `Weights` names it: `mlp.layers.0.norm.scale` is `0/norm/scale`."""
    return name.removeprefix("mlp.").removeprefix("layers.").replace(".", "/")
