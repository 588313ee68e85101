"""Algorithms, by the paths that they have in UniLab."""
