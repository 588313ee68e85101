"""Algorithms, policies and exploration that need NumPy alone."""
