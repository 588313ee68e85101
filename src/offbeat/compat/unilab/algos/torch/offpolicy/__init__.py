"""Off-policy learning of SAC and TD3 learners: the runner, and how a learner object runs on our core."""

from offbeat.compat.unilab.algos.torch.offpolicy.runner import OffPolicyRunner

__all__ = ["OffPolicyRunner"]
