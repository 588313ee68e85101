"""Agents: `Agent` to subclass, and its settings."""

from offbeat.compat.skrl.agents.configuration import AgentCfg, ExperimentCfg
from offbeat.compat.skrl.agents.jax.agent import Agent

__all__ = ["Agent", "AgentCfg", "ExperimentCfg"]
