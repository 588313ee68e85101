"""One thread per test process: two workers share the machine, and small matrices gain nothing from more."""

import os

from hypothesis import HealthCheck, settings

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ["WANDB_MODE"] = "offline"  # no test reaches for the network

# How long an example takes depends on the machine, so no test fails because of it.
settings.register_profile("offbeat", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("offbeat")
