"""Policies."""

from offbeat.compat.metarl.torch.policies.policy import DeterministicMLPPolicy, DiscreteQfDerivedPolicy, Policy

__all__ = ["DeterministicMLPPolicy", "DiscreteQfDerivedPolicy", "Policy"]
