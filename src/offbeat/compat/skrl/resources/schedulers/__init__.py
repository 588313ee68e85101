"""Learning-rate schedulers, by framework."""
