"""Keeps file descriptors 0, 1 and 2 reserved for the standard streams."""

from __future__ import annotations

import os

STANDARD = range(3)


def occupy_standard() -> None:
    """Opens the null device for each standard stream that is closed (`>&-`).

    The system gives the lowest free descriptor to the next file. Otherwise that could be shared memory, and prints of a
    library or a child process would overwrite it.
    """
    for number in STANDARD:
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:  # another thread closed a lower descriptor in between
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)  # like the shell's streams, which children inherit
