"""`Model`: the class that a user's policies and critics are made of, together with a mixin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from offbeat.compat.skrl.framework import config
from offbeat.compat.skrl.utils.spaces.torch import (
    compute_space_limits,
    compute_space_size,
    flatten_tensorized_space,
    sample_space,
)
from offbeat.errors import SpaceError, UsageError

Inputs = dict[str, Any]
"""`observations`, `states` (None without a state space), and `taken_actions` for critics: tensors (batch, size)."""
Output = tuple[Tensor, dict[str, Any]]


class Model(nn.Module):
    """A module with spaces. Place a mixin before it: `class Policy(GaussianMixin, Model)`, and write `compute`."""

    def __init__(
        self,
        *,
        observation_space: gymnasium.Space | None = None,
        state_space: gymnasium.Space | None = None,
        action_space: gymnasium.Space | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.device = config.torch.parse_device(device)
        self.observation_space, self.state_space, self.action_space = observation_space, state_space, action_space
        self.num_observations = compute_space_size(observation_space)
        self.num_states = compute_space_size(state_space)
        self.num_actions = compute_space_size(action_space)

    def compute(self, inputs: Inputs, role: str = "") -> Output:
        """The network's output, to be written in a subclass. For a Gaussian policy: means and {"log_std": ...}."""
        raise NotImplementedError(
            f"{type(self).__name__} has no method compute(inputs, role); write one that returns (output, dictionary)"
        )

    def act(self, inputs: Inputs, *, role: str = "") -> Output:
        """Actions or values, and a dictionary; a mixin provides it."""
        raise NotImplementedError(
            f"{type(self).__name__} has no method act: place a mixin before Model: class Policy(GaussianMixin, Model)"
        )

    def forward(self, inputs: Inputs, *, role: str = "") -> Output:
        return self.act(inputs, role=role)

    def random_act(self, inputs: Inputs, *, role: str = "") -> Output:
        """Uniform actions within the limits of the action space, one for each observation, drawn from torch."""
        if not isinstance(self.action_space, gymnasium.spaces.Box):
            raise SpaceError(f"random_act: the action space {self.action_space} is not a Box; use a Box space")
        low, high = compute_space_limits(self.action_space, device=self.device)
        assert low is not None
        assert high is not None
        count = len(inputs["observations"])
        if low.isinf().any() or high.isinf().any():  # Gymnasium has a rule for each kind of unbounded interval
            drawn = sample_space(self.action_space, batch_size=count, backend="native", device=self.device)
            return drawn.reshape(count, -1), {}
        return low + (high - low) * torch.rand(count, len(low), device=self.device), {}

    def init_state_dict(self, inputs: Inputs = {}, *, role: str = "") -> None:  # noqa: B006 - the documented default
        """Initialises lazy modules by one call of `compute`; by default with random values of the spaces."""
        if not inputs:
            own = {
                "observations": self.observation_space,
                "states": self.state_space,
                "taken_actions": self.action_space,
            }
            inputs = {
                name: flatten_tensorized_space(sample_space(space, backend="native", device=self.device))
                for name, space in own.items()
            }
        self.to(device=self.device)
        self.compute(inputs, role)

    def init_parameters(self, method_name: str = "normal_", *args: Any, **kwargs: Any) -> None:
        """Initialises all parameters by a function of torch.nn.init, such as normal_."""
        _initialise(self.parameters(), method_name, args, kwargs)

    def init_weights(self, method_name: str = "orthogonal_", *args: Any, **kwargs: Any) -> None:
        """Initialises the weights of all linear layers by a function of torch.nn.init."""
        _initialise((layer.weight for layer in self._linear_layers()), method_name, args, kwargs)

    def init_biases(self, method_name: str = "constant_", *args: Any, **kwargs: Any) -> None:
        """Initialises the biases of all linear layers by a function of torch.nn.init."""
        _initialise((layer.bias for layer in self._linear_layers()), method_name, args, kwargs)

    def _linear_layers(self) -> list[nn.Linear]:
        return [module for module in self.modules() if isinstance(module, nn.Linear)]

    def get_specification(self) -> dict[str, Any]:
        """Empty. Recurrent models override it: {"rnn": {"sequence_length": L, "sizes": [...]}}.

        Each size (layers, num_envs, hidden) is that of a state, which `compute` gets in inputs["rnn"] and returns in
        outputs["rnn"]; SAC_RNN uses them.
        """
        return {}

    def enable_training_mode(self, enabled: bool = True) -> None:
        """Training (True) or evaluation mode, as nn.Module.train."""
        self.train(enabled)

    def save(self, path: str, *, state_dict: dict[str, Any] | None = None) -> None:
        """Saves the parameters, or another state dictionary, as a .pt file."""
        values = self.state_dict() if state_dict is None else state_dict
        torch.save({name: each.clone() if isinstance(each, Tensor) else each for name, each in values.items()}, path)

    def load(self, path: str) -> None:
        """Loads parameters from a .pt file, onto the model's device, and goes to evaluation mode."""
        self.load_state_dict(torch.load(path, map_location=self.device, weights_only=True))
        self.eval()

    def freeze_parameters(self, freeze: bool = True) -> None:
        """Excludes all parameters from autograd (True), or includes them again."""
        for parameter in self.parameters():
            parameter.requires_grad = not freeze

    @torch.no_grad()
    def update_parameters(self, model: nn.Module, *, polyak: float = 1.0) -> None:
        """Moves all parameters to those of another model by a share of the difference; 1 copies them."""
        for mine, theirs in zip(self.parameters(), model.parameters(), strict=True):
            if polyak == 1:
                mine.data.copy_(theirs.data)
            else:
                mine.data.lerp_(theirs.data, polyak)


def _initialise(tensors: Iterable[Tensor], name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    method: Callable[..., Any] | None = getattr(nn.init, name, None)
    if method is None or not name.endswith("_"):
        raise UsageError(
            f"method_name={name!r} is not a function of torch.nn.init; use one such as normal_ or uniform_"
        )
    for tensor in tensors:
        method(tensor, *args, **options)
