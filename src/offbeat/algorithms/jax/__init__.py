"""The JAX algorithms, and what one of your own is written with (docs/jax.md)."""

from offbeat.algorithms.jax.actor_critic import make_actor_and_critics
from offbeat.algorithms.jax.batch import Batch, every
from offbeat.algorithms.jax.losses import weighted
from offbeat.algorithms.jax.minimise import minimise
from offbeat.algorithms.jax.networks import MLP, Network, StackedCritics, Values, differentiate, make_network
from offbeat.algorithms.jax.optimise import Optimiser, apply, make_optimiser

__all__ = [
    "MLP",
    "Batch",
    "Network",
    "Optimiser",
    "StackedCritics",
    "Values",
    "apply",
    "differentiate",
    "every",
    "make_actor_and_critics",
    "make_network",
    "make_optimiser",
    "minimise",
    "weighted",
]
