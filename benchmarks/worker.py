"""Runs one contestant in its own process: python benchmarks/worker.py MODULE THREADS

Reads requests as JSON lines from stdin and answers each with one JSON line on stdout. The module has a class
`Contestant`; the first request constructs it, each further request calls one of its methods. This file imports only the
standard library, because contestants have different virtual environments.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def limit_threads(threads: int) -> None:
    """Limits cores and threads, equally for every contestant; call it before importing libraries with thread pools."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"


def calls_per_second(
    method: Callable[..., Any], arguments: list[Any], seconds: float, finish: Callable[[], None] | None = None
) -> float:
    """Calls `method` repeatedly for at least `seconds`; returns calls per second.

    finish: waits for work that a call left running, within the measured time.
    """
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        method(*arguments)
        calls += 1
    if finish is not None:
        finish()
    return calls / (time.perf_counter() - start)


def serve(module: str) -> None:
    """Answers requests until stdin ends. Output of the contestant goes to stderr, so stdout has only answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contestant: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if contestant is None:
                contestant = importlib.import_module(module).Contestant(**request["make"])
                answer = {"versions": contestant.versions, "setting": contestant.setting}
            else:
                method = getattr(contestant, request["method"])
                seconds, arguments = request["seconds"], request["arguments"]
                finish = getattr(contestant, "finish", None)
                answer = method(*arguments) if seconds is None else calls_per_second(method, arguments, seconds, finish)
            answers.write(json.dumps({"answer": answer}) + "\n")
        except Exception:  # reported to the parent with its traceback, which raises it there
            answers.write(json.dumps({"error": traceback.format_exc()}) + "\n")
        answers.flush()


if __name__ == "__main__":
    limit_threads(int(sys.argv[2]))
    serve(sys.argv[1])
