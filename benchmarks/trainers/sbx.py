"""sbx's `learn`: Stable-Baselines3's loop, the update in JAX, one update per compiled call."""

from __future__ import annotations

import jax
import sbx

from trainers import stable_baselines3


class Contestant(stable_baselines3.Contestant):
    algorithm = sbx.SAC

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.versions = {"sbx": sbx.__version__, "jax": jax.__version__}
