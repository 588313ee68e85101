"""`Agent` in JAX: files of flax's bytes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NoReturn

import flax
import jax
import numpy as np

from offbeat.compat.skrl.agents.agent import AnyAgent
from offbeat.compat.skrl.jax_arrays import JAX
from offbeat.errors import UsageError


class Agent(AnyAgent):
    """To subclass: `act`, `update`, `pre_interaction` and `post_interaction`. A trainer calls `init` first.

    checkpoint_modules: what files hold, by name: models, and objects whose `state_dict` has `params` and `replace`.
    experiment_dir: where they are.
    """

    arrays = JAX
    suffix = ".pickle"

    def _state_of(self, module: Any) -> bytes:
        own = module.state_dict.params if hasattr(type(module), "state_dict") else module
        return bytes(flax.serialization.to_bytes(own))

    def _write(self, states: Any, path: Path) -> None:
        """As skrl does: bytes, or a dictionary of names and bytes, which need no code of ours to be read."""
        with path.open("wb") as file:
            pickle.dump(states, file, protocol=4)

    def _read(self, path: Path) -> Any:
        try:
            with path.open("rb") as file:
                return _Plain(file).load()
        except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError) as error:
            raise UsageError(f"load: {path} is not a file of weights that can be read safely: {error}") from error

    def _restore(self, name: str, module: Any, state: Any, path: str) -> None:
        if not hasattr(type(module), "state_dict"):
            raise UsageError(f"load: {name!r} has no state_dict, so {path} cannot be loaded into it; add the property")
        try:
            own = module.state_dict
            restored = getattr(module, "decoded", flax.serialization.from_bytes)
            params = restored(own.params, state)
            _check_shapes(own.params, params)
            module.state_dict = own.replace(params=params)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"load: {name!r} in {path} does not fit this agent: {error}") from error


class _Plain(pickle.Unpickler):
    """Reads dictionaries, texts and bytes only: an object would need a class, which could execute anything."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it has an object of {module}.{name}, and only names and bytes are read")


def _check_shapes(own: Any, given: Any) -> None:
    mine, theirs = (jax.tree_util.tree_leaves_with_path(each) for each in (own, given))
    for (path, left), (_, right) in zip(mine, theirs, strict=True):
        if np.shape(left) != np.shape(right):
            raise ValueError(f"{jax.tree_util.keystr(path)} is {np.shape(right)} there and {np.shape(left)} here")
