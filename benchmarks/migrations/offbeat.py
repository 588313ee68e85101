"""The script under offbeat.compat.skrl, as it is."""

from __future__ import annotations

import torch

import offbeat
from migrations.script import OURS, Script


class Contestant:
    setting = "the script as it is (`offbeat.compat.skrl`)"

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.versions = {"offbeat": offbeat.__version__, "torch": torch.__version__}
        self.timesteps_per_second = Script(OURS).timesteps_per_second
