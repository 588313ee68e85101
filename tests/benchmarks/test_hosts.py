"""The model of many hosts reproduces the published measurement, and its parts hold up what they should."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MEASURED = BENCHMARKS / "results" / "ray_collectors.json"


@pytest.fixture(scope="module")
def hosts() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        location = importlib.util.spec_from_file_location("modelled_hosts", BENCHMARKS / "hosts.py")
        assert location is not None
        assert location.loader is not None
        module = importlib.util.module_from_spec(location)
        sys.modules["modelled_hosts"] = module
        location.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


def test_the_model_reproduces_the_measurement_of_one_machine(
    hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hosts.py", "--out", str(tmp_path)])
    hosts.main()  # ends with an error if a case is more than 15% off
    found = json.loads((tmp_path / "hosts.json").read_text())
    assert [each["case"] for each in found["reproduced"]] == list(json.loads(MEASURED.read_text())["cases"])
    assert all(abs(each["error"]) <= 0.15 for each in found["reproduced"])
    assert all(rows[-1]["hosts"] == 100 for rows in found["grown"].values())
    assert len(re.findall(r"\| sac, 1 environment \| [\d,]+ \| [\d,]+ \| [+-]\d+% \|", capsys.readouterr().out)) == 1
    assert "<svg" in (tmp_path / "hundred_hosts.svg").read_text()


def test_a_measurement_that_the_model_cannot_explain_is_an_error(
    hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads(MEASURED.read_text())
    for case in record["cases"].values():
        case["processor_us_per_row"]["processes"] *= 2
    (tmp_path / "other.json").write_text(json.dumps(record))
    monkeypatch.setattr(sys, "argv", ["hosts.py", "--out", str(tmp_path), "--measured", str(tmp_path / "other.json")])
    with pytest.raises(SystemExit, match=r"the model is [3-7]\d% away from the measurement"):
        hosts.main()


def plan(hosts: Any, **changes: Any) -> Any:
    """Two hosts with four collectors each, of which nothing but stepping takes time."""
    nothing = {"remote": lambda size: 0.0, "ingest": lambda size: 0.0, "bandwidth": 1e15, "latency": 0.0}
    numbers = {"step": 1e-3, "rows": 100, "row_bytes": 100, "in_flight": 2, "weights_bytes": 0, "publications": 0.0}
    return replace(hosts.Plan(hosts=2, collectors=4, **numbers, **nothing), **changes)


def test_collectors_that_nothing_holds_up_make_what_they_can(hosts: Any) -> None:
    outcome = hosts.simulate(plan(hosts))
    assert outcome.rows == pytest.approx(8_000, rel=0.02)
    assert outcome.limit == "collectors"


@pytest.mark.parametrize(
    ("changes", "rows", "limit"),
    [
        ({"ingest": lambda size: 0.05}, 2_000, "learner's ingest"),  # 20 chunks of 100 rows a second
        ({"bandwidth": 1e5}, 1_000, "network in"),
        ({"bandwidth": 1e6, "weights_bytes": 1e6, "publications": 50.0}, None, "network out"),
        ({"in_flight": 1, "latency": 0.05}, 4_000, "collectors"),  # as long on the way as at work
    ],
)
def test_each_part_holds_the_others_up_when_it_is_slow(hosts: Any, changes: Any, rows: float, limit: str) -> None:
    outcome = hosts.simulate(plan(hosts, **changes))
    assert outcome.limit == limit
    if rows is not None:
        assert outcome.rows == pytest.approx(rows, rel=0.1)
    assert outcome.rows < 7_000


def test_bytes_of_a_row_are_those_of_the_schema() -> None:
    """As docs/ray.md gives them: observations, actions, reward, next observations, and 16 bytes beside them."""
    from offbeat.envs import make_vector
    from offbeat.types import Schema

    spec = make_vector("Pendulum-v1", 1).spec
    assert Schema.transitions(spec).row.itemsize == 4 * (2 * 3 + 1 + 1) + 16
    assert json.loads(MEASURED.read_text())["cases"]["sac, 1 environment"]["bytes_per_row"] == 4 * (2 * 17 + 6 + 1) + 16


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: offbeat[ray]")
def test_both_kinds_of_collectors_are_measured_in_turns(hosts: Any, tmp_path: Path) -> None:
    quick = ["--rounds", "2", "--seconds", "0.3", "--calls", "20", "--only", "1 environment"]
    command = [sys.executable, str(BENCHMARKS / "ray_collectors.py"), *quick, "--out", str(tmp_path)]
    subprocess.run(command, check=True, timeout=600)
    record = json.loads((tmp_path / "ray_collectors.json").read_text())
    assert list(record["cases"]) == ["sac, 1 environment", "sac, 1 environment, weights"]
    for case in record["cases"].values():
        assert [score["name"] for score in case["scores"]] == ["processes", "ray"]
        assert all(len(score["rounds"]) == 2 and min(score["rounds"]) > 0 for score in case["scores"])
    assert len(hosts.reproduce(record)) == 2
