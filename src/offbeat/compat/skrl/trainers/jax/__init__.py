"""Trainers: `Trainer` to subclass, and two of them; skrl has no parallel one for JAX."""

from typing import Any

from offbeat.compat.skrl.framework import needs_jax, not_there_yet

with needs_jax("trainers.jax"):
    from offbeat.compat.skrl.trainers.jax.trainer import SequentialTrainer, StepTrainer, Trainer
    from offbeat.compat.skrl.trainers.sequential import SequentialTrainerCfg
    from offbeat.compat.skrl.trainers.step import StepTrainerCfg
    from offbeat.compat.skrl.trainers.trainer import TrainerCfg

__all__ = ["SequentialTrainer", "SequentialTrainerCfg", "StepTrainer", "StepTrainerCfg", "Trainer", "TrainerCfg"]


def __getattr__(name: str) -> Any:
    if name in ("ParallelTrainer", "ParallelTrainerCfg"):
        raise not_there_yet(f"{name} for JAX", "SequentialTrainer, or the PyTorch classes")
    raise AttributeError(f"offbeat.compat.skrl.trainers.jax has no {name!r}; it has {', '.join(__all__)}")
