"""Preprocessors, by framework."""
