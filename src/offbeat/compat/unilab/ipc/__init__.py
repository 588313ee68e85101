"""The base of UniLab's runners."""

from offbeat.compat.unilab.ipc.async_runner import AsyncRunner

__all__ = ["AsyncRunner"]
