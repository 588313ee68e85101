"""A multi-layer perceptron."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


class Nonlinearity(nn.Module):
    """A function, module or module class, as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function() if isinstance(function, type) else copy.deepcopy(function)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.function(x)
        return out


class MLPModule(nn.Module):
    """Linear layers with a nonlinearity between them, and optionally after the last: (B, input_dim) to (B, output_dim).

    hidden_nonlinearity, output_nonlinearity: a function, module or module class; None for none. *_w_init, *_b_init:
    fill weights and biases in place. layer_normalization: layer norm before each hidden layer.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        hidden_sizes: Sequence[int],
        hidden_nonlinearity: Any = torch.relu,
        hidden_w_init: Callable[[Tensor], Any] = nn.init.xavier_normal_,
        hidden_b_init: Callable[[Tensor], Any] = nn.init.zeros_,
        output_nonlinearity: Any = None,
        output_w_init: Callable[[Tensor], Any] = nn.init.xavier_normal_,
        output_b_init: Callable[[Tensor], Any] = nn.init.zeros_,
        layer_normalization: bool = False,
    ) -> None:
        super().__init__()
        self.output_dim = output_dim
        sizes: list[int] = [input_dim, *hidden_sizes]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.LayerNorm(before)] if layer_normalization else []
            layers += [_linear(before, after, hidden_w_init, hidden_b_init)]
            layers += [Nonlinearity(hidden_nonlinearity)] if hidden_nonlinearity is not None else []
        layers += [_linear(sizes[-1], output_dim, output_w_init, output_b_init)]
        layers += [Nonlinearity(output_nonlinearity)] if output_nonlinearity is not None else []
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def _linear(before: int, after: int, weight: Callable[[Tensor], Any], bias: Callable[[Tensor], Any]) -> Any:
    layer = nn.Linear(before, after)
    weight(layer.weight)
    bias(layer.bias)
    return layer
