"""Checks of the user's models, before anything is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from offbeat.compat.skrl.agents.jax.sac.learning import Variables
from offbeat.compat.skrl.agents.sac.models import check_names
from offbeat.compat.skrl.agents.sac.settings import CRITICS, MODELS, TARGETS, Sizes
from offbeat.errors import UsageError


def check_models(models: Any, sizes: Sizes, training: bool) -> None:
    """Raises UsageError for a model that is missing, has no variables, or gives the wrong shape.

    training: whether the critics are needed.
    """
    missing = check_names(models, training)
    for name in MODELS:
        if models.get(name) is not None:
            _check_methods(name, models[name])
            with jax.enable_x64("float64" in Variables(models[name].state_dict.params).dtypes):
                _check_output(name, models[name], sizes)
    if not missing:
        _check_separate(models)


def _check_methods(name: str, model: Any) -> None:
    if not isinstance(model, linen.Module) or not callable(getattr(model, "act", None)):
        raise UsageError(
            f"models[{name!r}] is a {type(model).__name__} without act; use a mixin and Model as its classes"
        )
    if "__call__" not in {key for kind in type(model).__mro__[:-1] for key in vars(kind)}:
        raise UsageError(
            f"models[{name!r}] ({type(model).__name__}) has no method __call__(inputs, role); write one that returns "
            "(output, dictionary)"
        )
    if "_state_dict" not in model.__dict__ and "_link" not in model.__dict__:
        raise UsageError(
            f"models[{name!r}] has no variables yet; call models[{name!r}].init_state_dict(role={name!r}) first"
        )


def _check_output(name: str, model: Any, sizes: Sizes) -> None:
    """The shapes of the output for two rows; nothing is computed."""
    params = model.state_dict.params
    rows = jnp.zeros((2, sizes.observation + sizes.state), _dtype(params))
    inputs: dict[str, Any] = {**sizes.split(rows), "key": np.zeros(2, np.uint32)}
    if name != "policy":
        inputs["taken_actions"] = jnp.zeros((2, sizes.action), rows.dtype)
    try:
        output, others = jax.eval_shape(lambda params: model.act(inputs, role=name, params=params), params)
    except Exception as error:
        raise UsageError(
            f"models[{name!r}] raised {type(error).__name__} on two rows of zeros (observations {sizes.observation}, "
            f"states {sizes.state}, actions {sizes.action} wide): {error}"
        ) from error
    width = sizes.action if name == "policy" else 1
    if tuple(getattr(output, "shape", ())) != (2, width):
        raise UsageError(
            f"models[{name!r}] gave {tuple(getattr(output, 'shape', ()))} for 2 rows; __call__ must return "
            f"(2, {width}): correct its last layer"
        )
    if name == "policy":
        log_prob = others.get("log_prob") if isinstance(others, Mapping) else None
        if log_prob is None or log_prob.shape[:1] != (2,):
            raise UsageError(
                "models['policy'] gives no log_prob for each row: SAC needs a stochastic policy; use GaussianMixin"
            )


def _dtype(params: Any) -> Any:
    return next(iter(Variables(params).split(params).values())).dtype


def _check_separate(models: Mapping[str, Any]) -> None:
    for index, name in enumerate(MODELS):
        for other in MODELS[:index]:
            if models[name] is models[other]:
                raise UsageError(f"models[{other!r}] and models[{name!r}] are one object; make a module for each")
    for name, target in zip(CRITICS, TARGETS, strict=True):
        shapes = [jax.tree.map(jnp.shape, models[key].state_dict.params) for key in (name, target)]
        if shapes[0] != shapes[1]:
            raise UsageError(f"models[{target!r}] differs in its layers from models[{name!r}]; make both of one class")
    dtypes = {each for name in MODELS for each in Variables(models[name].state_dict.params).dtypes}
    if len(dtypes) > 1:
        raise UsageError(f"the models' parameters have the dtypes {sorted(dtypes)}; use one for all")
