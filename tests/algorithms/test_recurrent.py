"""The recurrent trunk against torch's own layers, against itself episode by episode, and against finite differences."""

import numpy as np
import pytest
import torch

from offbeat.algorithms.torch.products import FAST_FROM, fast_product
from offbeat.algorithms.torch.recurrent import Recurrent
from offbeat.errors import UsageError

KINDS = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}
PAIRS = [
    ("input_weight", "weight_ih"),
    ("state_weight", "weight_hh"),
    ("input_bias", "bias_ih"),
    ("state_bias", "bias_hh"),
]
TOLERANCE = {"rtol": 0, "atol": 1e-9}

every_kind = pytest.mark.parametrize("kind", KINDS)
every_depth = pytest.mark.parametrize("layers", [1, 2])


def trunk(kind, layers=1, inputs=3, size=5):
    return Recurrent(kind, inputs, size, layers, np.random.default_rng(1)).double()


def of_torch(ours):
    """torch's own module with the same weights."""
    theirs = KINDS[ours.kind](ours.inputs, ours.size, len(ours.layers)).double()
    with torch.no_grad():
        for index, layer in enumerate(ours.layers):
            for mine, its in PAIRS:
                getattr(theirs, f"{its}_l{index}").copy_(getattr(layer, mine).t())
    return theirs


def split_state(ours, state):
    """(B, C) as torch's module takes it: h (layers, B, H), or for LSTM (h, c)."""
    parts = state.view(len(state), len(ours.layers), -1, ours.size).permute(2, 1, 0, 3).contiguous()
    return tuple(parts) if ours.kind == "lstm" else parts[0]


def join_state(ours, state):
    parts = torch.stack(state if ours.kind == "lstm" else (state,))  # (1 or 2, layers, B, H)
    return parts.permute(2, 1, 0, 3).flatten(1)


def unbroken(steps, rows):
    return torch.zeros(steps, rows, dtype=torch.bool)


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


@every_kind
@every_depth
def test_values_and_gradients_equal_those_of_torch(kind, layers):
    ours = trunk(kind, layers)
    theirs = of_torch(ours)
    x, state = draw(7, 4, 3).requires_grad_(), draw(4, ours.state_size, seed=1)
    x_there = x.detach().clone().requires_grad_()
    features, states = ours(x, state, unbroken(7, 4), torch.zeros(7, 4, ours.state_size))
    out, last = theirs(x_there, split_state(ours, state))
    torch.testing.assert_close(features, out, **TOLERANCE)
    torch.testing.assert_close(states[-1], join_state(ours, last), **TOLERANCE)
    weight = draw(7, 4, 5, seed=2)
    (features * weight).sum().backward()
    (out * weight).sum().backward()
    torch.testing.assert_close(x.grad, x_there.grad, **TOLERANCE)
    for index, layer in enumerate(ours.layers):
        for mine, its in PAIRS:
            torch.testing.assert_close(
                getattr(layer, mine).grad, getattr(theirs, f"{its}_l{index}").grad.t(), **TOLERANCE
            )


@every_kind
@every_depth
def test_a_masked_batch_equals_running_each_episode_alone(kind, layers):
    ours = trunk(kind, layers)
    steps, rows = 12, 5
    x, start = draw(steps, rows, 3).requires_grad_(), draw(steps, rows, ours.state_size, seed=1)
    broken = torch.from_numpy(np.random.default_rng(2).random((steps, rows)) < 0.3)
    broken[0] = True
    weight, ignored = draw(steps, rows, 5, seed=3), draw(rows, ours.state_size, seed=4)
    features, states = ours(x, ignored, broken, start)
    together = torch.autograd.grad((features * weight).sum(), [x, *ours.parameters()])
    alone = torch.zeros((), dtype=torch.float64)
    for row in range(rows):
        begins = broken[:, row].nonzero().flatten().tolist()
        for begin, end in zip(begins, [*begins[1:], steps], strict=True):
            piece, one = slice(begin, end), slice(row, row + 1)
            own = draw(end - begin, 1, ours.state_size, seed=9)  # not used: nothing is broken
            found, after = ours(x[piece, one], start[begin, one], unbroken(end - begin, 1), own)
            torch.testing.assert_close(features[piece, one], found, **TOLERANCE)
            torch.testing.assert_close(states[piece, one], after, **TOLERANCE)
            alone = alone + (found * weight[piece, one]).sum()
    for mine, its in zip(together, torch.autograd.grad(alone, [x, *ours.parameters()]), strict=True):
        torch.testing.assert_close(mine, its, **TOLERANCE)


@every_kind
@every_depth
def test_gradients_of_features_and_states_equal_finite_differences(kind, layers):
    ours = trunk(kind, layers, inputs=2, size=2)
    broken = torch.tensor([[True, False], [False, True], [False, False]])
    state, start = draw(2, ours.state_size, seed=1), draw(3, 2, ours.state_size, seed=2)
    weights = [each.detach().clone().requires_grad_() for each in ours.parameters()]
    names = [name for name, _ in ours.named_parameters()]

    def run(x, *values):
        return torch.func.functional_call(
            ours, dict(zip(names, values, strict=True)), (x, state, broken, start), strict=True
        )

    assert torch.autograd.gradcheck(run, (draw(3, 2, 2).requires_grad_(), *weights))


@every_kind
def test_steps_one_by_one_equal_the_whole_sequence(kind):
    ours = trunk(kind, 2)
    x, state = draw(6, 4, 3), draw(4, ours.state_size, seed=1)
    features, states = ours(x, state, unbroken(6, 4), torch.zeros(6, 4, ours.state_size))
    for step in range(6):
        found, state = ours.step(x[step], state)
        torch.testing.assert_close(found, features[step], **TOLERANCE)
        torch.testing.assert_close(state, states[step], **TOLERANCE)


@every_kind
def test_the_first_weights_are_drawn_by_numpy_within_one_over_the_root_of_what_they_sum_over(kind):
    first, again = (dict(Recurrent(kind, 4, 100, 2, np.random.default_rng(5)).named_parameters()) for _ in range(2))
    for name, weights in first.items():
        assert torch.equal(weights, again[name])
        bound = 0.5 if name == "layers.0.input_weight" else 0.1  # 4 inputs; 100 units
        assert 0.95 * bound < weights.abs().max() <= bound


def test_a_trunk_larger_than_memory_is_refused_with_its_size():
    with pytest.raises(UsageError, match="2 gru layers of 10000000 units"):
        Recurrent("gru", 3, 10_000_000, 2, np.random.default_rng(0))


def test_large_products_equal_the_usual_ones():
    left, right = draw(64, 256).float(), draw(256, 768, seed=1).float()
    assert left.numel() * right.shape[1] >= FAST_FROM
    for one, other in ((left, right), (left, right.T.contiguous().T), (right.T[:512], left.T)):
        wanted = (one.double() @ other.double()).float()
        torch.testing.assert_close(fast_product(one, other), wanted, rtol=0, atol=2e-4)
