"""Q-functions."""

from offbeat.compat.metarl.torch.q_functions.q_functions import ContinuousMLPQFunction, DiscreteMLPQFunction

__all__ = ["ContinuousMLPQFunction", "DiscreteMLPQFunction"]
