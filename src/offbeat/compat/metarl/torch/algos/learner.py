"""Offbeat's learner behind an algorithm: the given networks, the given buffer, one `Training`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from offbeat import settings as settings_module
from offbeat.compat.metarl.experiment.deterministic import generator, get_seed
from offbeat.compat.metarl.torch.algos.buffer_experience import BufferExperience
from offbeat.compat.metarl.torch.algos.given_optimiser import GivenOptimiser
from offbeat.errors import UsageError
from offbeat.run.training import Training
from offbeat.types import EnvSpec, Metrics


def make_training(algorithm: Any, algo: Any, spec: EnvSpec, settings: Mapping[str, Any]) -> Training:
    """The learner of one of Offbeat's algorithms, which draws from the algorithm's replay buffer.

    algorithm: its name, or a record.
    """
    seed = get_seed()
    config = settings_module.make_config(
        algorithm,
        {
            "env": spec.name,
            "seed": int(generator("learner").integers(2**31)) if seed is None else seed,
            "gamma": algo.discount,
            "batch_size": algo.buffer_batch_size,
            "replay": partial(BufferExperience, algo.replay_buffer, algo.env_spec, spec),
            **settings,
        },
    )
    return Training(config, spec, has_end=False, one_thread=False)


def set_optimiser(training: Training, group: str, optimiser: GivenOptimiser | None) -> None:
    """Replaces the optimiser of a network, where one of torch's own classes was given for it."""
    if optimiser is None:
        return
    state: Any = training.learner.backend.state  # type: ignore[attr-defined]
    attribute = f"{group}_optimiser" if hasattr(state, f"{group}_optimiser") else "optimiser"
    setattr(state, attribute, optimiser.on(getattr(state, group).flat))


def learn(training: Training, count: int) -> Metrics:
    """Makes `count` updates; returns their mean metrics."""
    training.learn(count)
    return training.learner.drain()


def learn_from(training: Training, samples: Mapping[str, Any]) -> Metrics:
    """One update with these transitions."""
    experience: Any = training.experience
    batches = experience.batches([samples])
    count, *size = training.learner.backend.noise_shape  # none, or for each row of a batch
    shape = (1, batches.rows.shape[1] if size else count, *size)
    training.learner.update(batches, training.streams.noise.standard_normal(shape, np.float32))
    return training.learner.drain()


def check_module(name: str, module: Any, inputs: list[int], width: int) -> None:
    """UsageError for what is no module, or does not give (B, width). inputs: their sizes. name: of the argument."""
    if not isinstance(module, nn.Module):
        raise UsageError(f"{name} is a {type(module).__name__}; this algorithm needs a torch.nn.Module")
    like = next(module.parameters(), None)
    if like is None:
        raise UsageError(f"{name} has no parameter that could learn; use a module that has some")
    training, module.training = module.training, False
    try:
        with torch.no_grad():
            out = module(*(like.new_zeros(2, size) for size in inputs))
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        raise UsageError(f"{name} raised {type(error).__name__} on two rows of zeros: {error}") from error
    finally:
        module.training = training
    shape = tuple(out.shape) if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
    if shape != (2, width):
        raise UsageError(f"{name} gave {shape} for 2 observations; it must give (2, {width})")
