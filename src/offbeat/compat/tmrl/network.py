"""Parameters for a network, and their defaults: on one machine some must agree, and the others have no effect."""

from __future__ import annotations

import warnings
from typing import Any

from offbeat.errors import UsageError

PORT, PASSWORD = 55_555, "YourRandomPasswordHere"
LOCAL_PORT_SERVER, LOCAL_PORT_TRAINER, LOCAL_PORT_WORKER = 55_556, 55_557, 55_558
HEADER_SIZE, BUFFER_SIZE, HOSTNAME = 12, 536_870_912, "default"
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "local_port": (LOCAL_PORT_SERVER, LOCAL_PORT_WORKER),
    "local_com_port": (LOCAL_PORT_TRAINER,),
    "keys_dir": (None,),
    "hostname": (HOSTNAME,),
}


def read_protocol(header_size: int, security: str | None) -> dict[str, Any]:
    """What a server and those who connect to it must have in common, besides the password."""
    if isinstance(header_size, bool) or not isinstance(header_size, int) or header_size < 1:
        raise UsageError(f"header_size={header_size!r} is out of range: it must be a whole number, at least 1")
    if security not in (None, "TLS"):
        raise UsageError(f'security={security!r} is not supported; pass "TLS" or None')
    if security is not None:
        warnings.warn(
            f"security={security!r} encrypts nothing here: samples and models stay on this machine, where only "
            "processes of the same user have access; a network arrives with the remote workers",
            stacklevel=3,
        )
    return {"header_size": header_size, "security": security}


def warn_unused(**given: Any) -> None:
    """Warns for each parameter that has another value than its default."""
    for name, value in given.items():
        if value not in _DEFAULTS[name]:
            warnings.warn(
                f"{name}={value!r} has no effect: it is for a network, which arrives with the remote workers; on one "
                "machine, only processes of the same user have access",
                stacklevel=3,
            )
