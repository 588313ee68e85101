"""`config` and `logger` of the package, and the default device."""

from __future__ import annotations

import logging
import os
from typing import NoReturn

import torch

logger = logging.getLogger("offbeat.compat.skrl")
logger.setLevel(logging.INFO)
if not logger.handlers:
    _handler = logging.StreamHandler()
    _handler.setFormatter(logging.Formatter("[skrl:%(levelname)s] %(message)s"))
    logger.addHandler(_handler)
    logger.propagate = False


class TorchConfig:
    """`config.torch`. key: the seed of `set_seed`, from which agents, memories and environments derive theirs."""

    def __init__(self) -> None:
        self.key = 0
        self._device: str | torch.device | None = None
        self.local_rank, self.rank, self.world_size = (
            int(os.environ.get(name, default))
            for name, default in (("LOCAL_RANK", "0"), ("RANK", "0"), ("WORLD_SIZE", "1"))
        )

    @property
    def is_distributed(self) -> bool:
        """Whether the environment variable WORLD_SIZE is more than 1."""
        return self.world_size > 1

    @property
    def device(self) -> torch.device:
        """The default device: CUDA where there is one, else the CPU."""
        return self.parse_device(self._device)

    @device.setter
    def device(self, device: str | torch.device) -> None:
        self._device = device

    @staticmethod
    def parse_device(device: str | torch.device | None, validate: bool = True) -> torch.device:
        """The device of a name; the default device, with a warning, where the name is wrong or it is not there."""
        default = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        if device is None:
            return default
        try:
            found = torch.device(device)
            if validate and found.type != "cpu":
                torch.zeros(1, device=found)
        except (RuntimeError, AssertionError) as error:
            logger.warning(f"device={device!r} cannot be used ({error}); {default} is used instead")
            return default
        return found


class Config:
    """`config`: only `torch` is here."""

    def __init__(self) -> None:
        self.torch = TorchConfig()

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("jax", "warp"):
            raise AttributeError(
                f"config.{name} is not there yet: offbeat.compat.skrl has PyTorch only; use config.torch"
            )
        raise AttributeError(f"config has no {name!r}; it has torch")


config = Config()


def not_there_yet(name: str, instead: str) -> ImportError:
    """The error for a part of skrl's interface that is missing. instead: what to use."""
    return ImportError(f"{name} is not in offbeat.compat.skrl yet; use {instead}")
