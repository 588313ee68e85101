"""The weights and statistics of one learner as the beginning of another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from offbeat.algorithms.configs import Learned
from offbeat.algorithms.torch.differentiate import Network
from offbeat.errors import CheckpointError
from offbeat.learn.torch import Learner, copy_into
from offbeat.types import Array


def transfer(arrays: Mapping[str, Array], learner: Learner) -> tuple[list[str], list[str]]:
    """Gives a new learner the networks, the learned temperature and the statistics in another's arrays.

    The network that acts has to fit; optimisers stay new. Returns what was taken over, and what else does not fit and
    stays new.
    """
    _check_normalisation(arrays, learner)
    taken: list[str] = []
    left: list[str] = []
    for each in dataclasses.fields(learner.state):
        value = getattr(learner.state, each.name)
        if isinstance(value, Network):
            named = {f"{each.name}/{name}": tensor for name, tensor in value.named()}
            differences = _differences(arrays, each.name, named)
            if differences and each.name == learner.config.acts_with:
                raise CheckpointError(
                    f"the {each.name} there is another network ({'; '.join(differences[:3])}); use the settings that "
                    "it was made with (hidden, activation, layer_norm, ...)"
                )
            (left if differences else taken).append(each.name)
            copy_into({} if differences else named, arrays)
        elif each.name == "log_temperature" and isinstance(getattr(learner.config, "temperature", None), Learned):
            (taken if each.name in arrays else left).append("temperature")
            copy_into({each.name: value} if each.name in arrays else {}, arrays)
    for name, part in learner.statistics():
        if f"{name}/mean" in arrays:
            prefix = f"{name}/"
            part.begin_with({key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)})
            taken.append(f"statistics of {name}")
    learner.refresh_scales()
    return taken, left


def _check_normalisation(arrays: Mapping[str, Array], learner: Learner) -> None:
    here = learner.observations is not None
    if here != ("observations/mean" in arrays):
        raise CheckpointError(
            f"its networks learned {'without' if here else 'with'} normalised observations; use "
            f"normalise_observations={not here}"
        )


def _differences(arrays: Mapping[str, Array], network: str, mine: Mapping[str, Tensor]) -> list[str]:
    """How a network's saved arrays differ from its own tensors, in names and shapes."""
    saved = {name: array.shape for name, array in arrays.items() if name.startswith(f"{network}/")}
    own = {name: tuple(tensor.shape) for name, tensor in mine.items()}
    return [
        f"{name} is {saved.get(name, 'missing')} there and {own.get(name, 'missing')} here"
        for name in sorted(saved.keys() | own.keys())
        if saved.get(name) != own.get(name)
    ]
