"""Console output of a run: a live panel on a terminal, plain lines otherwise.

`progress` draws the panel and `log` prints the plain lines. Both show evaluations, checkpoints and notes.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, TextIO

import rich.console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

SECONDS_BETWEEN_FRAMES = 0.125
EVENTS_SHOWN = 4
NO_NUMBERS: Mapping[str, float] = {}


class ShownProgress(Protocol):
    """The progress of a run. Properties may be expensive, because they are read only when a frame is drawn.

    return_100, length_100: means of the last 100 training episodes; None or NaN before the first one ended.
    success_100: their success rate; None if no episode reports success.
    losses: numbers of the learner by name, in display order.
    """

    @property
    def step(self) -> int: ...
    @property
    def updates(self) -> int: ...
    @property
    def episodes(self) -> int: ...
    @property
    def return_100(self) -> float | None: ...
    @property
    def length_100(self) -> float | None: ...
    @property
    def success_100(self) -> float | None: ...
    @property
    def steps_per_second(self) -> float: ...
    @property
    def updates_per_second(self) -> float: ...
    @property
    def losses(self) -> Mapping[str, float]: ...


class Console:
    """Prints the output of a run. As a context manager it always restores the terminal.

    stream: where to write, by default standard output; a `rich.console.Console` is used as it is.
    quiet: print only notes, to standard error. Also the state after a write error, such as a closed pipe.
    """

    def __init__(
        self,
        run_path: Path | str,
        total_steps: int,
        total_updates: int | None = None,
        quiet: bool = False,
        stream: TextIO | rich.console.Console | None = None,
    ) -> None:
        self.run_path = Path(run_path)
        self.total_steps = total_steps
        self.total_updates = total_updates
        self._quiet = quiet
        self._out = stream if isinstance(stream, rich.console.Console) else _rich_console(stream or sys.stdout)
        self._animated = not quiet and self._out.is_terminal and not self._out.is_dumb_terminal
        self._live: Live | None = None
        self._next_frame = math.inf  # `start` changes this on a terminal
        self._progress: ShownProgress | None = None
        self._evaluation = self._best = self._waits = ""
        self._user_metrics: dict[str, float] = {}
        self._events: deque[str] = deque(maxlen=EVENTS_SHOWN)

    @property
    def quiet(self) -> bool:
        return self._quiet or self._out.quiet

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def start(self, lines: Sequence[str]) -> None:
        """Prints the first lines (algorithm, environment, directory) and starts the panel."""
        self._print(*lines)
        if self._animated:
            # Only `progress` redraws it, because a refresh thread would compete with the training loop.
            self._live = Live(console=self._out, auto_refresh=False, get_renderable=self._panel)
            with self._quiet_on_write_error():
                self._live.start(refresh=True)
            self._next_frame = 0.0

    def progress(self, progress: ShownProgress) -> None:
        """Draws a frame if one is due, else returns at once; cheap enough to call in every iteration."""
        self._progress = progress  # always kept, so that the last frame shows the end of the run
        if time.monotonic() >= self._next_frame:
            self._draw()
            self._next_frame = time.monotonic() + SECONDS_BETWEEN_FRAMES

    def log(self, step: int, metrics: Mapping[str, float], own: Mapping[str, float] = NO_NUMBERS) -> None:
        """Prints one plain line per log interval; prints nothing on a terminal, where the panel shows it.

        metrics: as in metrics.jsonl: update, return_100, length_100, success_100 (if any), steps_per_second,
        updates_per_second, and the learner's. own: numbers that the user's code logged.
        """
        self._waits = _wait_times(metrics)
        self._user_metrics.update(own)
        if self._animated:
            return
        updates = int(metrics.get("update", 0))
        steps_rate, updates_rate = (metrics.get(f"{each}_per_second", math.nan) for each in ("steps", "updates"))
        parts = [
            f"step {step:,}/{self.total_steps:,} ({self._done(step, updates):.0%})",
            f"return {format_number(metrics.get('return_100'))}",
            f"length {format_number(metrics.get('length_100'))}",
            *([f"success {format_number(metrics['success_100'])}"] if "success_100" in metrics else []),
            f"updates {updates:,}",
            f"{format_number(steps_rate)} steps/s",
            f"{format_number(updates_rate)} updates/s",
            *(f"{name} {format_number(value)}" for name, value in metrics.items() if _is_loss(name)),
            *(f"{name} {format_number(value)}" for name, value in own.items()),
            *([self._waits] if self._waits else []),
            f"ETA {format_duration(self._remaining(step, updates, steps_rate, updates_rate))}",
        ]
        self._print(" | ".join(parts))

    def evaluation(
        self, step: int, mean: float, std: float, episodes: int, best: bool, success: float | None = None
    ) -> None:
        """Reports an evaluation. success: the success rate, None if episodes do not report success."""
        result = f"{format_number(mean)} (std {format_number(std)})" + (
            "" if success is None else f", success {format_number(success)}"
        )
        self._evaluation = f"{result} at step {step:,}"
        if best:
            self._best = f"{format_number(mean)} at step {step:,}"
        self._event(f"step {step:,}: evaluation {result} over {episodes} episodes" + (", the best so far" * best))

    def checkpoint(self, step: int, path: Path | str) -> None:
        shown = Path(path)
        if shown.is_relative_to(self.run_path):
            shown = shown.relative_to(self.run_path)
        self._event(f"step {step:,}: checkpoint {shown}")

    def note(self, text: str) -> None:
        """Prints a message that stays on the screen, such as that a resume is not exact."""
        if not self.quiet:
            with self._quiet_on_write_error():
                self._out.print(Text(f"note: {text}", style="yellow"), soft_wrap=True)
        if self.quiet:  # the print above may have set it
            with contextlib.suppress(OSError):
                print(f"note: {text}", file=sys.stderr, flush=True)

    def finish(self, lines: Sequence[str]) -> None:
        """Stops the panel, which stays on the screen, and prints the last lines."""
        self._stop()
        self._print(*lines)

    def _stop(self) -> None:
        live, self._live, self._next_frame = self._live, None, math.inf
        if live is not None:
            with self._quiet_on_write_error():
                live.stop()

    @contextlib.contextmanager
    def _quiet_on_write_error(self) -> Iterator[None]:
        """Makes the console quiet after a write error (closed pipe, full disk), so that the run continues."""
        try:
            yield
        except OSError:
            self._out.quiet = True

    def _print(self, *lines: str) -> None:
        if not self.quiet:
            with self._quiet_on_write_error():
                for line in lines:
                    self._out.print(Text(line), soft_wrap=True)

    def _event(self, text: str) -> None:
        if self._live is None:
            self._print(text)
        else:
            self._events.append(text)
            self._draw()

    def _draw(self) -> None:
        if self._live is not None:
            with self._quiet_on_write_error():
                self._live.refresh()

    def _done(self, step: int, updates: int) -> float:
        """The completed share of the run in [0, 1], by whichever limit is nearer."""
        by_updates = updates / self.total_updates if self.total_updates else 0.0
        return min(1.0, max(step / self.total_steps, by_updates))

    def _remaining(self, step: int, updates: int, steps_rate: float, updates_rate: float) -> float:
        """Seconds until the first limit is reached; NaN while unknown."""
        left = [(self.total_steps - step, steps_rate)]
        if self.total_updates is not None:
            left.append((self.total_updates - updates, updates_rate))
        return min((max(count, 0) / rate for count, rate in left if rate > 0), default=math.nan)

    def _panel(self) -> Panel:
        progress = self._progress
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        if progress is None:
            table.add_row("progress", "starting")
        else:
            self._progress_rows(table, progress)
        if self._evaluation:
            best = f"   best {self._best}" if self._best else ""
            table.add_row("evaluation", Text(self._evaluation + best))
        if progress is not None and progress.losses:
            losses = "   ".join(
                f"{name.replace('_', ' ')} {format_number(value)}" for name, value in progress.losses.items()
            )
            table.add_row("learner", Text(losses))
        if self._user_metrics:
            table.add_row(
                "own", Text("   ".join(f"{name} {format_number(value)}" for name, value in self._user_metrics.items()))
            )
        if self._waits:
            table.add_row("collectors", Text(self._waits))
        for index, event in enumerate(self._events):
            table.add_row("events" if index == 0 else "", Text(event, style="dim"))
        table.add_row("files", Text(str(self.run_path), style="cyan"))
        return Panel(table, title="offbeat", title_align="left", border_style="dim", padding=(0, 1))

    def _progress_rows(self, table: Table, progress: ShownProgress) -> None:
        step, updates = progress.step, progress.updates
        steps_rate, updates_rate = progress.steps_per_second, progress.updates_per_second
        done = self._done(step, updates)
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(
                total=1.0,
                completed=done,
                width=max(10, min(40, self._out.width - 50)),
                complete_style="green",
                finished_style="green",
            ),
            Text(f"{done:.0%}", style="bold"),
            Text(f"ETA {format_duration(self._remaining(step, updates, steps_rate, updates_rate))}"),
        )
        table.add_row("progress", bar)
        counts = f"{step:,} of {self.total_steps:,} steps ({format_number(steps_rate)}/s)   {updates:,}"
        counts += f" of {self.total_updates:,}" if self.total_updates is not None else ""
        table.add_row("", Text(f"{counts} updates ({format_number(updates_rate)}/s)"))
        success = "" if progress.success_100 is None else f"success {format_number(progress.success_100)}   "
        means = (
            f" mean return   {success}{format_number(progress.length_100)} mean length   {progress.episodes:,} episodes"
        )
        table.add_row("training", Text.assemble((format_number(progress.return_100), "bold"), means))


def format_number(value: float | None) -> str:
    """Four significant digits with thousands separators; "-" for None and NaN."""
    if value is None or math.isnan(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def format_duration(seconds: float) -> str:
    """Seconds as h:mm:ss; "-" if not finite."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class _PipeTolerantConsole(rich.console.Console):
    """Becomes quiet when its pipe is closed (`| head`), so that the run continues; rich would end the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def _rich_console(stream: TextIO | None) -> rich.console.Console:
    """stream: None if standard output was closed at the start (`>&-`); rich then writes nowhere."""
    # FORCE_COLOR (as in CI) would make rich treat any stream as a terminal, but only a real terminal can be redrawn.
    return _PipeTolerantConsole(file=stream, force_terminal=stream is not None and stream.isatty(), highlight=False)


def _wait_times(metrics: Mapping[str, float]) -> str:
    """How long learner and collectors waited for each other, and the policy lag; "" in a single process."""
    if "learner_waited" not in metrics:
        return ""
    waited = [f"{side} {format_duration(metrics[f'{side}_waited'])}" for side in ("learner", "collectors")]
    return f"waited: {', '.join(waited)} | lag {metrics['policy_lag']:.0f} updates"


def _is_loss(name: str) -> bool:
    return "loss" in name or name.endswith("temperature")
