"""Soft actor-critic: what both frameworks share."""
