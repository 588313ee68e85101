"""Plots the learning curve of a run from its logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from offbeat.errors import OffbeatError
from offbeat.observe.jsonl import read
from offbeat.yamltext import load_yaml

EVALUATION, TRAINING, RANDOM = "#1f5fa8", "#e08a2e", "#6b4e9b"


def learning_curve(run_dir: Path | str, path: Path | str | None = None, random_return: float | None = None) -> Path:
    """Plots evaluations (mean and range over episodes) and training returns over environment steps.

    path: the image file, by default learning_curve.png in the run's directory. random_return: the mean return of a
    random policy, plotted as a dashed line. Returns the path of the image.
    """
    run_dir = Path(run_dir)
    target = run_dir / "learning_curve.png" if path is None else Path(path)
    evaluations, metrics = _records(run_dir / "evaluations.jsonl"), _records(run_dir / "metrics.jsonl")
    training = [(line["step"], line["return_100"]) for line in metrics if line.get("return_100") is not None]
    if not evaluations and not training:
        raise OffbeatError(
            f"{run_dir} has no evaluation and no finished training episode to plot; "
            f"train until the first log interval or evaluation"
        )
    # Not pyplot, which keeps global state and selects a window system.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if training:
        steps, returns = zip(*training, strict=True)
        axes.plot(steps, returns, color=TRAINING, linewidth=1.6, label="training, mean of the last 100 episodes")
    if evaluations:
        _draw_evaluations(axes, evaluations)
    if random_return is not None:
        axes.axhline(random_return, color=RANDOM, linestyle="--", linewidth=1.2, label="random policy")
    _style_axes(axes, _title(run_dir))
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, format="png")
    return target


def _draw_evaluations(axes: Any, evaluations: list[dict[str, Any]]) -> None:
    steps = np.array([line["step"] for line in evaluations])
    low, mean, high = (np.array([each(line["returns"]) for line in evaluations]) for each in (np.min, np.mean, np.max))
    # The range, because a band of standard deviations would include returns that no episode had.
    axes.fill_between(steps, low, high, color=EVALUATION, alpha=0.18, linewidth=0)
    axes.plot(steps, mean, color=EVALUATION, linewidth=2, marker="o", markersize=4, label="evaluation, mean and range")


def _style_axes(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return per episode")
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlim(left=0)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)


def _records(path: Path) -> list[dict[str, Any]]:
    return read(path) if path.exists() else []


def _title(run_dir: Path) -> str:
    """Algorithm and environment from the run's config; without a config, the directory's name."""
    file = run_dir / "config.yaml"
    config = load_yaml(file) if file.exists() else {}
    algorithm, env = config.get("algorithm"), config.get("env")
    return f"{algorithm.upper()} on {env}" if algorithm and isinstance(env, str) else run_dir.name
