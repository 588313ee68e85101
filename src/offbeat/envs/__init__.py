"""Environments: creating and checking them. Gymnasium is imported only when an environment is created."""

from offbeat.envs.check import Finding, check_env
from offbeat.envs.make import is_vector_env, make_vector
from offbeat.envs.vector import Vector

__all__ = ["Finding", "Vector", "check_env", "is_vector_env", "make_vector"]
