"""The recurrences of RNN (tanh), GRU and LSTM layers over whole sequences, forward and backward, written out.

S steps, B sequences, I inputs, H units, G gates. With sigma the logistic function, x the input and h the output before,

    rnn   h' = tanh(a),                                       a = x U + b + h W + d
    gru   r, z = sigma(a_r), sigma(a_z), n = tanh(x U_n + b_n + r * (h W_n + d_n)),   h' = (1 - z) n + z h
    lstm  i, f, o = sigma(a_i), sigma(a_f), sigma(a_o), g = tanh(a_g),  c' = f c + i g,   h' = o tanh(c')

as in torch.nn.RNN, GRU and LSTM. A layer has U (I, G H), W (H, G H), b and d (G H), which are torch's `weight_ih`,
`weight_hh`, transposed, `bias_ih` and `bias_hh`; the gates stand in torch's order: r z n, and i f g o. The state of a
layer is h (B, H), and for an LSTM h and c side by side (B, 2 H).

The inputs' products of all steps are one matrix product, and so are the gradients of all weights: only what depends on
the step before is computed step by step, in few operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from offbeat.algorithms.torch.products import fast_product


class LayerWeights(NamedTuple):
    """U (I, G H), W (H, G H), b and d (G H)."""

    input_weight: Tensor
    state_weight: Tensor
    input_bias: Tensor
    state_bias: Tensor


@dataclass(frozen=True)
class Restarts:
    """Where sequences begin anew: broken (S, B, 1) bool, and the state to begin with there (S, B, P).

    at: for each step, whether any sequence is broken there.
    """

    broken: Tensor
    start: Tensor
    at: list[bool]

    def state(self, step: int, after: Tensor) -> Tensor:
        """The state (B, P) that a step begins with. after: the state after the step before."""
        return torch.where(self.broken[step], self.start[step], after) if self.at[step] else after

    def before(self, states: Tensor) -> Tensor:
        """The states that all steps began with (S, B, P). states (S + 1, B, P): the first one, and that after each."""
        return torch.where(self.broken, self.start, states[:-1]) if any(self.at) else states[:-1]


class LayerPass(NamedTuple):
    """One layer over sequences: inputs (S, B, I), and states (S + 1, B, P) of which only the first is given."""

    inputs: Tensor
    states: Tensor
    restarts: Restarts
    weights: LayerWeights


Saved = tuple[Tensor, ...]
"""What a forward pass keeps for the backward pass, beside the states."""
Gradients = tuple[Tensor, LayerWeights]
"""At the inputs' products x U + b (S, B, G H), and at the weights."""
Forward = Callable[[LayerPass], Saved]
"""Computes the states, and returns what it saves."""
Backward = Callable[[LayerPass, Saved, Tensor, Tensor | None], Gradients]
"""(pass, saved, gradient (S, B, H) at h', which is overwritten, and that at c' (S, B, H) or None) -> gradients."""


def _matrix(tensor: Tensor) -> Tensor:
    """(S, B, n) -> (S B, n), without a copy where memory allows it."""
    return tensor.flatten(0, 1)


def _weight_gradients(inputs: Tensor, hidden: Tensor, at_gates: Tensor) -> LayerWeights:
    """From the gradient (S, B, G H) at x U + b + h W + d."""
    given = _matrix(at_gates)
    bias = given.sum(0)
    return LayerWeights(fast_product(_matrix(inputs).T, given), fast_product(_matrix(hidden).T, given), bias, bias)


def _products(inputs: Tensor, weights: LayerWeights) -> Tensor:
    """x U + b + d (S, B, G H)."""
    bias = weights.input_bias + weights.state_bias
    return fast_product(_matrix(inputs), weights.input_weight).add_(bias).unflatten(0, inputs.shape[:2])


def _pass_back(step: int, restarts: Restarts, into: Tensor, from_gates: Tensor, transposed: Tensor) -> None:
    """Adds to the gradient (B, H) at the output before what comes through the gates (B, G H), unless begun anew."""
    through = fast_product(from_gates, transposed)
    into.add_(through.masked_fill_(restarts.broken[step], 0.0) if restarts.at[step] else through)


def _rnn(layer: LayerPass) -> Saved:
    inputs, states, restarts, weights = layer
    views = states.unbind()
    for step, each in enumerate(_products(inputs, weights).unbind()):
        product = fast_product(restarts.state(step, views[step]), weights.state_weight)
        torch.tanh(each.add_(product), out=views[step + 1])
    return ()


def _rnn_back(layer: LayerPass, saved: Saved, gradient: Tensor, at_memory: Tensor | None) -> Gradients:
    inputs, states, restarts, weights = layer
    transposed, at_output, after = weights.state_weight.T, gradient.unbind(), states[1:].unbind()
    at_gates = torch.empty_like(gradient)
    for step in range(len(inputs) - 1, -1, -1):
        each = torch.ops.aten.tanh_backward.grad_input(at_output[step], after[step], grad_input=at_gates[step])
        if step:
            _pass_back(step, restarts, at_output[step - 1], each, transposed)
    return at_gates, _weight_gradients(inputs, restarts.before(states), at_gates)


def _gru(layer: LayerPass) -> Saved:
    """Saves r, z and h W_n + d_n side by side (S, B, 3 H), and n (S, B, H)."""
    inputs, states, restarts, weights = layer
    size, views = states.shape[2], states.unbind()
    both = 2 * size
    gates = fast_product(_matrix(inputs), weights.input_weight).unflatten(0, inputs.shape[:2])
    new = gates[..., both:] + weights.input_bias[both:]
    gates[..., both:] = 0.0
    gates += torch.cat((weights.input_bias[:both] + weights.state_bias[:both], weights.state_bias[both:]))
    parts = zip(gates.unbind(), gates[..., :both].unbind(), *_unbound(gates, size), new.unbind(), strict=True)
    for step, (each, sigmoids, reset, keep, of_state, n) in enumerate(parts):
        hidden = restarts.state(step, views[step])
        each.add_(fast_product(hidden, weights.state_weight))
        sigmoids.sigmoid_()
        torch.lerp(n.addcmul_(reset, of_state).tanh_(), hidden, keep, out=views[step + 1])
    return gates, new


def _gru_back(layer: LayerPass, saved: Saved, gradient: Tensor, at_memory: Tensor | None) -> Gradients:
    inputs, states, restarts, weights = layer
    gates, new = saved
    size, before = new.shape[2], restarts.before(states)
    reset, keep, of_state = gates.split(size, 2)
    # Each gate's gradient is that at h' times a factor, which does not depend on later steps.
    factors = torch.empty_like(gates).unflatten(2, (3, size))
    at_new = torch.ops.aten.tanh_backward(1.0 - keep, new)
    torch.ops.aten.sigmoid_backward.grad_input(at_new * of_state, reset, grad_input=factors[:, :, 0])
    torch.ops.aten.sigmoid_backward.grad_input(before - new, keep, grad_input=factors[:, :, 1])
    torch.mul(at_new, reset, out=factors[:, :, 2])
    transposed, at_output, kept = weights.state_weight.T, gradient.unbind(), keep.unbind()
    at_state = factors.flatten(2)
    rows = at_state.unbind()
    for step, factor in reversed(list(enumerate(factors.unbind()))):
        factor.mul_(at_output[step].unsqueeze(1))
        if step and restarts.at[step]:
            through = fast_product(rows[step], transposed).addcmul_(at_output[step], kept[step])
            at_output[step - 1].add_(through.masked_fill_(restarts.broken[step], 0.0))
        elif step:
            at_output[step - 1].addcmul_(at_output[step], kept[step]).add_(fast_product(rows[step], transposed))
    of_state_weight, state_bias = fast_product(_matrix(before).T, _matrix(at_state)), _matrix(at_state).sum(0)
    torch.mul(gradient, at_new, out=at_state[..., 2 * size :])  # at x U_n + b_n: what r multiplies is not part of it
    at_inputs = _matrix(at_state)
    input_bias = torch.cat((state_bias[: 2 * size], at_inputs[:, 2 * size :].sum(0)))
    return at_state, LayerWeights(fast_product(_matrix(inputs).T, at_inputs), of_state_weight, input_bias, state_bias)


def _lstm(layer: LayerPass) -> Saved:
    """Saves i, f, g, o side by side (S, B, 4 H), and tanh(c') (S, B, H)."""
    inputs, states, restarts, weights = layer
    size, views, gates = states.shape[2] // 2, states.unbind(), _products(inputs, weights)
    hidden, memory = (part.unbind() for part in states[1:].split(size, 2))
    squashed = inputs.new_empty(*inputs.shape[:2], size)
    parts = zip(gates.unbind(), gates[..., : 2 * size].unbind(), *_unbound(gates, size), squashed.unbind(), strict=True)
    for step, (each, sigmoids, enter, keep, new, leave, tanh) in enumerate(parts):
        before = restarts.state(step, views[step])
        each.add_(fast_product(before[:, :size], weights.state_weight))
        sigmoids.sigmoid_()
        new.tanh_()
        leave.sigmoid_()
        torch.mul(keep, before[:, size:], out=memory[step]).addcmul_(enter, new)
        torch.mul(leave, torch.tanh(memory[step], out=tanh), out=hidden[step])
    return gates, squashed


def _lstm_back(layer: LayerPass, saved: Saved, gradient: Tensor, at_memory: Tensor | None) -> Gradients:
    inputs, states, restarts, weights = layer
    gates, squashed = saved
    size, before = squashed.shape[2], restarts.before(states)
    enter, keep, new, leave = gates.split(size, 2)
    # The gradients of i, f and g are that at c' times a factor, that of o is that at h' times a factor.
    factors = torch.empty_like(gates).unflatten(2, (4, size))
    torch.ops.aten.sigmoid_backward.grad_input(new, enter, grad_input=factors[:, :, 0])
    torch.ops.aten.sigmoid_backward.grad_input(before[..., size:], keep, grad_input=factors[:, :, 1])
    torch.ops.aten.tanh_backward.grad_input(enter, new, grad_input=factors[:, :, 2])
    torch.ops.aten.sigmoid_backward.grad_input(squashed, leave, grad_input=factors[:, :, 3])
    through_tanh = torch.ops.aten.tanh_backward(leave, squashed).unbind()
    transposed, at_output, kept = weights.state_weight.T, gradient.unbind(), keep.unbind()
    at_gates, of_memory = factors.flatten(2), factors[:, :, :3].unbind()
    rows, of_output = at_gates.unbind(), factors[:, :, 3].unbind()
    carried: Tensor | None = None
    for step in range(len(inputs) - 1, -1, -1):
        at_c = torch.mul(at_output[step], through_tanh[step])
        if carried is not None:
            at_c.add_(carried)
        if at_memory is not None:
            at_c.add_(at_memory[step])
        of_memory[step].mul_(at_c.unsqueeze(1))
        of_output[step].mul_(at_output[step])
        if step:
            _pass_back(step, restarts, at_output[step - 1], rows[step], transposed)
            carried = at_c.mul_(kept[step])
            if restarts.at[step]:
                carried.masked_fill_(restarts.broken[step], 0.0)
    return at_gates, _weight_gradients(inputs, before[..., :size], at_gates)


def _unbound(gates: Tensor, size: int) -> list[tuple[Tensor, ...]]:
    """Each gate's steps."""
    return [gate.unbind() for gate in gates.split(size, 2)]


class Cell(NamedTuple):
    """gates: G. memory: P = memory * H numbers are the state of a layer."""

    gates: int
    memory: int
    forward: Forward
    backward: Backward


CELLS: dict[str, Cell] = {
    "rnn": Cell(1, 1, _rnn, _rnn_back),
    "gru": Cell(3, 1, _gru, _gru_back),
    "lstm": Cell(4, 2, _lstm, _lstm_back),
}
