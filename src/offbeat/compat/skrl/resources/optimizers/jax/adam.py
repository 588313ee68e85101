"""Adam on the variables of a model."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp

from offbeat.algorithms.configs.groups import Optimisation
from offbeat.algorithms.jax.optimise import apply, make_optimiser
from offbeat.errors import UsageError


class Adam:
    """Our Adam, one step per call. grad_norm_clip: the largest norm of a gradient; 0 and less for any.

    scale: False where each step is given its learning rate.
    """

    def __init__(self, *, model: Any, lr: float = 1e-3, grad_norm_clip: float = 0, scale: bool = True) -> None:
        flat = _flat(model.state_dict.params)
        self._rate = lr if scale else None
        self._limit = float(grad_norm_clip) if grad_norm_clip > 0 else None
        self.state = make_optimiser(Optimisation(), flat)

    def step(self, *, grad: Any, model: Any, lr: float | None = None) -> Adam:
        """Changes the model's variables by their gradient, and returns the optimizer for the next step.

        lr: the learning rate of this step; that of the constructor if None.
        """
        rate = self._rate if lr is None else lr
        if rate is None:
            raise UsageError("step: this Adam was made with scale=False, so each step needs its rate; pass lr")
        own = model.state_dict
        flat, gradient = _flat(own.params), _flat(grad)
        flat, state = apply(flat, gradient, self.state, jnp.asarray(rate, flat.dtype), self._limit)
        model.state_dict = own.replace(params=_tree(own.params, flat))
        following = copy.copy(self)
        following.state = state
        return following


def _flat(params: Any) -> jax.Array:
    return jnp.concatenate([jnp.ravel(each) for each in jax.tree_util.tree_leaves(params)])


def _tree(like: Any, flat: jax.Array) -> Any:
    leaves, structure = jax.tree_util.tree_flatten(like)
    found, start = [], 0
    for each in leaves:
        found.append(flat[start : start + each.size].reshape(each.shape))
        start += each.size
    return jax.tree_util.tree_unflatten(structure, found)
