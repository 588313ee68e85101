"""Defaults of the parameters for a network, which do nothing on one machine: another value is named in a warning."""

from __future__ import annotations

import warnings
from typing import Any

PORT, PASSWORD = 55_555, "YourRandomPasswordHere"
LOCAL_PORT_SERVER, LOCAL_PORT_TRAINER, LOCAL_PORT_WORKER = 55_556, 55_557, 55_558
HEADER_SIZE, BUFFER_SIZE, HOSTNAME = 12, 536_870_912, "default"
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "local_port": (LOCAL_PORT_SERVER, LOCAL_PORT_WORKER),
    "local_com_port": (LOCAL_PORT_TRAINER,),
    "header_size": (HEADER_SIZE,),
    "security": (None,),
    "keys_dir": (None,),
    "hostname": (HOSTNAME,),
}


def warn_unused(**given: Any) -> None:
    """Warns for each parameter that has another value than its default."""
    for name, value in given.items():
        if value not in _DEFAULTS[name]:
            warnings.warn(
                f"{name}={value!r} has no effect: it is for a network, which arrives with the remote workers; on one "
                "machine, only processes of the same user have access",
                stacklevel=3,
            )
