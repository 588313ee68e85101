"""Trainers: `Trainer` to subclass, and three of them."""

from offbeat.compat.skrl.trainers.torch.parallel import ParallelTrainer, ParallelTrainerCfg
from offbeat.compat.skrl.trainers.torch.sequential import SequentialTrainer, SequentialTrainerCfg
from offbeat.compat.skrl.trainers.torch.step import StepTrainer, StepTrainerCfg
from offbeat.compat.skrl.trainers.torch.trainer import Trainer, TrainerCfg

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
