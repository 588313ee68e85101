"""`config` and `logger` of the package, and the default device."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from offbeat.ranks import place

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
        """The default device: CUDA where there is one (that of this rank), else the CPU."""
        return self.parse_device(self._device)

    @device.setter
    def device(self, device: str | torch.device) -> None:
        self._device = device

    @staticmethod
    def parse_device(device: str | torch.device | None, validate: bool = True) -> torch.device:
        """The device of a name; the default device, with a warning, where the name is wrong or it is not there."""
        default = torch.device(f"cuda:{place().local}" if torch.cuda.is_available() else "cpu")
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


class JaxConfig:
    """`config.jax`. key: the random key of `set_seed`, which models are initialised with. It may be set to an integer.

    backend: "numpy" or "jax", for scripts that set it; arrays are JAX's in both cases.
    """

    def __init__(self) -> None:
        self.seed, self.backend = 0, "jax"
        self._key: Any = None
        self._device: Any = None
        self.local_rank, self.rank, self.world_size = (
            int(os.environ.get(name, default))
            for name, default in (("JAX_LOCAL_RANK", "0"), ("JAX_RANK", "0"), ("JAX_WORLD_SIZE", "1"))
        )

    @property
    def is_distributed(self) -> bool:
        """Whether the environment variable JAX_WORLD_SIZE is more than 1."""
        return self.world_size > 1

    @property
    def key(self) -> Any:
        import jax

        if self._key is None:
            self._key = jax.random.PRNGKey(self.seed)
        return self._key

    @key.setter
    def key(self, value: Any) -> None:
        if isinstance(value, int):
            self.seed, self._key = value, None
        else:
            self._key = value

    @property
    def device(self) -> Any:
        """The default device: JAX's first."""
        return self.parse_device(self._device)

    @device.setter
    def device(self, device: Any) -> None:
        self._device = device

    @staticmethod
    def parse_device(device: Any) -> Any:
        """The device of a name such as cpu or cuda:0; JAX's first, with a warning, where it is not there."""
        import jax

        if isinstance(device, jax.Device):
            return device
        default = jax.devices()[0]
        if device is None:
            return default
        kind, _, number = str(device).partition(":")
        try:
            return jax.devices(kind)[int(number or 0)]
        except (RuntimeError, IndexError, ValueError) as error:
            logger.warning(f"device={device!r} cannot be used ({error}); {default} is used instead")
            return default


class Config:
    """`config`: `torch` and `jax`."""

    def __init__(self) -> None:
        self.torch, self.jax = TorchConfig(), JaxConfig()

    def __getattr__(self, name: str) -> NoReturn:
        if name == "warp":
            raise AttributeError("config.warp is not there yet; use config.torch or config.jax")
        raise AttributeError(f"config has no {name!r}; it has torch and jax")


config = Config()


def not_there_yet(name: str, instead: str) -> ImportError:
    """The error for a part of skrl's interface that is missing. instead: what to use."""
    return ImportError(f"{name} is not in offbeat.compat.skrl yet; use {instead}")


@contextlib.contextmanager
def needs_jax(package: str) -> Iterator[None]:
    """Says what to install where JAX or flax is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing not in ("jax", "jaxlib", "flax", "optax"):
            raise
        raise ImportError(
            f"offbeat.compat.skrl.{package} needs {missing}; install it with: pip install 'offbeat[jax]'"
        ) from error
