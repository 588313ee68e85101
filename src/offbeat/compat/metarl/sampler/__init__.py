"""Sampling paths from environments."""

from offbeat.compat.metarl.sampler.off_policy_vectorized_sampler import OffPolicyVectorizedSampler

__all__ = ["OffPolicyVectorizedSampler"]
