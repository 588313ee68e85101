"""The networks and statistics of one learner as the start of another."""

from __future__ import annotations

from collections.abc import Mapping

from offbeat.errors import CheckpointError
from offbeat.learn.learner import Learner
from offbeat.types import Array


def transfer(arrays: Mapping[str, Array], learner: Learner, acts_with: str) -> tuple[list[str], list[str]]:
    """Copies the networks, the learned temperature and the statistics of another learner into a new one.

    acts_with: the network that acts, which has to fit; optimisers stay new. Returns what was copied, and what does not
    fit and stays new.
    """
    _check_normalisation(arrays, learner)
    own, copied, left = learner.backend.arrays(), list[str](), list[str]()
    for network in learner.backend.networks:
        mine = {name: array for name, array in own.items() if name.startswith(f"{network}/")}
        differences = _differences(arrays, network, mine)
        if differences and network == acts_with:
            raise CheckpointError(
                f"the {network} there is another network ({'; '.join(differences[:3])}); use the settings that it was "
                "made with (hidden, activation, layer_norm, ...)"
            )
        (left if differences else copied).append(network)
        if not differences:
            own |= {name: arrays[name] for name in mine}
    if "log_temperature" in own and hasattr(learner.config.temperature, "target_entropy"):
        (copied if "log_temperature" in arrays else left).append("temperature")
        own["log_temperature"] = arrays.get("log_temperature", own["log_temperature"])
    learner.backend.restore(own)
    for name, part in learner.statistics().items():
        prefix = f"{name}/"
        if saved := {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)}:
            getattr(part, "begin_with", part.restore)(saved)  # a preprocessor of the user's has no begin_with
            copied.append(f"statistics of {name}")
    return copied, left


def _check_normalisation(arrays: Mapping[str, Array], learner: Learner) -> None:
    here = "observations" in learner.statistics()
    if here != any(name.startswith("observations/") for name in arrays):
        raise CheckpointError(
            f"its networks learned {'without' if here else 'with'} normalised observations; use "
            f"normalise_observations={not here}"
        )


def _differences(arrays: Mapping[str, Array], network: str, mine: Mapping[str, Array]) -> list[str]:
    """How a network's saved arrays differ from its own, in names and shapes."""
    saved = {name: array.shape for name, array in arrays.items() if name.startswith(f"{network}/")}
    own = {name: array.shape for name, array in mine.items()}
    return [
        f"{name} is {saved.get(name, 'missing')} there and {own.get(name, 'missing')} here"
        for name in sorted(saved.keys() | own.keys())
        if saved.get(name) != own.get(name)
    ]
