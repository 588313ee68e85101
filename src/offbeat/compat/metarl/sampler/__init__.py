"""Sampling paths from environments."""

from offbeat.compat.metarl.sampler.off_policy_vectorized_sampler import OffPolicyVectorizedSampler
from offbeat.compat.metarl.sampler.worker_factory import WorkerFactory

__all__ = ["OffPolicyVectorizedSampler", "WorkerFactory"]
