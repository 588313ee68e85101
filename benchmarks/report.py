"""Writes results as JSON, Markdown tables and charts, and inserts the tables into docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contest import HERE, Score

RESULTS = HERE / "results"
DOCUMENT = HERE.parent / "docs" / "benchmarks.md"
OURS = "offbeat"
OURS_IN_JAX = "offbeat jax"
_COLOURS = {OURS: "#d1495b"}
_PEER_COLOUR = "#8d99ae"


def by_name(scores: Sequence[Score], name: str) -> Score | None:
    return next((score for score in scores if score.name == name), None)


def ratio(score: Score | None, other: Score | None) -> float | None:
    """The median over the rounds of score / other; a slow phase of the machine hardly changes the ratio in a round."""
    if score is None or other is None:
        return None
    return statistics.median(mine / theirs for mine, theirs in zip(score.rounds, other.rounds, strict=True))


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits, with thousands separators and without exponent; a dash for None."""
    if value is None:
        return "-"
    shown = float(f"{value:.{digits}g}")
    return f"{shown:,.0f}" if abs(shown) >= 10 ** (digits - 1) else f"{shown:#.{digits}g}"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} x"


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is left-aligned, the others right-aligned."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *lines])


def score_table(scores: Sequence[Score], unit: str, floor: str | None = None) -> str:
    """A table of median, min, max, the ratio of Offbeat to the row, and, with `floor`, the ratio of the row to it."""
    ours, lowest = by_name(scores, OURS), by_name(scores, floor) if floor else None
    in_jax = by_name(scores, OURS_IN_JAX)
    header = ["", unit, "min", "max", "Offbeat / row"] + ["Offbeat jax / row"] * (in_jax is not None)
    header += ["of matrix products"] * (lowest is not None)
    lines = []
    for score in scores:
        line = [score.name, *(number(pick(score.rounds)) for pick in (statistics.median, min, max))]
        line.append("" if score.name == OURS else times(ratio(ours, score)))
        if in_jax is not None:
            line.append("" if score.name == OURS_IN_JAX else times(ratio(in_jax, score)))
        if lowest is not None:
            share = ratio(score, lowest)
            line.append("" if share is None else f"{share:.0%}")
        lines.append(line)
    return table(header, lines)


def versions(scores: Sequence[Score]) -> str:
    """A list of the contestants with their package versions and configuration, without repetitions."""
    lines = []
    for score in scores:
        packages = ", ".join(f"{name} {version}" for name, version in score.versions.items())
        lines.append(f"- {score.name}: {packages}; {score.setting}")
    return "\n".join(dict.fromkeys(lines))


def arguments(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, Path | None]:
    """The options, and the directory for results: --out, else RESULTS for a complete run and None for a partial one."""
    parser.add_argument("--only", type=names, help="measure only these contestants, comma-separated")
    parser.add_argument("--out", type=Path, help="directory for results; without it, a partial run only prints")
    options = parser.parse_args()
    changed = [name for name, value in vars(options).items() if value != parser.get_default(name)]
    return options, options.out or (None if set(changed) - {"learning"} else RESULTS)


def names(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def publish(name: str, record: dict[str, Any], markdown: str, out: Path | None, document: Path = DOCUMENT) -> None:
    """Prints the tables, writes NAME.md and NAME.json to `out`, and, if that is RESULTS, updates `document`."""
    print(markdown)
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    (out / f"{name}.md").write_text(markdown + "\n")
    if out == RESULTS:
        document.write_text(include(document.read_text(), name, markdown))
    print(f"\nwritten: {out / name}.md, .json")


def include(document: str, name: str, markdown: str) -> str:
    """The document with the text between `<!-- NAME -->` and `<!-- end of NAME -->` replaced."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = document.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"there are no markers {begin.strip()} and {end}; add them where the table belongs")
    return f"{before}{begin}\n{markdown}\n\n{end}{after}"


def chart(panels: Sequence[tuple[str, Sequence[Score]]], unit: str, floor: str, path: Path) -> None:
    """Draws one panel of horizontal bars per case, sorted by speed, with `floor` as a dashed line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(panels), 2.8), layout="constrained")
    for axes, (title, scores) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        medians = {score.name: statistics.median(score.rounds) for score in scores}
        limit = medians.pop(floor, None)
        order = sorted(medians, key=medians.__getitem__)
        bars = axes.barh(
            order, [medians[each] for each in order], color=[_COLOURS.get(each, _PEER_COLOUR) for each in order]
        )
        axes.bar_label(bars, labels=[number(medians[each]) for each in order], padding=3, fontsize=9)
        if limit is not None:
            axes.axvline(limit, color="#2b2d42", linestyle="--", linewidth=1)
            axes.text(limit, -0.75, f"{floor} {number(limit)} ", ha="right", va="center", fontsize=8)
            axes.set_ylim(-1.1, len(order) - 0.4)
        axes.set_xlim(0, 1.15 * max([*medians.values(), limit or 0]))
        axes.set_title("\n".join(title.rsplit(", ", 1)), fontsize=10)
        axes.set_xlabel(unit, fontsize=9)
        axes.tick_params(labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
