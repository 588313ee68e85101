"""Wrappers of environments, by framework."""
