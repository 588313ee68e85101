"""Memories: `Memory` to subclass, and `RandomMemory`."""

from offbeat.compat.skrl.memories.torch.memory import Memory
from offbeat.compat.skrl.memories.torch.random import RandomMemory

__all__ = ["Memory", "RandomMemory"]
