"""Makes the backend that a run's settings ask for; each is imported only when it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from offbeat.learn.backend import Backend
from offbeat.types import EnvSpec


def make_backend(algorithm: Any, config: Any, spec: EnvSpec, rng: np.random.Generator) -> Backend:
    """The algorithm's state and updates. rng: first weights. A module that has `make_backend` makes its own."""
    from offbeat.learn.torch import TorchBackend

    run, module = config.run, algorithm.module("torch", spec)
    if hasattr(module, "make_backend"):
        own_backend: Backend = module.make_backend(config, spec, rng)
        return own_backend
    own = {"device": run.compute.device, "precision": run.compute.precision}
    of_record = {"acts_with": algorithm.acts_with, "autograd": not algorithm.explicit}
    return TorchBackend(module, config.learner, spec, rng=rng, **own, **of_record)


@contextmanager
def learner_threads(count: int) -> Iterator[None]:
    """Sets the learner's threads during a run. NumPy gets one: its idle ones would spin on cores that torch needs."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with ThreadpoolController().select(internal_api="openblas").limit(limits=1):
            yield
    finally:
        torch.set_num_threads(before)
