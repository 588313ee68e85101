"""sbx: Stable-Baselines3's interface, the update in JAX; all updates of one call are one compiled loop."""

from __future__ import annotations

from typing import Any

import jax
import sbx

from learners import stable_baselines3


class Contestant(stable_baselines3.Contestant):
    setting = "all updates of a call in one compiled loop"

    def __init__(self, threads: int, capacity: int, shape: dict[str, Any]) -> None:
        self.versions = {"sbx": sbx.__version__, "jax": jax.__version__}
        self._make(getattr(sbx, shape["algorithm"].upper()), capacity, shape)
