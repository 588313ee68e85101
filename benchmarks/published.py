"""Compares returns with published figures: python benchmarks/published.py (hours; `make results`)

Trains every task with its preset and five seeds, one run per core at a time, one thread each. Finished runs are kept,
so an interrupted call continues.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import machine
import report
from contest import HERE

DOCUMENT = HERE.parent / "docs" / "results.md"
EPISODES = 20


@dataclass(frozen=True)
class Task:
    """least: the target for the mean over seeds. published: the published figure and its source."""

    algorithm: str
    environment: str
    steps: int
    least: float
    published: str

    @property
    def name(self) -> str:
        return f"{self.algorithm}-{self.environment}"


TASKS = (
    Task("dqn", "CartPole-v1", 50_000, 475, "500 (RL Zoo, one run)"),
    Task("dqn", "Acrobot-v1", 100_000, -100, "-76.6 (RL Zoo, one run)"),
    Task("ppo", "CartPole-v1", 100_000, 475, "500 (RL Zoo, one run)"),
    Task("appo", "CartPole-v1", 100_000, 475, "500 (RL Zoo's PPO, one run)"),
    Task("appo", "Pendulum-v1", 200_000, -250, "-172 at 100,000 (RL Zoo's PPO, one run)"),
    Task("ppo", "Pendulum-v1", 200_000, -250, "-172 at 100,000 (RL Zoo, one run)"),
    Task("sac", "Pendulum-v1", 10_000, -200, "-157 ± 89 at 20,000 (RL Zoo, one run)"),
    Task("td3", "Pendulum-v1", 20_000, -200, "-152 ± 90 (RL Zoo, one run)"),
    Task("ddpg", "Pendulum-v1", 20_000, -200, "-152 ± 94 (RL Zoo, one run)"),
    Task("sac", "InvertedPendulum-v5", 20_000, 1_000, "1000 ± 0 at 10,000 (Tianshou)"),
    Task("td3", "InvertedPendulum-v5", 50_000, 1_000, "1000 ± 0 (its authors)"),
    Task("sac", "Reacher-v5", 30_000, -5, "-4.0 ± 0.2 at 20,000 (Tianshou)"),
    Task("sac", "HalfCheetah-v5", 100_000, 5_500, "6515 ± 514, least 5629 (Tianshou)"),
    Task("td3", "HalfCheetah-v5", 100_000, 4_500, "5514 ± 554, least 4542 (its authors, other settings: see below)"),
)
OF_JAX = (
    *("sac-Pendulum-v1", "sac-InvertedPendulum-v5", "td3-Pendulum-v1", "td3-InvertedPendulum-v5"),
    *("dqn-CartPole-v1", "dqn-Acrobot-v1", "ppo-CartPole-v1", "ppo-Pendulum-v1"),
    *("appo-CartPole-v1", "appo-Pendulum-v1"),
)
"""Tasks that --backend jax trains by default: two of each algorithm."""


def train(task: Task, seed: int, work: Path, collectors: int = 0, backend: str = "torch") -> dict[str, Any]:
    """Trains one run, unless it is finished already: its final evaluation, learning curve and time."""
    name = f"{task.name}-{task.steps}-{seed}" + (f"-collectors-{collectors}" if collectors else "")
    name += f"-{backend}" if backend != "torch" else ""
    flags = {"env": task.environment, "total-steps": task.steps, "seed": seed, "eval-episodes": EPISODES}
    flags |= {"eval-every": task.steps // 10, "backend": backend} | ({"collectors": collectors} if collectors else {})
    return {"seed": seed, **run_to_end(work / name, task.algorithm, flags)}


def run_to_end(
    path: Path, algorithm: str, flags: Mapping[str, Any], variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Runs the command with one thread in `path`, unless that run is finished: the final evaluation, curve and time.

    variables: of the environment, beside those of this process.
    """
    if not finished(path):
        command = [sys.executable, "-m", "offbeat", "train", algorithm]
        more = {"threads": 1, "checkpoint-every": 0, "out": path.parent, "name": path.name}
        for flag, value in {**flags, **more}.items():
            command += [f"--{flag}", str(value)]
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        if path.exists():
            command = [sys.executable, "-m", "offbeat", "resume", str(path)]
        variables = os.environ | limits | dict(variables or {})
        subprocess.run([*command, "--quiet"], check=True, env=variables, stdout=subprocess.DEVNULL)
    summary = json.loads((path / "summary.json").read_text())
    lines = [json.loads(line) for line in (path / "evaluations.jsonl").read_text().splitlines()]
    return {
        "mean_return": summary["evaluation"]["mean_return"],
        "std_return": summary["evaluation"]["std_return"],
        **{key: value for key, value in summary["evaluation"].items() if key == "success_rate"},
        "wall_seconds": summary["wall_seconds"],
        "curve": [[line["step"], statistics.mean(line["returns"])] for line in lines],
    }


def finished(path: Path) -> bool:
    summary = path / "summary.json"
    return summary.exists() and json.loads(summary.read_text())["status"] == "finished"


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    lines = []
    for task in TASKS:
        runs = results.get(task.name, [])
        if not runs:
            continue
        means = [run["mean_return"] for run in runs]
        spread = f" ± {statistics.stdev(means):,.1f}" if len(means) > 1 else ""
        lines.append(
            [
                f"{task.algorithm.upper()}, {task.environment}",
                f"{task.steps:,}",
                f"{statistics.mean(means):,.1f}{spread}",
                ", ".join(f"{mean:,.1f}" for mean in means),
                f"{task.least:,.0f}",
                task.published,
                f"{statistics.mean(run['wall_seconds'] for run in runs) / 60:.1f}",
            ]
        )
    header = ["", "steps", "mean over seeds", "by seed", "target", "published", "minutes per run"]
    return report.table(header, lines)


def machines(found: dict[str, dict[str, Any]]) -> str:
    """What the tasks were trained on, and when: each machine and, after the one with most of them, its tasks."""
    tasks: dict[tuple[Any, ...], list[str]] = {}
    for name, described in found.items():
        tasks.setdefault(tuple(value for key, value in described.items() if key != "date"), []).append(name)
    groups = sorted(tasks.values(), key=len, reverse=True)
    said = [machine.sentence(max((found[name] for name in group), key=lambda each: each["date"])) for group in groups]
    return "; ".join(
        text if index == 0 else f"{', '.join(group)}: {text}"
        for index, (group, text) in enumerate(zip(groups, said, strict=True))
    )


def curves(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draws a panel per task: the mean over seeds as a thick line, each seed as a thin line."""
    from matplotlib.figure import Figure

    shown = [task for task in TASKS if results.get(task.name)]
    columns = min(5, len(shown))
    figure = Figure(figsize=(3.2 * columns, 2.6 * -(-len(shown) // columns)), layout="constrained")
    for index, task in enumerate(shown):
        axes = figure.add_subplot(-(-len(shown) // columns), columns, index + 1)
        runs = results[task.name]
        for run in runs:
            axes.plot(*zip(*run["curve"], strict=True), color="#8d99ae", linewidth=0.8)
        steps = [step for step, _ in runs[0]["curve"]]
        means = [
            statistics.mean(values) for values in zip(*([y for _, y in run["curve"]] for run in runs), strict=True)
        ]
        axes.plot(steps, means, color="#d1495b", linewidth=1.8)
        axes.axhline(task.least, color="#444444", linestyle=":", linewidth=0.8)
        axes.set_title(f"{task.algorithm.upper()}, {task.environment}", fontsize=9)
        axes.tick_params(labelsize=7)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=report.names, help="only these tasks, comma-separated, such as dqn-CartPole-v1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of parallel runs")
    parser.add_argument("--work", type=Path, default=HERE.parent / ".results", help="directory for the runs")
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    options = parser.parse_args()
    known = {task.name: task for task in TASKS}
    if wrong := [name for name in options.only or () if name not in known]:
        raise SystemExit(f"--only {wrong[0]}: there is no such task; use one of {', '.join(known)}")
    tasks = [known[name] for name in options.only or (OF_JAX if options.backend == "jax" else known)]
    called = "published" if options.backend == "torch" else f"published_{options.backend}"
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{called}.json"
    record: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"tasks": {}, "machine": {}}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        waiting = {
            task.name: [
                pool.submit(train, task, seed, options.work, 0, options.backend) for seed in range(options.seeds)
            ]
            for task in tasks
        }
        for name, futures in waiting.items():
            record["tasks"][name] = [future.result() for future in futures]
            record["machine"][name] = machine.describe()
            print(f"{name}: {[round(run['mean_return'], 1) for run in record['tasks'][name]]}", flush=True)
            record["settings"] = {task.name: asdict(task) for task in TASKS}
            file.write_text(json.dumps(record, indent=1) + "\n")
    markdown = (
        f"{machines(record['machine'])}. Final policy, deterministic, {EPISODES} episodes per seed; "
        f"unmodified presets, one thread each.\n\n{table(record['tasks'])}\n\n"
        f"![Learning curves](../benchmarks/results/{called}.png)"
    )
    (options.out / f"{called}.md").write_text(markdown + "\n")
    curves(record["tasks"], options.out / f"{called}.png")
    if options.out == report.RESULTS:
        DOCUMENT.write_text(report.include(DOCUMENT.read_text(), called, markdown))
    print(markdown)


if __name__ == "__main__":
    main()
