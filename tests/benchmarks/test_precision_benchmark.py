"""The benchmark of precisions measures each one, and compares it with float32."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_precision_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the script sets it
    monkeypatch.setattr("offbeat.processor.flags", frozenset)
    threads, script = torch.get_num_threads(), importlib.import_module("precision")
    monkeypatch.setattr(script, "SECONDS", 1e-4)
    shape = {"algorithm": "sac", "observation": 3, "action": 1, "hidden": [4], "batch": 4}
    try:
        found = script.measure(shape, tuple(script.KINDS), 3, 1_000)
    finally:
        torch.set_num_threads(threads)
    assert found.keys() == script.KINDS.keys()
    assert all(len(each) == 3 and min(each) > 0 for each in found.values())
    assert script.table({"float32": [2.0, 4.0], "bfloat16": [1.0, 2.0]}).splitlines()[-1].endswith("| 2.00 x |")
