"""Replay buffers."""

from offbeat.compat.metarl.replay_buffer.path_buffer import PathBuffer

__all__ = ["PathBuffer"]
