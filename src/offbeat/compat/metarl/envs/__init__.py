"""Environments and their spec."""

from offbeat.compat.metarl.envs.env_spec import EnvSpec
from offbeat.compat.metarl.envs.metarl_env import MetaRLEnv, normalize

__all__ = ["EnvSpec", "MetaRLEnv", "normalize"]
