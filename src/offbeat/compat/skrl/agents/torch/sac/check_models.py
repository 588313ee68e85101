"""Checks of the user's models, before anything is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.algorithms.torch.networks import check_no_shared_parameters
from offbeat.compat.skrl.agents.sac.models import check_names
from offbeat.compat.skrl.agents.sac.sequence_draws import FLAGS
from offbeat.compat.skrl.agents.sac.settings import CRITICS, MODELS, TARGETS, Sizes
from offbeat.compat.skrl.agents.torch.sac.sequences import Recurrence
from offbeat.compat.skrl.models.torch import Model
from offbeat.errors import UsageError


def check_models(models: Mapping[str, Any], sizes: Sizes, training: bool) -> None:
    """Raises UsageError for a model that is missing, has no compute, or gives the wrong shape.

    training: whether the critics are needed.
    """
    missing = check_names(models, training)
    for name in MODELS:
        if models.get(name) is not None:
            _check_methods(name, models[name])
            _check_output(name, models[name], sizes, 2)
    if not missing:
        _check_separate(models)


def check_recurrent_models(models: Mapping[str, Any], sizes: Sizes, training: bool, recurrence: Recurrence) -> None:
    """As `check_models`: one step of the policy as it acts, and two sequences of zeros through each model."""
    missing = check_names(models, training)
    flags = {name: torch.zeros(2 * recurrence.length, 1, dtype=torch.bool) for name in FLAGS}
    for name in MODELS:
        if models.get(name) is None:
            continue
        _check_methods(name, models[name])
        if name == "policy":
            acting = {"rnn": recurrence.zeros(recurrence.num_envs, torch.zeros(0))}
            outputs = _check_output(name, models[name], sizes, recurrence.num_envs, acting)
            recurrence.checked(outputs, recurrence.num_envs)
        if not missing:
            learning = {"rnn": recurrence.zeros(2 * recurrence.length, torch.zeros(0)), **flags}
            _check_output(name, models[name], sizes, 2 * recurrence.length, learning)
    if not missing:
        _check_separate(models)


def _check_methods(name: str, model: Any) -> None:
    if not isinstance(model, nn.Module) or not callable(getattr(model, "act", None)):
        raise UsageError(
            f"models[{name!r}] is a {type(model).__name__} without act; use a mixin and Model as its classes"
        )
    if not callable(getattr(model, "compute", None)) or getattr(type(model), "compute", None) is Model.compute:
        raise UsageError(
            f"models[{name!r}] ({type(model).__name__}) has no method compute(inputs, role); write one that returns "
            "(output, dictionary)"
        )


def _check_output(name: str, model: Any, sizes: Sizes, count: int, own: Mapping[str, Any] | None = None) -> Any:
    """Passes `count` rows of zeros through a model, by which lazy modules are initialised; returns its other outputs.

    own: inputs of a recurrent model. With flags among them it computes as in an update: it is in training mode itself,
    and its submodules, such as batch norm, are not.
    """
    device = getattr(model, "device", None) or next(model.parameters(), torch.zeros(0)).device
    dtype = next((each.dtype for each in model.parameters() if _is_made(each)), torch.float32)
    rows = torch.zeros(count, sizes.observation + sizes.state, device=device, dtype=dtype)
    inputs: dict[str, Any] = {**sizes.split(rows)}
    for key, value in (own or {}).items():
        inputs[key] = [each.to(rows) for each in value] if isinstance(value, list) else value.to(device)
    if name != "policy":
        inputs["taken_actions"] = rows.new_zeros(count, sizes.action)
    mode = model.training
    model.eval()
    model.training = "terminated" in inputs
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[device] if torch.device(device).type == "cuda" else []):
            output, others = model.act(inputs, role=name)
    except Exception as error:
        raise UsageError(
            f"models[{name!r}] raised {type(error).__name__} on {_number(count)} rows of zeros (observations "
            f"{sizes.observation}, states {sizes.state}, actions {sizes.action} wide): {error}"
        ) from error
    finally:
        model.train(mode)
    width = sizes.action if name == "policy" else 1
    if not isinstance(output, Tensor) or tuple(output.shape) != (count, width):
        gave = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UsageError(
            f"models[{name!r}] gave {gave} for {count} rows; compute must return ({count}, {width}): correct its last "
            "layer"
        )
    if name == "policy":
        _check_log_prob(others, count)
    return others


def _number(count: int) -> str:
    return "two" if count == 2 else str(count)


def _check_log_prob(others: Any, count: int) -> None:
    log_prob = others.get("log_prob") if isinstance(others, dict) else None
    if not isinstance(log_prob, Tensor) or log_prob.shape[:1] != (count,):
        raise UsageError(
            "models['policy'] gives no log_prob for each row: SAC needs a stochastic policy; use GaussianMixin"
        )


def _is_made(parameter: Tensor) -> bool:
    return not isinstance(parameter, nn.parameter.UninitializedParameter)


def _check_separate(models: Mapping[str, Any]) -> None:
    check_no_shared_parameters(**{name: models[name] for name in MODELS})
    for name, target in zip(CRITICS, TARGETS, strict=True):
        if models[name] is models[target]:
            raise UsageError(f"models[{name!r}] and models[{target!r}] are one object; make a module for each")
        shapes = [[tuple(each.shape) for each in models[key].parameters()] for key in (name, target)]
        if shapes[0] != shapes[1]:
            raise UsageError(f"models[{target!r}] differs in its layers from models[{name!r}]; make both of one class")
    dtypes = {each.dtype for name in MODELS for each in models[name].parameters()}
    if len(dtypes) > 1:
        raise UsageError(f"the models' parameters have the dtypes {sorted(map(str, dtypes))}; use one for all")
