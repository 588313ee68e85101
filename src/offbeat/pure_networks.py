"""Networks whose weights are apart from their code: flax.linen modules, and pairs of `init` and `apply`.

Reads a user's network without an import of JAX, for the learner and for the policy that acts with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from offbeat.errors import OffbeatError, UsageError

WANTED = "a flax.linen module, or an object with init(key, *inputs) -> params and apply(params, *inputs) -> output"


def is_pure(made: Any) -> bool:
    """Whether an object is a network of this kind: an instance that has `init` and `apply`."""
    return not isinstance(made, type) and all(callable(getattr(made, name, None)) for name in ("init", "apply"))


@dataclass(frozen=True, eq=False)
class PureNetwork:
    """A user's network with the names of its weights.

    call: (params, *inputs) -> what its `apply` returns, or its `sample` where that is what is called. skeleton: its
    params, with the name of each array in its place. samples: whether it has a `sample`.
    """

    call: Callable[..., Any]
    skeleton: Any
    samples: bool

    def __call__(self, weights: Mapping[str, Any], *inputs: Any) -> Any:
        return self.call(_filled(self.skeleton, weights), *inputs)


def make_pure(
    made: Any, name: str, key: Any, inputs: tuple[Any, ...], noise: Any = None
) -> tuple[PureNetwork, dict[str, np.ndarray]]:
    """A user's network, and its first weights by name. name: what an error calls it.

    inputs: two rows of zeros each. noise: likewise, for a `sample(obs, noise)`, which is then what is called.
    """
    if hasattr(made, "state_dict"):
        raise UsageError(
            f"your {name} is a torch module ({type(made).__name__}), which backend=jax cannot use: return {WANTED}, or "
            "use backend=torch"
        )
    if isinstance(made, tuple) and len(made) == 2 and not is_pure(made):
        made = _Pair(*made)
    if not is_pure(made):
        raise UsageError(f"your {name} is a {type(made).__name__}; return {WANTED}")
    init, call, samples = made.init, made.apply, callable(getattr(made, "sample", None))
    if samples and noise is not None:
        inputs = (*inputs, noise)
        flax = sys.modules.get("flax.linen")
        if flax is not None and isinstance(made, flax.Module):
            init, call = partial(made.init, method="sample"), partial(made.apply, method="sample")
        else:
            init, call = (lambda key, obs, noise: made.init(key, obs)), made.sample
    try:
        params = init(key, *inputs)
    except OffbeatError:
        raise
    except Exception as error:
        raise UsageError(f"your {name} raised {type(error).__name__} on two rows of zeros: {error}") from error
    skeleton, first = _read(params, name)
    return PureNetwork(call, skeleton, samples), first


@dataclass(frozen=True)
class _Pair:
    init: Any
    apply: Any


def _read(params: Any, name: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The skeleton of params, and their arrays by name."""
    if isinstance(params, Mapping) and "params" in params:
        if others := sorted(str(each) for each in params if each != "params"):
            raise UsageError(
                f"your {name} has variables beside its params: {', '.join(others)}. An update changes params only; use "
                "layers without such variables (LayerNorm instead of BatchNorm)"
            )
        skeleton, first = _read(params["params"], name)
        return {"params": skeleton}, first
    named = list(_named(params, "", name))
    if not named:
        raise UsageError(f"your {name} has no parameter that could learn; use a module that has some")
    first = {path: np.asarray(array) for path, array in named}
    if len(first) < len(named):
        raise UsageError(f"your {name} has two parameters with the same name; do not use / in names")
    for path, array in first.items():
        if array.dtype.kind != "f":
            raise UsageError(f"your {name} has the parameter {path} of {array.dtype}; use floating-point numbers")
    return _skeleton(params, ""), first


def _children(tree: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container by name; None for an array."""
    if isinstance(tree, Mapping):
        return [(str(key), tree[key]) for key in sorted(tree)]
    if isinstance(tree, list | tuple):
        return [(str(index), each) for index, each in enumerate(tree)]
    return None


def _named(tree: Any, path: str, name: str) -> Iterator[tuple[str, Any]]:
    children = _children(tree)
    if children is not None:
        for key, child in children:
            yield from _named(child, f"{path}/{key}" if path else key, name)
    elif hasattr(tree, "shape") and hasattr(tree, "dtype"):
        yield path or "value", tree
    elif tree is not None:
        raise UsageError(
            f"your {name} has params with a {type(tree).__name__} at {path or 'the top'}; use dicts, lists and tuples "
            "of arrays"
        )


def _skeleton(tree: Any, path: str) -> Any:
    return _rebuilt(tree, path, lambda path, _: path or "value")


def _filled(skeleton: Any, weights: Mapping[str, Any]) -> Any:
    return _rebuilt(skeleton, "", lambda _, name: weights[name])


def _rebuilt(tree: Any, path: str, leaf: Callable[[str, Any], Any]) -> Any:
    """The same containers, with `leaf(path, each)` in the place of each leaf."""
    children = _children(tree)
    if children is None:
        return None if tree is None else leaf(path, tree)
    made = [_rebuilt(child, f"{path}/{key}" if path else key, leaf) for key, child in children]
    if isinstance(tree, Mapping):
        return dict(zip(sorted(tree), made, strict=True))
    return type(tree)(*made) if hasattr(tree, "_fields") else type(tree)(made)
