"""The server, the trainer and the rollout workers of a training."""

from __future__ import annotations

from offbeat.compat.tmrl.buffer import Buffer

__all__ = ["Buffer"]
