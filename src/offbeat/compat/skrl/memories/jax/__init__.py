"""Memories: `Memory` to subclass, and one that draws at random."""

from offbeat.compat.skrl.framework import needs_jax

with needs_jax("memories.jax"):
    from offbeat.compat.skrl.memories.jax.memory import Memory, RandomMemory

__all__ = ["Memory", "RandomMemory"]
