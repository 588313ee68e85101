"""Offbeat's APPO with `--backend jax`, otherwise as in learners/offbeat_appo.py."""

from __future__ import annotations

import jax

import offbeat
from learners import offbeat_appo


class Contestant(offbeat_appo.Contestant):
    def __init__(self, threads: int, observation: int, action: int) -> None:
        super().__init__(threads, observation, action, backend="jax")
        self.versions = {"offbeat": offbeat.__version__, "jax": jax.__version__}
        self.setting += ", with --backend jax"
