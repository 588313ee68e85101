"""The script under skrl itself."""

from __future__ import annotations

import skrl
import torch

from migrations.script import Script


class Contestant:
    setting = "the script with skrl's imports"

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.versions = {"skrl": skrl.__version__, "torch": torch.__version__}
        self.timesteps_per_second = Script("from skrl.").timesteps_per_second
