"""File descriptors 0, 1 and 2: what they stand for must never be the file of somebody else."""

from __future__ import annotations

import os

STANDARD = range(3)


def occupy_standard() -> None:
    """Opens the null device in the place of a standard stream that is closed (`>&-`).

    The system gives the lowest free number to the next file. Without this, that may be shared memory, and whatever a
    library or a child process prints is written into it.
    """
    for number in STANDARD:
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:  # another thread has closed something meanwhile
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)  # as the shell's own streams are: children get it, too
