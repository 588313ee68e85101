"""The networks and statistics of one learner as the start of another."""

from __future__ import annotations

from collections.abc import Mapping

from offbeat.errors import CheckpointError
from offbeat.learn.learner import Learner
from offbeat.learn.saved_arrays import below, shape_differences
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
        theirs = {name: array for name, array in arrays.items() if name.startswith(f"{network}/")}
        differences = shape_differences(theirs, mine)
        if differences and network == acts_with:
            raise CheckpointError(
                f"the {network} there is another network ({'; '.join(differences[:3])}); use the settings that it was "
                "made with (hidden, activation, layer_norm, ...)"
            )
        (left if differences else copied).append(network)
        if not differences:
            own |= theirs
    if "log_temperature" in own and hasattr(learner.config.temperature, "target_entropy"):
        (copied if "log_temperature" in arrays else left).append("temperature")
        own["log_temperature"] = arrays.get("log_temperature", own["log_temperature"])
    learner.backend.restore(own)
    for name, part in learner.statistics().items():
        if saved := below(arrays, f"{name}/"):
            getattr(part, "begin_with", part.restore)(saved)  # those of returns have it
            copied.append(f"statistics of {name}")
    return copied, left


def _check_normalisation(arrays: Mapping[str, Array], learner: Learner) -> None:
    here = "observations" in learner.statistics()
    if here != any(name.startswith("observations/") for name in arrays):
        raise CheckpointError(
            f"its networks learned {'without' if here else 'with'} normalised observations; use "
            f"normalise_observations={not here}"
        )
