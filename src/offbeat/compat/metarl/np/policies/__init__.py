"""Policies to subclass."""

from offbeat.compat.metarl.np.policies.policy import Policy

__all__ = ["Policy"]
