"""Exploration around a policy."""

from offbeat.compat.metarl.np.exploration_policies.add_gaussian_noise import AddGaussianNoise
from offbeat.compat.metarl.np.exploration_policies.add_ornstein_uhlenbeck_noise import AddOrnsteinUhlenbeckNoise
from offbeat.compat.metarl.np.exploration_policies.epsilon_greedy_policy import EpsilonGreedyPolicy
from offbeat.compat.metarl.np.exploration_policies.exploration_policy import ExplorationPolicy

__all__ = ["AddGaussianNoise", "AddOrnsteinUhlenbeckNoise", "EpsilonGreedyPolicy", "ExplorationPolicy"]
