"""The tensors of a torch algorithm's state, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from offbeat.algorithms.torch.differentiate import Network
from offbeat.algorithms.torch.optimise import Guarded
from offbeat.algorithms.torch.precision import GradientScaler
from offbeat.errors import OffbeatError, UsageError


def state_tensors(state: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a state value, by its path such as `critic/0/weight`."""
    for path, part in _parts(state, ""):
        if isinstance(part, Tensor):
            yield path, part
        else:
            yield from ((f"{path}/{name}", tensor) for name, tensor in part.named())


def learned_tensors(state: Any) -> Iterator[tuple[str, Tensor]]:
    """As `state_tensors`, each network as its one flat vector of parameters, without buffers."""
    for path, part in _parts(state, ""):
        if isinstance(part, Tensor):
            yield path, part
        elif isinstance(part, Network):
            yield path, part.flat
        else:
            yield from ((f"{path}/{name}", tensor) for name, tensor in part.named())


def state_networks(state: Any) -> dict[str, Network]:
    """Every network of a state value, by its path."""
    return {path: part for path, part in _parts(state, "") if isinstance(part, Network)}


def guarded(value: Any, scaler: GradientScaler) -> Any:
    """A state value, or a part of one, whose optimisers leave out steps that are not finite; changed in place."""
    if isinstance(value, Tensor | Network):
        return value
    if callable(getattr(value, "step", None)) and callable(getattr(value, "named", None)):
        return Guarded(value, scaler)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            object.__setattr__(value, each.name, guarded(getattr(value, each.name), scaler))
    elif isinstance(value, Mapping):
        return {name: guarded(part, scaler) for name, part in value.items()}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(guarded(part, scaler) for part in value))
    elif isinstance(value, list | tuple):
        return type(value)(guarded(part, scaler) for part in value)
    return value


def tensor_shapes(state: Any) -> dict[str, tuple[int, ...]]:
    return {path: tuple(tensor.shape) for path, tensor in state_tensors(state)}


def check_unchanged(state: Any, before: Mapping[str, tuple[int, ...]]) -> None:
    """Raises OffbeatError if a state has other tensors than `before`: a checkpoint of it could not be resumed."""
    now = tensor_shapes(state)
    for path in sorted(now.keys() | before.keys()):
        if path not in before:
            raise OffbeatError(f"update added {path} to the state; create it in init")
        if now.get(path) != before[path]:
            found = now.get(path, "missing")
            raise OffbeatError(f"{path} of the state was {before[path]} after init and is {found} now; keep its shape")


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Tensors, and what names its own tensors: networks and optimisers."""
    if isinstance(value, Tensor) or callable(getattr(value, "named", None)):
        yield path, value
    elif dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            yield from _parts(getattr(value, each.name), f"{path}/{each.name}" if path else each.name)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _parts(part, f"{path}/{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _parts(part, f"{path}/{index}" if path else str(index))
    elif isinstance(value, int | float):
        raise UsageError(
            f"{path or 'the state'} is {value!r}: a number in an algorithm's state would not be saved; keep counters "
            "out of the state (`updates` is an argument of update) and hold other numbers in a tensor"
        )
    elif value is not None:
        remedy = "use tensors, networks, optimisers, and dataclasses, mappings, lists or tuples of them"
        if isinstance(value, nn.Module):
            remedy = f"wrap it: make_network(config, {path!r}, module, device, dtype)"
        elif isinstance(value, Optimizer):
            remedy = "use make_optimiser(config.optimisation, network.flat)"
        raise UsageError(f"{path or 'the state'} is a {type(value).__name__}, which cannot be saved; {remedy}")
