"""Environments that raise, end their process, hang or give NaN, to train on. A file remembers what was done already."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

_made = 0


class Faulty(gymnasium.Env[Any, Any]):
    """Episodes of 20 steps. At step `at`, and as often as `times` says over all processes, it does what `how` says.

    how: "raise", "exit", "sleep" (which a signal ends), "deaf" (which none but SIGKILL ends), "nan".
    once: the file that counts. broken: from when this file is there, every process ends at the next step.
    only: of a process's environments, the first made (0) or all others (1).
    helper: starts a process, and one that is orphaned in a session of its own; writes their pids beside its own.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(
        self,
        how: str,
        once: str,
        at: int = 7,
        times: int = 1,
        broken: str | None = None,
        only: int | None = None,
        helper: str | None = None,
    ) -> None:
        global _made
        if only is not None and _made != only:
            times = 0
        _made = min(_made + 1, 1)
        if helper is not None:
            started = subprocess.Popen(["sleep", "600"])
            with open(helper, "a") as file:
                file.write(f"{started.pid} {os.getpid()}\n")
            orphan = f"sleep 600 & echo $! {os.getpid()} >> '{helper}'"
            subprocess.run(["sh", "-c", orphan], start_new_session=True, check=True)
        self._broken = None if broken is None else Path(broken)
        self._how, self._once, self._at, self._times, self._step = how, Path(once), at, times, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        if self._broken is not None and self._broken.exists():
            os._exit(7)
        observation = np.full(2, self._step / 20, np.float32)
        done = self._once.stat().st_size if self._once.exists() else 0
        if self._step == self._at and done < self._times:
            with self._once.open("ab") as file:
                file.write(b".")
            if self._how == "raise":
                raise RuntimeError("the motor is gone")
            if self._how == "exit":
                os._exit(7)
            if self._how == "deaf":
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
            if self._how in ("deaf", "sleep"):
                time.sleep(600)
            observation[:] = np.nan
        return observation, 1.0, False, self._step == 20, {}


def make(**kwargs: Any) -> Faulty:
    return Faulty(**kwargs)
