"""Spaces, by framework."""
