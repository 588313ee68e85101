"""Trainers: `Trainer` to subclass, and three of them."""

from offbeat.compat.skrl.trainers.sequential import SequentialTrainerCfg
from offbeat.compat.skrl.trainers.step import StepTrainerCfg
from offbeat.compat.skrl.trainers.torch.parallel import ParallelTrainer, ParallelTrainerCfg
from offbeat.compat.skrl.trainers.torch.trainer import SequentialTrainer, StepTrainer, Trainer
from offbeat.compat.skrl.trainers.trainer import TrainerCfg

__all__ = [
    "ParallelTrainer",
    "ParallelTrainerCfg",
    "SequentialTrainer",
    "SequentialTrainerCfg",
    "StepTrainer",
    "StepTrainerCfg",
    "Trainer",
    "TrainerCfg",
]
