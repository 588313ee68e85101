"""The arrays of a JAX algorithm's state, by name, and checks of what a user's functions return."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offbeat.algorithms.jax.networks import Network
from offbeat.algorithms.jax.optimise import Optimiser
from offbeat.errors import OffbeatError, UsageError
from offbeat.types import Array

UPDATE_RULE = (
    "return (state, metrics, td_errors): the state, a mapping of names to single numbers, and an array (B,) or (E, B)"
)


def state_parts(state: Any) -> Iterator[tuple[str, Any]]:
    """Networks, optimisers and arrays of a state, by their path such as `critic` or `steps/actor`."""
    yield from _parts(state, "")


def state_networks(state: Any) -> dict[str, Network]:
    """Every network of a state, by its path."""
    return {path: part for path, part in state_parts(state) if isinstance(part, Network)}


def state_arrays(state: Any) -> Iterator[tuple[str, Any]]:
    """Every array of a state by its name in checkpoints, which is that of the torch backend."""
    for path, part in state_parts(state):
        if isinstance(part, Network):
            yield from ((f"{path}/{name}", array) for name, array in part.layout.split(np.asarray(part.flat)).items())
        elif isinstance(part, Optimiser):
            yield from ((f"{path}/{name}", array) for name, array in part.memory.items())
        else:
            yield path, part


def restored(state: Any, arrays: Mapping[str, Array], put: Callable[[Array], Any]) -> Any:
    """The state with saved arrays."""

    def saved(path: str, part: Any) -> Any:
        if isinstance(part, Network):
            pieces = [np.asarray(arrays[f"{path}/{name}"]).reshape(-1) for name in part.layout.shapes]
            return part.replace(put(np.concatenate(pieces).astype(part.flat.dtype)))
        if isinstance(part, Optimiser):
            memory = {name: put(np.array(arrays[f"{path}/{name}"], each.dtype)) for name, each in part.memory.items()}
            return dataclasses.replace(part, memory=memory)
        return put(np.array(arrays[path], part.dtype))

    return _rebuilt(state, "", saved)


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container by name; None for what is none."""
    if isinstance(value, Network | Optimiser):
        return None
    if dataclasses.is_dataclass(value):
        return [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return [(str(name), part) for name, part in value.items()]
    if isinstance(value, list | tuple):
        return [(str(index), part) for index, part in enumerate(value)]
    return None


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = _children(value)
    if children is not None:
        for name, part in children:
            yield from _parts(part, f"{path}/{name}" if path else name)
    elif isinstance(value, Network | Optimiser) or (hasattr(value, "shape") and hasattr(value, "dtype")):
        yield path, value
    elif isinstance(value, int | float):
        raise UsageError(
            f"{path or 'the state'} is {value!r}: a number in an algorithm's state would not be saved; keep counters "
            "out of the state (`updates` is an argument of update) and hold other numbers in an array"
        )
    elif value is not None:
        raise UsageError(
            f"{path or 'the state'} is a {type(value).__name__}, which cannot be saved; use arrays, networks "
            "(make_network), optimisers (make_optimiser), and dataclasses, dicts, lists or tuples of them"
        )


def _rebuilt(value: Any, path: str, leaf: Callable[[str, Any], Any]) -> Any:
    children = _children(value)
    if children is None:
        return None if value is None else leaf(path, value)
    made = [_rebuilt(part, f"{path}/{name}" if path else name, leaf) for name, part in children]
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **dict(zip((name for name, _ in children), made, strict=True)))  # type: ignore[type-var]
    if isinstance(value, Mapping):
        return dict(zip(value, made, strict=True))
    return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)


def checked_result(result: Any, before: Any, rows: int, critics: int | None) -> tuple[Any, dict[str, Any], Any]:
    """What an update returned, checked while it is traced. before: the state that it was given. rows: B."""
    if not (isinstance(result, tuple) and len(result) == 3 and isinstance(result[1], Mapping)):
        raise OffbeatError(f"update returned a {type(result).__name__}, {result!r:.200}; {UPDATE_RULE}")
    state, metrics, errors = result
    check_unchanged(state, before)
    for name, value in metrics.items():
        shape = jnp.shape(value[0] if isinstance(value, tuple) else value)
        if int(np.prod(shape)) != 1:
            raise OffbeatError(f"update returned the metric {name} {shape}; {UPDATE_RULE}")
    found = tuple(errors.shape) if hasattr(errors, "shape") else type(errors).__name__
    if not hasattr(errors, "shape") or errors.ndim not in (1, 2) or errors.shape[-1] != rows:
        raise OffbeatError(f"update returned TD errors {found} for a batch of {rows}; {UPDATE_RULE}")
    if found == (rows, rows) and rows not in (1, critics):
        raise OffbeatError(
            f"update returned TD errors {found} for a batch of {rows}: (B, 1) - (B,) gives (B, B); drop the column "
            "with [:, 0] before the difference"
        )
    return state, {name: jax.tree.map(_number, value) for name, value in metrics.items()}, errors


def _number(value: Any) -> Any:
    return jnp.reshape(jnp.asarray(value), ())


def check_unchanged(state: Any, before: Any) -> None:
    """Raises OffbeatError if a state has other arrays than before: a checkpoint of it could not be resumed."""
    then, now = ({path: _kind(part) for path, part in state_parts(each)} for each in (before, state))
    for path in sorted(now.keys() | then.keys()):
        if path not in then:
            raise OffbeatError(f"update added {path} to the state; create it in init")
        if now.get(path) != then[path]:
            found = now.get(path, "missing")
            raise OffbeatError(
                f"{path} of the state was {then[path]} after init and is {found} now; keep its shape and its type"
            )
    if str(jax.tree.structure(state)) != str(jax.tree.structure(before)):
        raise OffbeatError(
            f"update returned the state as a {type(state).__name__}, another structure than that of init; change the "
            "state that it was given: state | {...}, or dataclasses.replace(state, ...)"
        )


def _kind(part: Any) -> str:
    """What must not change, in words."""
    if isinstance(part, Network):
        return f"a network of {part.flat.size} weights of {part.flat.dtype}"
    if isinstance(part, Optimiser):
        return f"an optimiser ({', '.join(f'{name} {each.shape}' for name, each in sorted(part.memory.items()))})"
    return f"{tuple(part.shape)} of {part.dtype}"
