"""Trainers, by framework."""
