"""Agents: `Agent` to subclass, and its settings."""

from offbeat.compat.skrl.framework import needs_jax

with needs_jax("agents.jax"):
    from offbeat.compat.skrl.agents.configuration import AgentCfg, ExperimentCfg
    from offbeat.compat.skrl.agents.jax.agent import Agent

__all__ = ["Agent", "AgentCfg", "ExperimentCfg"]
