"""Agents, by framework."""
