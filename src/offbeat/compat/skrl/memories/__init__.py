"""Memories, by framework."""
