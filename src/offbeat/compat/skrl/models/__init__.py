"""Models, by framework."""
