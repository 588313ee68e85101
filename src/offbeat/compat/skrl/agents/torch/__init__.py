"""Agents: `Agent` to subclass, and its settings."""

from offbeat.compat.skrl.agents.torch.agent import Agent
from offbeat.compat.skrl.agents.torch.configuration import AgentCfg, ExperimentCfg

__all__ = ["Agent", "AgentCfg", "ExperimentCfg"]
