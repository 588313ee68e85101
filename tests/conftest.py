"""One thread per test process: those of pytest share the machine, and small matrices gain nothing from more."""

import gc
import os
from pathlib import Path

from hypothesis import HealthCheck, settings

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ["WANDB_MODE"] = "offline"  # no test reaches for the network

# Many tests compile the same programs in JAX. Each is compiled once, and kept for further runs until `make clean`.
_PROGRAMS = Path(__file__).parent.parent / ".pytest_cache" / "programs"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_PROGRAMS)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# How long an example takes depends on the machine, so no test fails because of it.
settings.register_profile("offbeat", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("offbeat")


def pytest_collection_finish() -> None:
    """What the test files hold stays until the end, so no garbage collection needs to look at it."""
    gc.collect()
    gc.freeze()
