"""Networks over one flat vector: outputs forward, gradients backward, explicitly or through autograd.

An algorithm passes the gradient of its loss at a network's output to `backward`. The explicit pass carries it to the
parameters of our own MLPs by matrix products; autograd serves every other module. Algorithms see no difference.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.algorithms.torch.networks import MLP, Layer, StackedCritics, Values, WithLogStd
from offbeat.algorithms.torch.precision import lower_precision
from offbeat.algorithms.torch.products import (
    add_product,
    empty_matrix,
    is_narrow,
    product,
    product_by_member,
    product_in,
)

Tape = Any
"""What `forward` keeps for `backward`; valid until the same network's next `forward`."""
Gradient = Callable[[Tensor], Tensor]
"""Maps outputs to the loss's gradient at them; called with all stacked members at once, or with each separately."""
MOST_SPACES = 16
"""Work spaces that a network keeps, one for each purpose and number of rows; the oldest is dropped."""


class Network:
    """A module whose trainable parameters are views of one flat vector: a step, an average or a norm is one call.

    rename: maps the module's own names to those in `Weights` and checkpoints. explicit: False forces autograd, and so
    does compile (a mode of torch.compile, or "off"). origin: the network that this one is a copy of; both use its work
    space.
    """

    def __init__(
        self,
        module: nn.Module,
        rename: Callable[[str], str] = str,
        explicit: bool = True,
        compile: str = "off",
        origin: Network | None = None,
    ) -> None:
        self.module, self.rename, self._compile = module, rename, compile
        self._parameters = parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.gradient = torch.zeros_like(self.flat)
        for parameter, view in zip(parameters, views(self.flat, parameters), strict=True):
            parameter.data = view
        self._buffers = list(module.buffers())
        self._named: list[tuple[str, Tensor]] = []
        self.explicit = explicit and compile == "off" and ExplicitPass.serves(module)
        self._pass: AutogradPass | ExplicitPass = AutogradPass(module, parameters, compile)
        if self.explicit:
            of_origin = None if origin is None else origin._pass
            self._pass = ExplicitPass(module, of_origin.spaces if isinstance(of_origin, ExplicitPass) else None)

    def __call__(self, *parts: Tensor) -> Tensor:
        """The output, with nothing kept for a gradient."""
        with torch.no_grad():
            return self._pass.output(*parts)

    def forward(self, *parts: Tensor) -> tuple[Tensor, Tape]:
        """The output for inputs (B, ...) and the tape that `backward` or `input_gradient` needs."""
        return self._pass.forward(*parts)

    def tape_of_first_rows(self, tape: Tape, count: int) -> Tape:
        """The tape of the first `count` rows, for a network whose output rows are independent of each other."""
        return self._pass.tape_of_first_rows(tape, count)

    def backward(self, tape: Tape, gradient: Tensor, add: bool = False) -> None:
        """Writes the parameters' gradient into `self.gradient`, from the loss's gradient at the output.

        add: adds it to what is there, for the second and later blocks of a batch.
        """
        self._pass.to_parameters(tape, gradient, self.gradient, add)

    def forward_backward(self, parts: Sequence[Tensor], gradient: Gradient, add: bool = False) -> Tensor:
        """The output for inputs (B, ...), and the parameters' gradient of a loss that is a sum over stacked members.

        `forward`, `gradient` and `backward` in one, member by member where that is faster: a member's activations are
        then still in the processor's cache.
        """
        return self._pass.forward_backward(parts, gradient, self.gradient, add)

    def input_gradient(self, part: int, tape: Tape, gradient: Tensor, which: Tensor | None = None) -> Tensor:
        """The gradient at one of the inputs; that of the parameters is not computed.

        which (B,): the only stacked member that has a gradient in each row; `gradient` is then (B,).
        """
        return self._pass.to_input(part, tape, gradient, which)

    @cached_property
    def first_member(self) -> AutogradPass | ExplicitPass:
        """The first of the stacked members alone, for its values (B,) and their gradients at the inputs."""
        return self._pass.first_member()

    def copy(self) -> Network:
        """The same network over a flat vector of its own (a target)."""
        made = Network(copy.deepcopy(self.module), self.rename, self.explicit, self._compile, origin=self)
        if isinstance(made._pass, AutogradPass) and isinstance(self._pass, AutogradPass):
            made._pass.scale = self._pass.scale
        return made

    def lower_precision(self, dtype: torch.dtype, scale: Tensor | None) -> None:
        """Computes in half precision from now on, by autograd (see `precision`). scale: of gradients, in float16."""
        lower_precision(self.module, dtype, self.flat.device)
        self.explicit = False
        self._pass = AutogradPass(self.module, self._parameters, self._compile)
        self._pass.scale = scale

    def follow(self, other: Network, share: float) -> None:
        """Moves towards `other` by `share` (Polyak); buffers such as running statistics are copied."""
        self.flat.lerp_(other.flat, share)
        for mine, theirs in zip(self._buffers, other._buffers, strict=True):
            mine.copy_(theirs)

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """All parameters and buffers of the module, by their names in `Weights`."""
        if not self._named or not self.explicit:  # a user's own module may replace its buffers
            self._named = [(self.rename(name), tensor) for name, tensor in self.module.state_dict().items()]
        return iter(self._named)


def views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Consecutive pieces of a flat vector in the shapes of `like`."""
    pieces = flat.split([each.numel() for each in like])
    return [piece.view(each.shape) for piece, each in zip(pieces, like, strict=True)]


Spaces = dict[tuple[str, int], list[Tensor]]
"""Work space by purpose and number of rows: a matrix for each hidden layer's output."""


class AutogradPass:
    """Any module, through torch.autograd; compiled where `compile` names a mode of torch.compile."""

    def __init__(self, module: nn.Module, parameters: Sequence[Tensor], compile: str) -> None:
        self._module: Callable[..., Tensor] = module if compile == "off" else torch.compile(module, mode=compile)
        self._parameters, self._graphs = parameters, compile == "reduce-overhead"
        self.scale: Tensor | None = None  # of gradients inside the module, not of those that come out

    def first_member(self) -> AutogradPass:
        first, whole = copy.copy(self), self._module
        first._module = lambda *parts: whole(*parts)[0]
        return first

    def output(self, *parts: Tensor) -> Tensor:
        out = self._module(*parts)
        return out.clone() if self._graphs else out  # the next replay of a CUDA graph overwrites its output

    def forward(self, *parts: Tensor) -> tuple[Tensor, Tape]:
        with torch.enable_grad():
            inputs = [part.detach().requires_grad_() for part in parts]
            out = self._module(*inputs)
        return out.detach().clone() if self._graphs else out.detach(), (inputs, out)

    def forward_backward(self, parts: Sequence[Tensor], gradient: Gradient, into: Tensor, add: bool) -> Tensor:
        with torch.enable_grad():
            out = self._module(*parts)
        values = out.detach().clone() if self._graphs else out.detach()
        self.to_parameters(((), out), gradient(values), into, add)
        return values

    def tape_of_first_rows(self, tape: Tape, count: int) -> Tape:
        inputs, out = tape
        with torch.enable_grad():
            return inputs, out[..., :count, :]

    def to_parameters(self, tape: Tape, gradient: Tensor, into: Tensor, add: bool) -> None:
        _, out = tape
        gradient = gradient if self.scale is None else gradient * self.scale
        found = filled(_differentiated(out, self._parameters, gradient), self._parameters)
        parts = [each.reshape(-1) for each in found]
        whole = torch.cat(parts, out=None if add else into)
        if self.scale is not None:
            whole.div_(self.scale)
        if add:
            into.add_(whole)

    def to_input(self, part: int, tape: Tape, gradient: Tensor, which: Tensor | None = None) -> Tensor:
        inputs, out = tape
        if which is not None:
            gradient = torch.zeros_like(out).scatter_(0, which.unsqueeze(0), gradient.unsqueeze(0))
        gradient = gradient if self.scale is None else gradient * self.scale
        found = filled(_differentiated(out, [inputs[part]], gradient), [inputs[part]])[0]
        return found if self.scale is None else found.div_(self.scale)


def _differentiated(out: Tensor, at: Sequence[Tensor], gradient: Tensor) -> Sequence[Tensor | None]:
    """torch.autograd.grad, without its checks: for a small network they take a tenth of the time."""
    engine = torch.autograd.Variable._execution_engine
    found: Sequence[Tensor | None] = engine.run_backward(
        (out,), (gradient,), False, False, tuple(at), allow_unreachable=True, accumulate_grad=False
    )
    return found


def filled(gradients: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    """Zeros where the output does not depend on something."""
    return [torch.zeros_like(to) if each is None else each for each, to in zip(gradients, like, strict=True)]


def _relu(x: Tensor, bias: Tensor) -> Tensor:
    return torch._add_relu_(x, bias)  # one pass over x instead of two


def _tanh(x: Tensor, bias: Tensor) -> Tensor:
    return x.add_(bias).tanh_()


# Activations whose derivative follows from their result: forward, of x plus bias, and backward, both in place.
_FROM_RESULT: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": (_relu, lambda g, y: torch.ops.aten.threshold_backward.grad_input(g, y, 0, grad_input=g)),
    "tanh": (_tanh, lambda g, y: torch.ops.aten.tanh_backward.grad_input(g, y, grad_input=g)),
}


class ExplicitPass:
    """An MLP, single or stacked, by matrix products that write straight into work space and the flat gradient.

    The work space is kept from call to call, so that nothing large is allocated in an update. With one thread, and
    where no tape is needed later, stacked members are computed one after the other in the same work space, which fits
    into the processor's cache; a batch of matrices for all members would not.
    """

    def __init__(self, module: nn.Module, spaces: Spaces | None = None, member: int | None = None) -> None:
        """spaces: work space to share with a network of the same sizes. member: only this one of the stack."""
        mlp = _mlp_of(module)
        assert mlp is not None
        which: Any = ... if member is None else member
        layers = [layer for layer in mlp.layers if isinstance(layer, Layer)]
        self._weights = [layer.weight.data[which] for layer in layers]
        self._transposed = [weight.transpose(-1, -2) for weight in self._weights]
        self._biases = [layer.bias.data[which] for layer in layers]
        self._rows_of_bias = [bias if bias.ndim == 1 else bias.unsqueeze(1) for bias in self._biases]
        self._members = mlp.members if member is None else None
        self._scalar = isinstance(module, StackedCritics) and module.scalar
        self._activate, self._deactivate = _FROM_RESULT[mlp.activation_name]
        self._sizes, self._which = [each for layer in layers for each in (layer.weight, layer.bias)], which
        self.spaces: Spaces = {} if spaces is None else spaces
        self._spaces: Spaces = {} if member is None else self.spaces
        members = range(mlp.members or 0) if member is None else ()
        self._each = [ExplicitPass(module, self.spaces, each) for each in members]
        self._into: Tensor | None = None
        self._into_views: list[Tensor] = []

    @staticmethod
    def serves(module: nn.Module) -> bool:
        mlp = _mlp_of(module)
        return mlp is not None and mlp.activation_name in _FROM_RESULT and mlp.plain

    def first_member(self) -> ExplicitPass:
        return self._each[0]

    def output(self, *parts: Tensor) -> Tensor:
        return self._member_by_member(parts) if self._each and torch.get_num_threads() == 1 else self.forward(*parts)[0]

    def forward_backward(self, parts: Sequence[Tensor], gradient: Gradient, into: Tensor, add: bool) -> Tensor:
        if self._each and torch.get_num_threads() == 1:
            return self._member_by_member(
                parts, lambda each, out, tape: each.to_parameters(tape, gradient(out), into, add)
            )
        out, tape = self.forward(*parts)
        self.to_parameters(tape, gradient(out), into, add)
        return out

    def _member_by_member(
        self, parts: Sequence[Tensor], after: Callable[[ExplicitPass, Tensor, Tape], None] | None = None
    ) -> Tensor:
        """The output, member by member. after: called with each member's pass, its output and its tape."""
        x, outputs = torch.cat(tuple(parts), 1), []
        for each in self._each:
            out, tape = each.forward(x)
            outputs.append(out)
            if after is not None:
                after(each, out, tape)
        return torch.stack(outputs)

    def forward(self, *parts: Tensor) -> tuple[Tensor, Tape]:
        x = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        rows, last = len(x), len(self._weights) - 1
        if self._members is not None:
            x = x.expand(self._members, *x.shape)
        values, spaces = [x], self._space("forward", rows)
        for layer, space in enumerate([*spaces, self._new_output(rows)]):
            if layer == last and layer and self._scalar and self._members is not None:
                # A batched product with a vector is slow; multiplied and summed it is not.
                scratch = torch.mul(x, self._transposed[layer], out=self._space("backward", rows)[layer - 1])
                x = torch.sum(scratch, 2, keepdim=True, out=space)
            else:
                x = product_in(space, x, self._weights[layer])
            bias = self._rows_of_bias[layer]
            x = x.add_(bias) if layer == last else self._activate(x, bias)
            values.append(x)
        return (x.squeeze(-1) if self._scalar else x), (values, [part.shape[1] for part in parts])

    def to_parameters(self, tape: Tape, gradient: Tensor, into: Tensor, add: bool) -> None:
        values, _ = tape
        for layer, g in self._back(values, gradient):
            weight_gradient, bias_gradient = self._gradients(into, layer)
            left = values[layer].transpose(-1, -2)
            if is_narrow(g):
                narrow = torch.mm(left, g, out=empty_matrix(g, left.shape[0], g.shape[1]))
                weight_gradient.add_(narrow) if add else weight_gradient.copy_(narrow)
            elif g.shape[-1] == 1 and layer and not add:
                scratch = torch.mul(values[layer], g, out=self._space("backward", g.shape[-2])[layer - 1])
                torch.sum(scratch, -2, out=weight_gradient.squeeze(-1))
            elif add:
                add_product(left, g, weight_gradient)
            else:
                product(left, g, weight_gradient)
            if add:
                bias_gradient.add_(g.sum(-2))
            else:
                torch.sum(g, -2, out=bias_gradient)

    def tape_of_first_rows(self, tape: Tape, count: int) -> Tape:
        values, sizes = tape
        return [value[..., :count, :] for value in values], sizes

    def to_input(self, part: int, tape: Tape, gradient: Tensor, which: Tensor | None = None) -> Tensor:
        values, sizes = tape
        start = sum(sizes[:part])
        into = self._transposed[0][..., start : start + sizes[part]]
        if which is not None:
            return self._chosen_to_input(into, values, gradient, which)
        *_, (_, g) = self._back(values, gradient)
        result = g @ into
        return result if self._members is None else result.sum(0)

    def _chosen_to_input(self, into: Tensor, values: list[Tensor], gradient: Tensor, which: Tensor) -> Tensor:
        """Each row's gradient goes back through its own member alone: rows are sorted by member, and put back after."""
        member, order = which.sort()
        counts = which.bincount(minlength=len(into)).tolist()
        place = order + member * len(which)
        spaces, kept = self._space("chosen", len(which)), self._space("chosen values", len(which))
        g = gradient.index_select(0, order).unsqueeze(1)
        for layer in range(len(self._weights) - 1, 0, -1):
            g = product_by_member(g, self._transposed[layer], counts, spaces[layer - 1])
            self._deactivate(g, torch.index_select(values[layer].flatten(0, 1), 0, place, out=kept[layer - 1]))
        result = product_by_member(g, into, counts, empty_matrix(g, len(g), into.shape[2]))
        return torch.empty_like(result).index_copy_(0, order, result)

    def _back(self, values: list[Tensor], gradient: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The gradient at each layer's output before its activation, from the last layer to the first."""
        g = gradient.unsqueeze(-1) if self._scalar else gradient
        spaces = self._space("backward", g.shape[-2])
        for layer in range(len(self._weights) - 1, 0, -1):
            yield layer, g
            g = product_in(spaces[layer - 1], g, self._transposed[layer])
            self._deactivate(g, values[layer])
        yield 0, g

    def _new_output(self, rows: int) -> Tensor:
        """Memory for the last layer's output, new for each call, so that no later call overwrites it."""
        lead = () if self._members is None else (self._members,)
        return empty_matrix(self._weights[-1], *lead, rows, self._weights[-1].shape[-1])

    def _space(self, purpose: str, rows: int) -> list[Tensor]:
        """Outputs of all hidden layers for so many rows; (rows, out), or (E, rows, out) when all members have some."""
        if (purpose, rows) not in self._spaces:
            while len(self._spaces) >= MOST_SPACES:
                del self._spaces[next(iter(self._spaces))]
            lead = () if self._members is None or purpose.startswith("chosen") else (self._members,)
            self._spaces[purpose, rows] = [
                empty_matrix(weight, *lead, rows, weight.shape[-1]) for weight in self._weights[:-1]
            ]
        return self._spaces[purpose, rows]

    def _gradients(self, into: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """The views of the flat vector that hold the gradients of a layer's weight and bias."""
        if into is not self._into:
            size = sum(each.numel() for each in self._sizes)  # other parameters of the module come first
            whole = views(into[len(into) - size :], self._sizes)
            self._into, self._into_views = into, [each[self._which] for each in whole]
        return self._into_views[2 * layer], self._into_views[2 * layer + 1]


def _mlp_of(module: nn.Module) -> MLP | None:
    inner = module.mlp if isinstance(module, StackedCritics | Values | WithLogStd) else module
    return inner if isinstance(inner, MLP) else None
