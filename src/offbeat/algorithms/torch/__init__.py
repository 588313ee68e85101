"""The torch algorithms, and what one of your own is written with (docs/extending.md)."""

from offbeat.algorithms.torch.actor_critic import make_actor_and_critics, make_network
from offbeat.algorithms.torch.batch import Batch
from offbeat.algorithms.torch.differentiate import Network
from offbeat.algorithms.torch.losses import weighted
from offbeat.algorithms.torch.minimise import minimise
from offbeat.algorithms.torch.networks import MLP, StackedCritics, Values
from offbeat.algorithms.torch.optimise import Optimiser, make_optimiser

__all__ = [
    "MLP",
    "Batch",
    "Network",
    "Optimiser",
    "StackedCritics",
    "Values",
    "make_actor_and_critics",
    "make_network",
    "make_optimiser",
    "minimise",
    "weighted",
]
