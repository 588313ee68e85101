"""`Model`: the flax module that a user's policies and critics are made of, together with a mixin."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax
import gymnasium
import jax
import numpy as np
from flax import linen

from offbeat.compat.skrl.framework import config
from offbeat.compat.skrl.utils.spaces.jax import (
    compute_space_limits,
    compute_space_size,
    flatten_tensorized_space,
    sample_space,
)
from offbeat.errors import SpaceError, UsageError

Inputs = dict[str, Any]
"""`observations`, `states` (None without a state space), and `taken_actions` for critics: arrays (batch, size)."""
Output = tuple[jax.Array, dict[str, Any]]


class StateDict(flax.struct.PyTreeNode):
    """A model's variables (`params`), and the function that takes them."""

    apply_fn: Callable[..., Any] = flax.struct.field(pytree_node=False)
    params: Any = flax.struct.field(pytree_node=True)

    @classmethod
    def create(cls, *, apply_fn: Callable[..., Any], params: Any, **kwargs: Any) -> StateDict:
        return cls(apply_fn=apply_fn, params=params, **kwargs)


class Model(linen.Module):
    """A flax module with spaces. Place a mixin before it: `class Policy(GaussianMixin, Model)`, and write `__call__`.

    flax copies a module by calling its class with its fields, so your constructor takes the four spaces and the device
    by these names, and hands `**kwargs` on to this one. `state_dict.params` are the variables, which
    `init_state_dict` makes; of a model that an agent learns, they are always the newest.
    """

    observation_space: gymnasium.Space | None = None
    state_space: gymnasium.Space | None = None
    action_space: gymnasium.Space | None = None
    device: Any = None

    def __init__(
        self,
        *,
        observation_space: gymnasium.Space | None = None,
        state_space: gymnasium.Space | None = None,
        action_space: gymnasium.Space | None = None,
        device: str | jax.Device | None = None,
        parent: Any = None,
        name: str | None = None,
    ) -> None:
        self.device = config.jax.parse_device(device)
        self.observation_space, self.state_space, self.action_space = observation_space, state_space, action_space
        self.num_observations = compute_space_size(observation_space)
        self.num_states = compute_space_size(state_space)
        self.num_actions = compute_space_size(action_space)
        self.training = False
        self.parent, self.name = parent, name
        self._first_key, self._keys = config.jax.seed, 0
        self._initial_key: Any = None

    # Variables.

    @property
    def state_dict(self) -> StateDict:
        """The variables; UsageError before `init_state_dict`."""
        link = self.__dict__.get("_link")
        if link is not None:
            found: StateDict = link.read()
            return found
        if "_state_dict" not in self.__dict__:
            raise UsageError(f"{type(self).__name__} has no variables yet; call init_state_dict(role=...) first")
        own: StateDict = self.__dict__["_state_dict"]
        return own

    @state_dict.setter
    def state_dict(self, value: StateDict) -> None:
        link = self.__dict__.get("_link")
        if link is not None:
            link.write(value)
        else:
            self.__dict__["_state_dict"] = value

    def init_state_dict(
        self,
        inputs: Inputs = {},  # noqa: B006 - the documented default
        *,
        role: str = "",
        key: jax.Array | None = None,
    ) -> None:
        """Makes the variables by one call of the module; by default with random values of the spaces.

        key: of the first values. If None it is made of `config.jax.key` and the role, so that two critics of one class
        begin with different values.
        """
        if not inputs:
            own = {
                "observations": self.observation_space,
                "states": self.state_space,
                "taken_actions": self.action_space,
            }
            inputs = {
                name: flatten_tensorized_space(sample_space(space, backend="native", device=self.device))
                for name, space in own.items()
            }
        if key is None:
            key = jax.random.fold_in(config.jax.key, zlib.crc32(role.encode()))
        self._initial_key = key
        with jax.default_device(self.device):
            variables = self.init(key, inputs, role)
        self.state_dict = StateDict.create(apply_fn=self.apply, params=variables)

    def init_parameters(self, method_name: str = "normal", *args: Any, **kwargs: Any) -> None:
        """Initialises all variables by a function of flax.linen.initializers, such as normal."""
        self._initialise(method_name, args, kwargs, None)

    def init_weights(self, method_name: str = "normal", *args: Any, **kwargs: Any) -> None:
        """Initialises the kernels of all layers by a function of flax.linen.initializers."""
        self._initialise(method_name, args, kwargs, "kernel")

    def init_biases(self, method_name: str = "constant_", *args: Any, **kwargs: Any) -> None:
        """Initialises the biases of all layers by a function of flax.linen.initializers."""
        self._initialise(method_name, args, kwargs, "bias")

    def _initialise(self, name: str, args: tuple[Any, ...], options: dict[str, Any], only: str | None) -> None:
        """only: the name of the variables to initialise; all if None."""
        made = getattr(linen.initializers, name.removesuffix("_"), None)
        if made is None:
            raise UsageError(
                f"method_name={name!r} is not a function of flax.linen.initializers; use one such as normal or constant"
            )
        method = made if name in ("ones", "zeros") else made(*args, **options)
        state, numbers = self.state_dict, itertools.count()
        key = config.jax.key if self._initial_key is None else self._initial_key

        def value(path: Any, each: Any) -> Any:
            number = next(numbers)
            if only is not None and getattr(path[-1], "key", None) != only:
                return each
            return method(jax.random.fold_in(key, number), each.shape, each.dtype)

        with jax.default_device(self.device):
            self.state_dict = state.replace(params=jax.tree_util.tree_map_with_path(value, state.params))

    def update_parameters(self, model: linen.Module, *, polyak: float = 1.0) -> None:
        """Moves all variables to those of another model by a share of the difference; 1 copies them."""
        state, other = self.state_dict, model.state_dict.params
        if polyak != 1:
            other = jax.tree.map(lambda mine, theirs: (1 - polyak) * mine + polyak * theirs, state.params, other)
        self.state_dict = state.replace(params=other)

    def freeze_parameters(self, freeze: bool = True) -> None:
        """Does nothing, as in skrl: in JAX, what is learned is an argument of the derivative."""

    # Acting.

    def act(self, inputs: Inputs, *, role: str = "", params: Any = None) -> Output:
        """Actions or values, and a dictionary; a mixin provides it. params: used instead of the model's own."""
        raise NotImplementedError(
            f"{type(self).__name__} has no method act: place a mixin before Model: class Policy(GaussianMixin, Model)"
        )

    def random_act(self, inputs: Inputs, *, role: str = "", params: Any = None) -> Output:
        """Uniform actions within the limits of the action space, one for each observation."""
        if not isinstance(self.action_space, gymnasium.spaces.Box):
            raise SpaceError(f"random_act: the action space {self.action_space} is not a Box; use a Box space")
        count = len(inputs["observations"])
        if not self.action_space.is_bounded("both"):  # Gymnasium has a rule for each kind of unbounded interval
            drawn = sample_space(self.action_space, batch_size=count, backend="native", device=self.device)
            return drawn.reshape(count, -1), {}
        low, high = compute_space_limits(self.action_space, device=self.device)
        with jax.default_device(self.device):
            return jax.random.uniform(self._key_of(inputs), (count, len(low)), minval=low, maxval=high), {}

    def _key_of(self, inputs: Inputs) -> Any:
        """The random key in the inputs; without one, another one in each call."""
        if inputs.get("key") is not None:
            return inputs["key"]
        self._keys += 1
        return np.array([self._first_key, self._keys], np.uint32)

    def get_specification(self) -> dict[str, Any]:
        """For recurrent models, which are not supported yet: empty."""
        return {}

    def enable_training_mode(self, enabled: bool = True) -> None:
        """Sets the attribute `training`."""
        self.training = enabled

    # Files.

    def save(self, path: str, *, state_dict: Any = None) -> None:
        """Saves the variables, or those of another state dictionary, as flax's bytes."""
        state = self.state_dict if state_dict is None else state_dict
        Path(path).write_bytes(flax.serialization.to_bytes(state.params))

    def load(self, path: str) -> None:
        """Loads variables that `save` wrote, and goes to evaluation mode."""
        state = self.state_dict
        params = flax.serialization.from_bytes(state.params, Path(path).read_bytes())
        self.state_dict = state.replace(params=params)
        self.enable_training_mode(False)
