"""The classes that algorithms are made from."""

from offbeat.compat.metarl.np.algos.off_policy_rl_algorithm import OffPolicyRLAlgorithm
from offbeat.compat.metarl.np.algos.rl_algorithm import RLAlgorithm

__all__ = ["OffPolicyRLAlgorithm", "RLAlgorithm"]
