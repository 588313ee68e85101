"""Trainers of agents whose arrays are torch's."""

from offbeat.compat.skrl.torch_arrays import TORCH
from offbeat.compat.skrl.trainers.sequential import InTurn
from offbeat.compat.skrl.trainers.step import OneByOne
from offbeat.compat.skrl.trainers.trainer import AnyTrainer


class Trainer(AnyTrainer):
    """To subclass. agents: one, or several that share the environments; scopes: how many each of them has."""

    arrays = TORCH


class SequentialTrainer(InTurn, Trainer):
    """Lets agents act and learn one after the other in each step."""


class StepTrainer(OneByOne, Trainer):
    """Makes one step in each call of `train` or `eval`. Timesteps are counted from 1."""
