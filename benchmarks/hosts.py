"""A model of Ray collectors on many hosts: python benchmarks/hosts.py

It takes the costs that ray_collectors.py has measured on one machine, reproduces the rows per second measured there,
and computes what more hosts would deliver. Nothing of it was measured on several machines.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import report
from offbeat.collect.ray_actors import call_seconds
from offbeat.run.tuning import steps_in_calls

LARGEST_ERROR = 0.15
"""Between modelled and measured rows per second, in any case on one machine."""
HOSTS = (1, 2, 5, 10, 20, 50, 100)
COLLECTORS_PER_HOST = 8
GIGABIT = 125e6
NETWORK, LATENCY = 25 * GIGABIT, 200e-6
CHUNKS_BEFORE, CHUNKS_COUNTED = 10, 40
"""Of each actor: until the simulation counts, and while it does."""
DOCUMENT = report.DOCUMENT.with_name("ray.md")


@dataclass(frozen=True)
class Plan:
    """One layout. Times are in seconds.

    step: of a row, with acting. rows, row_bytes: of a chunk. in_flight: chunks of a collector. weights_bytes,
    publications: size, and how many a second. bandwidth, latency: of the learner's host; bandwidth None for one
    machine, whose cores the learner shares. remote, ingest: of a call, at the actor and at the learner, by the bytes of
    its answer. publishing: processor time of one publication for each core of one machine.
    """

    hosts: int
    collectors: int
    step: float
    rows: int
    row_bytes: int
    in_flight: int
    weights_bytes: int
    publications: float
    bandwidth: float | None
    latency: float
    remote: Callable[[float], float]
    ingest: Callable[[float], float]
    publishing: float = 0.0

    @property
    def chunk_bytes(self) -> float:
        return float(self.rows * self.row_bytes)


@dataclass(frozen=True)
class Outcome:
    """rows: per second. busy: share of the time in which each part works."""

    rows: float
    busy: Mapping[str, float]

    @property
    def limit(self) -> str:
        """The part that is busiest."""
        return max(self.busy, key=self.busy.__getitem__)


class Line:
    """Work that waits in a queue for one server. busy: seconds of work so far."""

    def __init__(self) -> None:
        self.free_at = self.busy = 0.0

    def serve(self, arrival: float, seconds: float) -> float:
        """When work that arrives now is done."""
        self.free_at = max(self.free_at, arrival) + seconds
        self.busy += seconds
        return self.free_at


def simulate(plan: Plan) -> Outcome:
    """Events in the order of time: a call reaches its actor, and a chunk reaches the learner.

    Counted from the time when every actor has made its first chunks.
    """
    receive, send, learner = Line(), Line(), Line()
    actors = [Line() for _ in range(plan.hosts * plan.collectors)]
    fetched: dict[tuple[int, int], float] = {}  # when the weights of a version are on a host
    remote, ingest = plan.remote(plan.chunk_bytes), plan.ingest(plan.chunk_bytes)
    local, bandwidth = plan.bandwidth is None, plan.bandwidth or float("inf")
    # On one machine the learner's side of a call takes its time from the collectors' cores, and so do publications.
    work = plan.rows * plan.step + remote + (ingest if local else 0.0)
    work /= 1.0 - (plan.publications * plan.publishing if local else 0.0)
    begin, end = CHUNKS_BEFORE * work, (CHUNKS_BEFORE + CHUNKS_COUNTED) * work
    order, stored = itertools.count(), 0
    events = [(index * work / len(actors), next(order), True, index) for index in range(len(actors))]  # not together
    events += [(when, next(order), True, index) for when, _, _, index in events for _ in range(plan.in_flight - 1)]
    heapq.heapify(events)
    while events:
        now, _, at_actor, index = heapq.heappop(events)
        if now > end:
            break
        if at_actor:
            ready = now
            if plan.publications and not local:
                key = index // plan.collectors, int(now * plan.publications)
                if key not in fetched:
                    fetched[key] = send.serve(now, plan.weights_bytes / bandwidth) + plan.latency
                ready = max(now, fetched[key])
            heapq.heappush(events, (actors[index].serve(ready, work), next(order), False, index))
        else:
            arrived = receive.serve(now, plan.chunk_bytes / bandwidth) + plan.latency
            written = learner.serve(arrived, ingest)
            stored += plan.rows if begin < written <= end else 0
            heapq.heappush(events, (written + plan.latency, next(order), True, index))
    busy = {
        "collectors": statistics.mean(each.busy for each in actors) / end,
        "learner's ingest": learner.busy / end,
        "network in": receive.busy / end,
        "network out": send.busy / end,
    }
    return Outcome(stored / (end - begin), {name: min(1.0, share) for name, share in busy.items()})


def by_bytes(calls: Mapping[str, Any], part: Callable[[int], float]) -> Callable[[float], float]:
    """Interpolates between the sizes that were measured; beyond the largest it grows as between the last two."""
    sizes, values = calls["bytes"], [part(index) for index in range(len(calls["bytes"]))]
    slope = max(0.0, (values[-1] - values[-2]) / (sizes[-1] - sizes[-2]))
    return lambda size: float(np.interp(size, sizes, values)) + max(0.0, size - sizes[-1]) * slope


def measured_plan(record: Mapping[str, Any], case: Mapping[str, Any]) -> Plan:
    """The machine of the measurement: a step costs what it costs processes; calls cost what they cost alone."""
    calls, rows_bytes = record["calls"], case["rows_per_chunk"] * case["bytes_per_row"]
    # A publication costs one call less than was measured: a call that is made anyway carries it.
    carried = max(0.0, calls["publication"] - calls["processor"][0])
    return Plan(
        hosts=1,
        collectors=record["collectors"],
        step=1e-6 * case["processor_us_per_row"]["processes"],
        rows=case["rows_per_chunk"],
        row_bytes=case["bytes_per_row"],
        in_flight=case["calls_in_flight"],
        weights_bytes=case["bytes_of_weights"],
        publications=case["publications_per_second"],
        bandwidth=None,
        latency=by_bytes(calls, lambda index: calls["latency"][index])(rows_bytes) / 2,
        remote=by_bytes(calls, lambda index: max(0.0, calls["processor"][index] - calls["learner"][index])),
        ingest=by_bytes(calls, lambda index: calls["learner"][index]),
        publishing=carried,
    )


def reproduce(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Modelled and measured rows per second of Ray collectors, in each case."""
    found = []
    for name, case in record["cases"].items():
        measured = statistics.median(next(each for each in case["scores"] if each["name"] == "ray")["rounds"])
        modelled = simulate(measured_plan(record, case)).rows
        found.append({"case": name, "measured": measured, "modelled": modelled, "error": modelled / measured - 1})
    return found


def at_size(plan: Plan, hosts: int) -> Plan:
    """The layout with so many hosts, and with the chunks that Offbeat makes for as many collectors."""
    collectors = hosts * plan.collectors
    in_time = int(call_seconds(collectors, 60.0) / plan.step)
    return replace(plan, hosts=hosts, rows=max(1, min(steps_in_calls(collectors) // plan.in_flight, in_time)))


def extrapolate(plan: Plan, hosts: tuple[int, ...] = HOSTS) -> list[dict[str, Any]]:
    found = []
    for count in hosts:
        sized = at_size(plan, count)
        outcome = simulate(sized)
        alone = count * sized.collectors / sized.step
        found.append(
            {"hosts": count, "rows_per_chunk": sized.rows, "rows": outcome.rows, "share": outcome.rows / alone}
            | {"limit": outcome.limit, "busy": dict(outcome.busy)}
        )
    return found


def layouts(record: Mapping[str, Any]) -> dict[str, Plan]:
    """Hosts with 8 collectors: a fast simulator, a slow one, and one whose observations are small images."""
    base = replace(
        measured_plan(record, record["cases"]["sac, 1 environment, weights"]),
        collectors=COLLECTORS_PER_HOST,
        bandwidth=NETWORK,
        latency=LATENCY,
        publications=10.0,
    )
    slow, images = replace(base, step=2e-3), 2 * 84 * 84 * 3
    return {
        f"HalfCheetah, {1e6 * base.step:.0f} us per step": base,
        "a simulator of 2 ms per step": slow,
        "2 ms per step, images of 84 x 84 x 3 bytes": replace(slow, row_bytes=base.row_bytes + images),
    }


def tables(record: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    reproduced = reproduce(record)
    plans = layouts(record)
    grown = {name: extrapolate(plan) for name, plan in plans.items()}
    some = next(iter(plans.values()))
    chunk = some.chunk_bytes
    parts = [
        "**One machine**: rows per second of Ray collectors, measured "
        "([benchmarks.md](benchmarks.md#collectors-on-ray)), and modelled from the cost of a step in processes and of "
        "calls alone.",
        report.table(["", "measured", "modelled", "error"], [_compared(each) for each in reproduced]),
        f"**Many hosts**, modelled: {COLLECTORS_PER_HOST} collectors on each, {NETWORK / GIGABIT:.0f} Gbit/s and "
        f"{1e6 * LATENCY:.0f} us at the learner's host, {some.publications:.0f} publications a second of "
        f"{some.weights_bytes / 1e3:,.0f} kB. A row of HalfCheetah has {some.row_bytes} bytes. The learner's thread "
        f"spends {1e3 * some.ingest(chunk):.2f} ms on a chunk of {chunk / 1e3:,.0f} kB and "
        f"{1e3 * some.ingest(1.5e6):.2f} ms on one of 1.5 MB. share: of what as many collectors make if nothing holds "
        "them up.",
    ]
    header = ["hosts", "rows in a chunk", "rows/s", "share", "busiest", "ingest", "network in", "network out"]
    for name, rows in grown.items():
        parts += [f"*{name}*", report.table(header, [_grown(each) for each in rows])]
    return "\n\n".join(parts), {"reproduced": reproduced, "grown": grown}


def _compared(each: Mapping[str, Any]) -> list[str]:
    numbers = (report.number(each[name]) for name in ("measured", "modelled"))
    return [each["case"], *numbers, f"{each['error']:+.0%}"]


def _grown(each: Mapping[str, Any]) -> list[str]:
    shares = (f"{each['busy'][part]:.0%}" for part in ("learner's ingest", "network in", "network out"))
    numbers = str(each["hosts"]), f"{each['rows_per_chunk']:,}", report.number(each["rows"])
    return [*numbers, f"{each['share']:.0%}", each["limit"], *shares]


def draw(record: Mapping[str, Any], path: Path) -> None:
    """The layout of 100 hosts, with the bytes on each way, and the modelled rows per second."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    plan = next(iter(layouts(record).values()))
    with rc_context({"svg.hashsalt": "offbeat", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 7), layout="constrained")
        axes, curve = figure.subplots(2, 1, height_ratios=[1.25, 1])
        _draw_layout(axes, plan)
        for name, rows in ((name, extrapolate(each)) for name, each in layouts(record).items()):
            curve.plot([each["hosts"] for each in rows], [each["rows"] for each in rows], marker="o", label=name)
        curve.set(xscale="log", yscale="log", xlabel=f"hosts, {COLLECTORS_PER_HOST} collectors each", ylabel="rows/s")
        curve.set_title("rows per second at the learner, modelled", fontsize=10)
        curve.legend(fontsize=8)
        curve.grid(alpha=0.3)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def _draw_layout(axes: Any, plan: Plan) -> None:
    axes.set(xlim=(0, 100), ylim=(0, 50))
    axes.axis("off")

    def box(x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
        axes.add_patch(_rectangle(x, y, width, height, colour))
        axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8)

    box(2, 6, 34, 40, "", "#eef2f7")
    axes.text(19, 43.5, "learner's host", ha="center", fontsize=9, weight="bold")
    box(5, 30, 28, 10, "learner: updates, weights", "#d1e3f0")
    box(5, 18.5, 28, 8, "replay: one shard per actor", "#d1e3f0")
    box(5, 8.5, 28, 7, "Ray's object store", "#f3e3c3")
    for index, name in enumerate(("host 1", "host 2", "host 100")):
        y = 33 - 13.5 * index
        box(64, y, 34, 11, "", "#eef2f7")
        axes.text(66, y + 8.3, name, fontsize=8, weight="bold")
        box(66, y + 1.2, 17, 5.6, f"{plan.collectors} actors", "#d9ead3")
        box(84.5, y + 1.2, 12, 5.6, "object store", "#f3e3c3")
        axes.annotate("", (34, 12 + 1.3 * index), (64, y + 3.4), arrowprops={"arrowstyle": "->", "color": "#3b6ea5"})
        axes.annotate("", (64, y + 7.8), (34, 35 - index), arrowprops={"arrowstyle": "->", "color": "#b5651d"})
    axes.text(81, 18.4, "...", ha="center", fontsize=12)
    largest = at_size(plan, HOSTS[-1]).rows
    lines = {
        47: (f"weights: {plan.weights_bytes / 1e3:,.0f} kB", "#b5651d"),
        44: ("per host and publication", "#b5651d"),
        5: (f"rows: {plan.row_bytes} bytes per step", "#3b6ea5"),
        2: (f"chunks of {plan.rows:,} to {largest:,} steps", "#3b6ea5"),
    }
    for height, (text, colour) in lines.items():
        axes.text(50, height, text, ha="center", fontsize=8, color=colour)


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> Any:
    from matplotlib.patches import FancyBboxPatch

    style = {"boxstyle": "round,pad=0.3", "facecolor": colour, "edgecolor": "#555555", "lw": 0.8}
    return FancyBboxPatch((x, y), width, height, **style)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", type=Path, default=report.RESULTS / "ray_collectors.json")
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    options = parser.parse_args()
    record = json.loads(options.measured.read_text())
    markdown, found = tables(record)
    report.publish("hosts", {"machine": record["machine"], **found}, markdown, options.out, DOCUMENT)
    draw(record, (DOCUMENT.parent if options.out == report.RESULTS else options.out) / "hundred_hosts.svg")
    if (worst := max(abs(each["error"]) for each in found["reproduced"])) > LARGEST_ERROR:
        raise SystemExit(f"the model is {worst:.0%} away from the measurement, more than {LARGEST_ERROR:.0%}")


if __name__ == "__main__":
    main()
