"""The torch backend: an algorithm's state as tensors on a device, and its updates."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat import flat
from offbeat.algorithms.torch.across import together
from offbeat.algorithms.torch.batch import Batch
from offbeat.algorithms.torch.memory import first_observations, state_size
from offbeat.algorithms.torch.precision import MIXED, GradientScaler, full_precision_forward
from offbeat.algorithms.torch.rollout import RolloutTensors
from offbeat.algorithms.torch.seeding import seeded
from offbeat.errors import OffbeatError
from offbeat.learn.backend import (
    Rates,
    RolloutResult,
    Scalar,
    UpdateResult,
    check_acts_with,
    check_noise_shape,
    make_state,
)
from offbeat.learn.torch_devices import check_precision, choose_device, tf32_products
from offbeat.learn.torch_schedulers import scheduler_factor
from offbeat.learn.torch_state import (
    check_unchanged,
    guarded,
    learned_tensors,
    state_networks,
    state_tensors,
    tensor_shapes,
)
from offbeat.learn.torch_trace import traced
from offbeat.ranks import Ranks
from offbeat.trace import Trace
from offbeat.types import Array, Batches, EnvSpec, RolloutBatch

SCALER = "gradient_scaler"
"""Prefix of the scaler's arrays."""


@contextlib.contextmanager
def denormals_flushed() -> Iterator[None]:
    """Numbers too small to be normal count as zero meanwhile, and the processor's setting is given back.

    Moments of weights that get no gradient (dead units) decay to such numbers, and arithmetic on them is many
    times slower: Adam on a network with many of them took ten times as long.
    """
    smallest = torch.tensor(1e-45)
    before = bool(smallest * 1.0 == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


class TorchBackend:
    """`Backend` in torch: an algorithm's module and its state on one device.

    rng: of the first weights. precision: float64, float32, or one of the mixed ones. acts_with: the network of the
    state that acts. autograd: whether updates differentiate losses by autograd, which is off otherwise. tf32: whether a
    GPU computes float32 products in TF32.
    """

    name = "torch"
    growing: tuple[str, ...] = ()
    updates_per_call = 1

    def __init__(
        self,
        module: Any,
        config: Any,
        spec: EnvSpec,
        *,
        rng: np.random.Generator,
        device: str = "cpu",
        precision: str = "float32",
        acts_with: str = "actor",
        autograd: bool = False,
        tf32: bool = False,
    ) -> None:
        self.module, self.config, self.spec = module, config, spec
        self._device = choose_device(device)
        self.dtype: torch.dtype = torch.float32 if precision in MIXED else getattr(torch, precision)
        check_precision(precision, tf32, self._device)
        self.device, self._tf32 = str(self._device), tf32
        self.state = make_state(module, config, spec, rng, self._device, self.dtype)
        self.scaler = GradientScaler(self._device) if precision == "float16" else None
        if precision in MIXED:
            self._lower_precision(MIXED[precision])
        self._shapes: dict[str, tuple[int, ...]] | None = None  # before the first update
        self.noise_shape: tuple[int, ...] = module.noise_shape(config, spec) if hasattr(module, "noise_shape") else ()
        check_noise_shape(self.noise_shape)
        networks = state_networks(self.state)
        self.networks = tuple(networks)
        check_acts_with(acts_with, networks)
        self._acting, self._autograd = networks[acts_with], autograd
        self.state_size = state_size(self._acting.module)
        self._critics = flat.values(config).get("critics")
        self._explicit = not autograd and all(each.explicit for each in networks.values())
        self._traced: Mapping[str, Any] = {}
        self._ranks: Ranks | None = None  # that update together with this one
        self._checked_state = not autograd  # our own algorithms keep the state's shape

    def _lower_precision(self, dtype: torch.dtype) -> None:
        for network in state_networks(self.state).values():
            network.lower_precision(dtype, None if self.scaler is None else self.scaler.scale)
        if self.scaler is not None:
            self.state = guarded(self.state, self.scaler)

    def update(
        self,
        batches: Batches,
        noise: Array,
        rates: Sequence[Mapping[str, float]],
        *,
        updates: int,
        seed: int,
        td_errors: bool,
    ) -> UpdateResult:
        metrics, errors, update = defaultdict[str, list[Scalar]](list), [], self.function("update")
        if self._shapes is None:
            self._shapes = tensor_shapes(self.state)
        with denormals_flushed(), self._products(), self.gradient_mode(), together(self._ranks):
            each_noise = self._tensor(noise).unbind()
            for index, batch in enumerate(self._batches(batches)):
                rate = Rates(rates[index]) if self._autograd else rates[index]
                with self.own_randomness(seed + index):
                    result = update(self.state, self.config, self.spec, batch, each_noise[index], rate, updates + index)
                found, error = self._without_graphs(result, len(batch)) if self._autograd else result
                for name, value in found.items():
                    metrics[name].append(value)
                if td_errors:
                    errors.append(error.abs() if error.ndim == 1 else error.abs().mean(0))
            if not self._checked_state:
                check_unchanged(self.state, self._shapes)
                self._checked_state = True
            if self._ranks is not None:
                self.check_equal(updates, updates + len(batches))
            return UpdateResult(metrics, torch.stack(errors).cpu().numpy() if td_errors else None)

    def _without_graphs(self, result: Any, rows: int) -> tuple[dict[str, Tensor], Tensor]:
        """Checks what an update has returned, and drops the graphs that autograd may hold on to."""
        rule = "return (metrics, td_errors): a mapping of names to single numbers, and a tensor (B,) or (E, B)"
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Mapping)):
            raise OffbeatError(f"update returned a {type(result).__name__}, {result!r:.200}; {rule}")
        metrics, errors = {name: torch.as_tensor(value).detach() for name, value in result[0].items()}, result[1]
        if wrong := [name for name, value in metrics.items() if value.numel() != 1]:
            raise OffbeatError(f"update returned the metric {wrong[0]} {tuple(metrics[wrong[0]].shape)}; {rule}")
        shape = tuple(errors.shape) if isinstance(errors, Tensor) else type(errors).__name__
        if not isinstance(errors, Tensor) or errors.ndim not in (1, 2) or errors.shape[-1] != rows:
            raise OffbeatError(f"update returned TD errors {shape} for a batch of {rows}; {rule}")
        if shape == (rows, rows) and rows not in (1, self._critics):
            raise OffbeatError(
                f"update returned TD errors {shape} for a batch of {rows}: (B, 1) - (B,) gives (B, B); drop the column "
                "with [:, 0] before the difference"
            )
        return metrics, errors.detach()

    def _batches(self, batches: Batches) -> Iterator[Batch]:
        if batches.valid is not None:
            raise ValueError("batches.valid is set, but the torch algorithms learn from single transitions: pass None")
        columns = {name: self._column(column).unbind() for name, column in batches.columns.items()}
        weights = [None] * len(batches) if batches.weight is None else self._tensor(batches.weight).unbind()
        named = {each.name for each in dataclasses.fields(Batch)}
        for index, weight in enumerate(weights):
            row = {name: each[index] for name, each in columns.items()}
            nothing = row["reward"].new_zeros(len(row["reward"]), 0)
            own = {name: row.pop(name) for name in named & row.keys()}
            yield Batch(**{"state": nothing, "next_state": nothing, **own}, weight=weight, extras=row)

    def learn_rollout(
        self, config: Any, rollout: RolloutBatch, orders: Array, rate: float, *, count: int, updates: int, seed: int
    ) -> RolloutResult:
        ranks = together(self._ranks)
        with denormals_flushed(), self._products(), self.gradient_mode(), self.own_randomness(seed), ranks:
            order = torch.from_numpy(np.asarray(orders)).to(self._device)
            made, rate, metrics = self.function("learn_rollout")(
                self.state, config, self.spec, self._steps(rollout), order, rate, count, updates
            )
        if self._ranks is not None:
            self.check_equal(updates, updates + made)
        if self._autograd:
            metrics = {name: [torch.as_tensor(value).detach() for value in each] for name, each in metrics.items()}
        return RolloutResult(made, rate, metrics)

    def _steps(self, rollout: RolloutBatch) -> RolloutTensors:
        columns = {**rollout.columns, "valid": np.array(rollout.valid)}
        names = [each.name for each in dataclasses.fields(RolloutTensors)]
        found = {name: self._column(columns[name]) for name in names if name in columns}
        nothing = found["reward"].new_zeros(*rollout.valid.shape, 0)
        mask = found["mask"].to(self.dtype) if "mask" in found else nothing
        return RolloutTensors(**{"state": nothing, "next_state": nothing, **found, "mask": mask})

    def _tensor(self, array: Array) -> Tensor:
        """On the device, in the learner's precision."""
        return _as_tensor(array).to(self._device, self.dtype)

    def _column(self, array: Array) -> Tensor:
        """On the device, floating-point numbers in the learner's precision."""
        tensor = _as_tensor(array).to(self._device)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def _products(self) -> contextlib.AbstractContextManager[None]:
        return tf32_products() if self._tf32 else contextlib.nullcontext()

    def gradient_mode(self) -> contextlib.AbstractContextManager[Any]:
        if self._autograd:
            return torch.enable_grad()
        return torch.inference_mode() if self._explicit else torch.no_grad()

    def own_randomness(self, seed: int) -> contextlib.AbstractContextManager[None]:
        """Modules that may draw from torch (dropout, a user's own) begin at `seed`, so that runs repeat exactly."""
        return contextlib.nullcontext() if self._explicit else seeded(seed, self._device)

    def function(self, name: str) -> Callable[..., Any]:
        """A function of the algorithm's module, or its traced version."""
        found: Callable[..., Any] = self._traced[name] if self._traced else getattr(self.module, name)
        return found

    def join(self, ranks: Ranks) -> None:
        """Takes the state of rank 0; from now on, gradients are averaged over all ranks."""
        from offbeat.learn.torch_ranks import share_first

        share_first(self._tensors(), ranks)
        self._ranks = ranks

    def check_equal(self, before: int, updates: int) -> None:
        """Raises OffbeatError if parameters or optimisers differ between ranks, in the updates in which it is due.

        Buffers may differ: each rank has its own.
        """
        from offbeat.learn.torch_ranks import UPDATES_BETWEEN_COMPARISONS, check_equal

        if self._ranks is not None and updates // UPDATES_BETWEEN_COMPARISONS > before // UPDATES_BETWEEN_COMPARISONS:
            check_equal(learned_tensors(self.state), self._ranks, updates)

    def trace_parts(self, trace: Trace) -> None:
        self._traced = traced(self.module, trace.cuda if self._device.type == "cuda" else trace)

    def weights(self) -> dict[str, Array]:
        """Floating-point numbers as float32; a user's integer buffers keep their dtype."""
        return {f"actor/{name}": _acting_copy(tensor) for name, tensor in self._acting.named()}

    def acting_outputs(self, obs: Array) -> Array:
        """What the network that acts gives for preprocessed observations (N, O), as a policy computes it."""
        module = self._acting.module
        training = module.training
        with torch.no_grad():
            module.eval()
            out = full_precision_forward(module)(first_observations(module, self._tensor(obs))).cpu().numpy()
        module.train(training)
        return np.asarray(out)

    def policy_description(self) -> dict[str, Any]:
        description: dict[str, Any] = self.module.policy_description(self.config, self.spec)
        return description

    def arrays(self) -> dict[str, Array]:
        if self._shapes is not None:
            check_unchanged(self.state, self._shapes)
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._tensors()}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        copy_into(dict(self._tensors()), arrays)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from state_tensors(self.state)
        if self.scaler is not None:
            yield from ((f"{SCALER}/{name}", tensor) for name, tensor in self.scaler.named())

    def counters(self) -> dict[str, float]:
        """Numbers since the run began, for the log."""
        return {} if self.scaler is None else self.scaler.numbers()

    def scheduler(self, kind: Any, options: Mapping[str, Any]) -> Callable[[int], float]:
        return scheduler_factor(kind, options)


def _as_tensor(array: Any) -> Tensor:
    """A tensor as it is, so that a user's replay on a GPU is not copied to the CPU and back."""
    return array if isinstance(array, Tensor) else torch.from_numpy(np.asarray(array))


def copy_into(tensors: Mapping[str, Tensor], arrays: Mapping[str, Array]) -> None:
    """Gives each tensor the values of the array of its name."""
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(np.asarray(arrays[name])))


def _acting_copy(tensor: Tensor) -> Array:
    array = tensor.detach().cpu().numpy()
    return array.astype(np.float32) if array.dtype.kind == "f" else array.copy()
