"""Makes the backend that a run's settings ask for; each is imported only when it is used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from offbeat.algorithms.configs.groups import recurrence_of
from offbeat.errors import UsageError
from offbeat.learn.backend import Backend
from offbeat.types import EnvSpec

BACKENDS = ("torch", "jax")


def make_backend(algorithm: Any, config: Any, spec: EnvSpec, rng: np.random.Generator) -> Backend:
    """The algorithm's state and updates. rng: first weights. A module that has `make_backend` makes its own."""
    compute = config.run.compute
    if compute.backend == "jax":
        _check_jax(config)
    module = algorithm.module(compute.backend, spec)
    if hasattr(module, "make_backend"):
        own_backend: Backend = module.make_backend(config, spec, rng)
        return own_backend
    own: dict[str, Any] = {"device": compute.device, "precision": compute.precision, "acts_with": algorithm.acts_with}
    if compute.backend == "jax":
        from offbeat.learn.jax import JaxBackend

        several = {"devices": compute.devices, "scheduled": tuple(algorithm.scheduled)}
        return JaxBackend(module, config.learner, spec, rng=rng, **own, **several)
    from offbeat.learn.torch import TorchBackend

    own |= {"autograd": not algorithm.explicit, "tf32": compute.tf32}
    return TorchBackend(module, config.learner, spec, rng=rng, **own)


def check_installed(backend: str) -> None:
    """Raises UsageError without JAX, which is an extra."""
    if backend == "jax":
        try:
            import jax  # noqa: F401
        except ImportError as error:
            raise UsageError(f"backend=jax needs JAX: pip install 'offbeat[jax]' ({error})") from error


def _check_jax(config: Any) -> None:
    """Raises UsageError without JAX, and for settings that only torch has."""
    compute = config.run.compute
    if compute.precision not in ("float32", "float64"):
        raise UsageError(
            f"precision={compute.precision} needs backend=torch; JAX has float32 and float64, and computes float32 "
            "products on a GPU or TPU as jax_default_matmul_precision says"
        )
    if compute.tf32:
        raise UsageError("tf32=True is for backend=torch; for JAX set jax_default_matmul_precision, and leave tf32 out")
    check_installed("jax")
    optimisation = getattr(config.learner, "optimisation", None)
    for name, default in (("compile", "off"), ("gradients", "auto")):
        if (value := getattr(optimisation, name, default)) != default:
            raise UsageError(
                f"{name}={value} is for backend=torch: JAX compiles every update as a whole; leave {name} out"
            )
    devices, replay = config.run.compute.devices, getattr(config.learner, "replay", None)
    if (network := recurrence_of(config.learner).network) != "mlp" and devices > 1:
        raise UsageError(
            f"devices={devices} divides the rows of batches, but network={network!r} learns from whole sequences; use "
            "devices=1"
        )
    if replay is not None and replay.batch_size % devices:
        nearest = max(1, round(replay.batch_size / devices)) * devices
        raise UsageError(
            f"batch_size={replay.batch_size} cannot be divided among devices={devices} equally; use batch_size="
            f"{nearest}, or other devices"
        )


@contextmanager
def learner_threads(count: int, backend: str = "torch") -> Iterator[None]:
    """Sets the learner's threads during a run. NumPy gets one: its idle ones would spin on cores that it needs."""
    own = _jax_threads(count) if backend == "jax" else _torch_threads(count)
    with own, ThreadpoolController().select(internal_api="openblas").limit(limits=1):
        yield


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _jax_threads(count: int) -> Iterator[None]:
    """JAX reads the number when its first computation starts, and keeps it as long as the process lives."""
    name = "PJRT_NPROC"
    before = os.environ.get(name)
    os.environ.setdefault(name, str(count))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
