"""Algorithms in PyTorch, by the paths that they have in UniLab."""
