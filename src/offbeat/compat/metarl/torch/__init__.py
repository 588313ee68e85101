"""Algorithms, policies and q-functions on torch."""
