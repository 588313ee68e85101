"""The recurrent trunk: layers of RNN (tanh), GRU or LSTM units over sequences, with explicit state in and out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from offbeat.algorithms.torch.cells import CELLS, Cell, LayerPass, LayerWeights, Restarts
from offbeat.algorithms.torch.networks import BYTES_PER_WEIGHT
from offbeat.algorithms.torch.products import fast_product
from offbeat.memory import check_fits


class RecurrentLayer(nn.Module):
    """The weights of one layer, as `cells` describes them; NumPy draws the first ones.

    Uniform in +-1/sqrt(I) for the inputs and +-1/sqrt(H) for the rest. With torch's own +-1/sqrt(H) for the inputs, a
    few of them hardly move a large layer, and small differences between their steps are found later.
    """

    def __init__(self, cell: Cell, inputs: int, size: int, rng: np.random.Generator) -> None:
        super().__init__()
        width = cell.gates * size
        shapes = LayerWeights((inputs, width), (size, width), (width,), (width,))  # type: ignore[arg-type]
        for name, shape in shapes._asdict().items():
            bound = 1.0 / math.sqrt(inputs if name == "input_weight" else size)
            setattr(self, name, nn.Parameter(torch.from_numpy(rng.uniform(-bound, bound, shape))))

    def weights(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, name) for name in LayerWeights._fields)


class Recurrent(nn.Module):
    """`layers` layers of `size` units of a kind (rnn, gru, lstm), each on top of the one before.

    state_size: C, the length of the state: h of layer 0 (for LSTM h, then c), then that of layer 1, and so on.
    """

    def __init__(self, kind: str, inputs: int, size: int, layers: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.kind, self.inputs, self.size, self._cell = kind, inputs, size, CELLS[kind]
        self.state_size = layers * self._cell.memory * size
        widths = [inputs if layer == 0 else size for layer in range(layers)]
        count = self._cell.gates * size * sum(width + size for width in widths)
        check_fits(f"{layers} {kind} layers of {size} units ({count:,} weights)", count * BYTES_PER_WEIGHT)
        self.layers = nn.ModuleList(RecurrentLayer(self._cell, width, size, rng) for width in widths)

    def forward(self, x: Tensor, state: Tensor, broken: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """x (S, B, I), state (B, C) -> features (S, B, H), and the states after each step (S, B, C).

        broken (S, B) bool: steps before which a sequence's state is replaced by that of `start` (S, B, C). States get
        no gradient, and neither does anything before a broken step.
        """
        weights = [each for layer in self.layers for each in layer.weights()]  # type: ignore[operator]
        features, states = _Sequences.apply(self._cell, x, state, broken, start, *weights)
        return features, states

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of many rows at once: x (R, I), state (R, C) -> features (R, H), states (R, C)."""
        broken = torch.zeros((1, len(x)), dtype=torch.bool, device=x.device)
        features, states = self(x.unsqueeze(0), state, broken, state.unsqueeze(0))
        return features[0], states[0]

    def initial_state(self, rows: int) -> Tensor:
        """Zeros (rows, C)."""
        weight: Any = self.layers[0].input_weight
        return weight.new_zeros(rows, self.state_size)


class _Sequences(torch.autograd.Function):
    """`Recurrent.forward`, with the gradient of each layer written out."""

    @staticmethod
    def forward(
        ctx: Any, cell: Cell, x: Tensor, state: Tensor, broken: Tensor, start: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        layers = _by_layer(weights)
        size = layers[0].state_weight.shape[0]
        states = x.new_empty(len(x) + 1, *state.shape)
        states[0] = state
        at = broken.any(1).tolist() if x.device.type == "cpu" else [True] * len(x)  # elsewhere asking would wait
        saved, inputs = [], x
        for layer, each in enumerate(layers):
            part = _part(cell, size, layer)
            restarts = Restarts(broken.unsqueeze(2), start[..., part], at)
            saved.append(cell.forward(LayerPass(inputs, states[..., part], restarts, each)))
            inputs = states[1:, :, part.start : part.start + size]
        ctx.save_for_backward(x, states, broken, start, *weights, *(each for kept in saved for each in kept))
        ctx.cell, ctx.at, ctx.count, ctx.kept = cell, at, len(layers), len(saved[0])
        ctx.set_materialize_grads(False)
        return inputs, states[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, at_features: Tensor | None, at_states: Tensor | None) -> tuple[Tensor | None, ...]:
        x, states, broken, start, *others = ctx.saved_tensors
        cell, count = ctx.cell, ctx.count
        layers, kept = _by_layer(others[: 4 * count]), others[4 * count :]
        size = layers[0].state_weight.shape[0]
        gradient = (
            x.new_zeros(*x.shape[:2], size)
            if at_features is None
            else at_features.clone(memory_format=torch.contiguous_format)
        )
        found: list[LayerWeights] = []
        for layer in range(count - 1, -1, -1):
            part = _part(cell, size, layer)
            h, c = slice(part.start, part.start + size), slice(part.start + size, part.stop)
            at_memory = None
            if at_states is not None:
                gradient += at_states[..., h]
                at_memory = at_states[..., c] if cell.memory == 2 else None
            inputs = x if layer == 0 else states[1:, :, part.start - cell.memory * size : part.start][..., :size]
            restarts, saved = Restarts(broken.unsqueeze(2), start[..., part], ctx.at), kept[ctx.kept * layer :]
            made = LayerPass(inputs, states[..., part], restarts, layers[layer])
            at_inputs, of_weights = cell.backward(made, tuple(saved[: ctx.kept]), gradient, at_memory)
            found.insert(0, of_weights)
            if layer or ctx.needs_input_grad[1]:
                into = fast_product(at_inputs.flatten(0, 1), layers[layer].input_weight.T)
                gradient = into.view(*x.shape[:2], -1)
        at_x = gradient if ctx.needs_input_grad[1] else None
        return None, at_x, None, None, None, *(each for weights in found for each in weights)


def _by_layer(weights: Any) -> list[LayerWeights]:
    return [LayerWeights(*weights[start : start + 4]) for start in range(0, len(weights), 4)]


def _part(cell: Cell, size: int, layer: int) -> slice:
    """Where the state of a layer stands in the whole state."""
    width = cell.memory * size
    return slice(layer * width, (layer + 1) * width)
