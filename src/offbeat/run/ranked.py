"""Several learners in one run: who this process is, and its own share of the settings.

num_envs, collectors and capacity are those of each rank. batch_size is that of an update of all ranks, to which each
contributes an equal part. Steps and updates are counted over all ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from offbeat import flat
from offbeat.algorithms.configs import Config
from offbeat.errors import RunInterrupted, UsageError
from offbeat.ranks import ALONE, Place, Ranks, own_seed, part_of_batch, place
from offbeat.run.training import Training
from offbeat.types import EnvSpec

START = "torchrun --nproc-per-node {} your_script.py"


def join(config: Config, given: Mapping[str, Any] | None = None) -> tuple[Config, Ranks]:
    """The ranks that this process belongs to, and the config with their number.

    given: the settings that the user gave for this session, where the others are recorded ones.
    """
    here, learners = place(), config.run.compute.learners
    if here.size == 1:
        if learners > 1:
            raise UsageError(
                f"learners={learners} needs {learners} processes, but this script is one: start it with "
                f"`{START.format(learners)}`, use the command (offbeat train --learners {learners}), or set learners=1"
            )
        return config, ALONE
    asked = learners if given is None else given.get("learners", here.size)
    if asked not in (here.size, 1) or (given is not None and asked != here.size):
        raise UsageError(
            f"learners={asked}, but torchrun started {here.size} processes: leave learners out, or use "
            f"--nproc-per-node {asked}"
        )
    if config.run.compute.backend != "torch":
        refuse_backend(config.run.compute.backend, here.size)
    part_of_batch(flat.values(config.learner).get("batch_size", 0), here.size)  # before a rank waits for another
    return replace(config, run=flat.overlay(config.run, {"learners": here.size})), process_ranks()


def refuse_backend(backend: str, learners: int) -> None:
    raise UsageError(
        f"learners={learners} needs backend=torch: {backend} divides each batch among the devices of one process, with "
        f"devices={learners} and one learner (docs/jax.md)"
    )


_RANKS: list[Ranks] = []


def process_ranks() -> Ranks:
    """The ranks of this process, which joins them once."""
    if not _RANKS:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # our own error says it when a connection is lost
        from offbeat.learn.torch_ranks import TorchRanks

        _RANKS.append(TorchRanks.join(place()))
    return _RANKS[0]


@contextmanager
def leaving_on_error(ranks: Ranks) -> Iterator[None]:
    """Leaves the other ranks where this one fails, so that they notice at once, even if its process goes on."""
    try:
        yield
    except RunInterrupted:
        raise
    except BaseException:
        if ranks in _RANKS:
            _RANKS.remove(ranks)
            ranks.close()
        raise


def own_config(config: Config, ranks: Ranks, seed: int | None = None) -> Config:
    """The settings of this rank: its part of the batch, its seed, its device. seed: where a checkpoint has one."""
    seed = own_seed(config.run.start.seed, ranks.rank) if seed is None else seed
    if ranks.size == 1:
        return (
            config if seed == config.run.start.seed else replace(config, run=flat.overlay(config.run, {"seed": seed}))
        )
    changes: dict[str, Any] = {"seed": seed, "device": own_device(config.run.compute.device, place())}
    if ranks.rank:
        changes |= {"logger": (), "quiet": True, "trace": False}
    learner, whole = config.learner, flat.values(config.learner)
    if "batch_size" in whole:
        learner = flat.overlay(learner, {"batch_size": part_of_batch(whole["batch_size"], ranks.size)})
    return replace(config, run=flat.overlay(config.run, changes), learner=learner)


def own_device(device: str, here: Place) -> str:
    """On a GPU, each rank of a machine has one of its own."""
    if device not in ("auto", "cuda"):
        return device
    from offbeat.learn.torch_ranks import local_device

    return local_device(device, here)


def training_of_rank(config: Config, spec: EnvSpec, has_end: bool) -> Training:
    """The training of this process, alone or one of several ranks, for a loop of the user's own."""
    config, ranks = join(config)
    own = own_config(config, ranks)
    return Training(own, spec, has_end=has_end, one_thread=False, ranks=ranks, recorded=config)
