"""Algorithms, each a subclass of OffPolicyRLAlgorithm."""

from offbeat.compat.metarl.torch.algos.ddpg import DDPG
from offbeat.compat.metarl.torch.algos.dqn import DQN

__all__ = ["DDPG", "DQN"]
