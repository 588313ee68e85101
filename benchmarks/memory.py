"""Trains tasks that need a memory, with recurrent networks and without: python benchmarks/memory.py (an hour)

The tasks and their settings stand in tests/memory_tasks.py. Finished runs are kept, so an interrupted call continues.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import machine
import report
from contest import HERE
from published import run_to_end

TESTS = HERE.parent / "tests"
sys.path.insert(0, str(TESTS))
import memory_tasks as tasks  # noqa: E402 (it stands in the folder of the tests)

DOCUMENT = HERE.parent / "docs" / "recurrent.md"
EPISODES = 20
Runs = Mapping[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Case:
    """A line of a table: an algorithm with its settings on a task; `words` says which."""

    name: str
    words: str
    algorithm: str
    env: str
    settings: Mapping[str, Any]


WITHOUT_VELOCITY, STACKED, FULL = "memory_tasks:pendulum", "memory_tasks:stacked_pendulum", "Pendulum-v1"
CUE = "memory_tasks:cue"
PENDULUM = (
    Case("sac-gru", "GRU, without velocity", "sac", WITHOUT_VELOCITY, tasks.PENDULUM | tasks.PENDULUM_MEMORY),
    Case("sac-mlp", "MLP, without velocity", "sac", WITHOUT_VELOCITY, tasks.PENDULUM),
    Case("sac-mlp-stacked", "MLP, without velocity, the last 3 observations", "sac", STACKED, tasks.PENDULUM),
    Case("sac-gru-full", "GRU, with velocity", "sac", FULL, tasks.PENDULUM | tasks.PENDULUM_MEMORY),
    Case("sac-mlp-full", "MLP, with velocity", "sac", FULL, tasks.PENDULUM),
)
ROLLOUTS = tasks.CUE_ROLLOUTS | tasks.CUE_ROLLOUTS_MEMORY
CUES = (
    Case("cue-sac-gru", "SAC, GRU", "sac", CUE, tasks.CUE | tasks.CUE_MEMORY),
    Case("cue-sac-mlp", "SAC, MLP", "sac", CUE, tasks.CUE),
    Case("cue-ppo-gru", "PPO, GRU", "ppo", CUE, ROLLOUTS),
    Case("cue-ppo-mlp", "PPO, MLP", "ppo", CUE, tasks.CUE_ROLLOUTS),
    Case("cue-appo-gru", "APPO, GRU", "appo", CUE, ROLLOUTS),
    Case("cue-appo-gru-collectors", "APPO, GRU, 2 collectors", "appo", CUE, ROLLOUTS | tasks.CUE_COLLECTORS),
)


def train(case: Case, seed: int, work: Path) -> dict[str, Any]:
    """Trains one run, unless it is finished already."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / f"memory-{case.name}-{seed}"
    settings = {"env": case.env, "preset": None, "eval_every": case.settings["total_steps"] // 10, **case.settings}
    config = work / f"{path.name}.yaml"
    config.write_text(json.dumps(settings))  # JSON is YAML, too
    flags = {"config": config, "seed": seed, "eval-episodes": EPISODES}
    path_of_modules = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    return {"seed": seed, **run_to_end(path, case.algorithm, flags, {"PYTHONPATH": path_of_modules})}


def table(cases: Sequence[Case], results: Runs, task: str, unit: str, value: Callable[[dict[str, Any]], float]) -> str:
    """The final policies: mean over seeds, and by seed."""
    lines = []
    for case in cases:
        if runs := results.get(case.name):
            values = [value(run) for run in runs]
            spread = f" ± {statistics.stdev(values):,.0f}" if len(values) > 1 else ""
            minutes = statistics.mean(run["wall_seconds"] for run in runs) / 60
            steps, by_seed = f"{case.settings['total_steps']:,}", ", ".join(f"{each:,.0f}" for each in values)
            lines.append([case.words, steps, f"{statistics.mean(values):,.0f}{spread}", by_seed, f"{minutes:.1f}"])
    return report.table([task, "steps", unit, "by seed", "minutes per run"], lines)


def document(results: Runs, where: Mapping[str, Any]) -> str:
    parts = [
        f"{machine.sentence(dict(where))}, torch {torch.__version__}, one thread per run. Final policy, deterministic, "
        f"{EPISODES} episodes per seed."
    ]
    if any(case.name in results for case in PENDULUM):
        parts.append(table(PENDULUM, results, "SAC on Pendulum-v1", "return", lambda run: run["mean_return"]))
    if any(case.name in results for case in CUES):
        parts.append(table(CUES, results, "cue", "right, in %", lambda run: 100 * run["success_rate"]))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=report.names, help="only these cases, comma-separated, such as sac-gru")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of parallel runs")
    parser.add_argument("--work", type=Path, default=HERE.parent / ".results", help="directory for the runs")
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    options = parser.parse_args()
    known = {case.name: case for case in (*PENDULUM, *CUES)}
    if wrong := [name for name in options.only or () if name not in known]:
        raise SystemExit(f"--only {wrong[0]}: there is no such case; use one of {', '.join(known)}")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "memory.json"
    record: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"cases": {}}
    record["settings"] = {case.name: dict(case.settings) for case in known.values()}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        waiting = {
            name: [pool.submit(train, known[name], seed, options.work) for seed in range(options.seeds)]
            for name in options.only or known
        }
        for name, futures in waiting.items():
            record["cases"][name] = [future.result() for future in futures]
            record["machine"] = machine.describe()
            print(f"{name}: {[round(run['mean_return'], 2) for run in record['cases'][name]]}", flush=True)
            file.write_text(json.dumps(record, indent=1) + "\n")
    markdown = document(record["cases"], record["machine"])
    (options.out / "memory.md").write_text(markdown + "\n")
    if options.out == report.RESULTS:
        DOCUMENT.write_text(report.include(DOCUMENT.read_text(), "memory", markdown))
    print(markdown)


if __name__ == "__main__":
    main()
