"""Collectors: environments and an acting policy in, chunks of rows out. Neither a backend nor Gymnasium is imported."""

from offbeat.collect.inline import Inline
from offbeat.collect.rollout import Moved, advance

__all__ = ["Inline", "Moved", "advance"]
