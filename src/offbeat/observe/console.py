"""What a person sees while a run trains: a live panel on a terminal, plain lines anywhere else.

The panel is drawn from `progress`, the plain lines from `log`; both show evaluations, checkpoints and notes.
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


class Progress(Protocol):
    """Where a run stands. Read only when a frame is due, so properties that cost something are fine.

    return_100, length_100: means of the last 100 training episodes, None or NaN before the first has ended.
    success_100: likewise, None where no episode says whether it was a success.
    losses: named numbers of the learner, in the order in which they are shown.
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
    """The run's voice. As a context manager it always gives the terminal back as it was.

    stream: where to write, standard output by default; a `rich.console.Console` is taken as it is.
    quiet: nothing is written but notes, to standard error. So it is, too, once nobody reads the stream any more.
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
        self._next_frame = math.inf  # until `start`, and for ever without a terminal
        self._progress: Progress | None = None
        self._evaluation = self._best = self._waits = ""
        self._own: dict[str, float] = {}
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
        """What is being trained on what, and where the files go."""
        self._print(*lines)
        if self._animated:
            # Drawn by `progress` alone: a refresh thread would compete with the training loop.
            self._live = Live(console=self._out, auto_refresh=False, get_renderable=self._panel)
            with self._silent_where_unwritable():
                self._live.start(refresh=True)
            self._next_frame = 0.0

    def progress(self, progress: Progress) -> None:
        """To be called as often as one likes: it draws when a frame is due and otherwise returns at once."""
        self._progress = progress  # kept in any case: the last frame, drawn at the end, shows the end
        if time.monotonic() >= self._next_frame:
            self._draw()
            self._next_frame = time.monotonic() + SECONDS_BETWEEN_FRAMES

    def log(self, step: int, metrics: Mapping[str, float], own: Mapping[str, float] = NO_NUMBERS) -> None:
        """One plain line per log interval; on a terminal the panel has shown it already.

        metrics, as in metrics.jsonl: update, return_100, length_100, success_100 (where there is one),
        steps_per_second, updates_per_second, and the learner's own. own: numbers that the user's code has logged.
        """
        self._waits = _waits(metrics)
        self._own.update(own)
        if self._animated:
            return
        updates = int(metrics.get("update", 0))
        steps_rate, updates_rate = (metrics.get(f"{each}_per_second", math.nan) for each in ("steps", "updates"))
        parts = [
            f"step {step:,}/{self.total_steps:,} ({self._done(step, updates):.0%})",
            f"return {number(metrics.get('return_100'))}",
            f"length {number(metrics.get('length_100'))}",
            *([f"success {number(metrics['success_100'])}"] if "success_100" in metrics else []),
            f"updates {updates:,}",
            f"{number(steps_rate)} steps/s",
            f"{number(updates_rate)} updates/s",
            *(f"{name} {number(value)}" for name, value in metrics.items() if _is_loss(name)),
            *(f"{name} {number(value)}" for name, value in own.items()),
            *([self._waits] if self._waits else []),
            f"ETA {duration(self._remaining(step, updates, steps_rate, updates_rate))}",
        ]
        self._print(" | ".join(parts))

    def evaluation(
        self, step: int, mean: float, std: float, episodes: int, best: bool, success: float | None = None
    ) -> None:
        """success: the share of episodes that were one, where they say so."""
        result = f"{number(mean)} (std {number(std)})" + ("" if success is None else f", success {number(success)}")
        self._evaluation = f"{result} at step {step:,}"
        if best:
            self._best = f"{number(mean)} at step {step:,}"
        self._event(f"step {step:,}: evaluation {result} over {episodes} episodes" + (", the best so far" * best))

    def checkpoint(self, step: int, path: Path | str) -> None:
        shown = Path(path)
        if shown.is_relative_to(self.run_path):
            shown = shown.relative_to(self.run_path)
        self._event(f"step {step:,}: checkpoint {shown}")

    def note(self, text: str) -> None:
        """Something that the user should know, such as a resume that is not exact; it stays on the screen."""
        if not self.quiet:
            with self._silent_where_unwritable():
                self._out.print(Text(f"note: {text}", style="yellow"), soft_wrap=True)
        if self.quiet:  # perhaps since just now
            with contextlib.suppress(OSError):
                print(f"note: {text}", file=sys.stderr, flush=True)

    def finish(self, lines: Sequence[str]) -> None:
        """Ends the panel, which stays as it is, and prints the last lines."""
        self._stop()
        self._print(*lines)

    def _stop(self) -> None:
        live, self._live, self._next_frame = self._live, None, math.inf
        if live is not None:
            with self._silent_where_unwritable():
                live.stop()

    @contextlib.contextmanager
    def _silent_where_unwritable(self) -> Iterator[None]:
        """Whoever reads this is gone, or the disk is full: the run goes on without words."""
        try:
            yield
        except OSError:
            self._out.quiet = True

    def _print(self, *lines: str) -> None:
        if not self.quiet:
            with self._silent_where_unwritable():
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
            with self._silent_where_unwritable():
                self._live.refresh()

    def _done(self, step: int, updates: int) -> float:
        """How much of the run is behind us, in [0, 1], by the limit that is nearer."""
        by_updates = updates / self.total_updates if self.total_updates else 0.0
        return min(1.0, max(step / self.total_steps, by_updates))

    def _remaining(self, step: int, updates: int, steps_rate: float, updates_rate: float) -> float:
        """Seconds until the limit that comes first, or NaN while that is unknown."""
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
            losses = "   ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in progress.losses.items())
            table.add_row("learner", Text(losses))
        if self._own:
            table.add_row("own", Text("   ".join(f"{name} {number(value)}" for name, value in self._own.items())))
        if self._waits:
            table.add_row("collectors", Text(self._waits))
        for index, event in enumerate(self._events):
            table.add_row("events" if index == 0 else "", Text(event, style="dim"))
        table.add_row("files", Text(str(self.run_path), style="cyan"))
        return Panel(table, title="offbeat", title_align="left", border_style="dim", padding=(0, 1))

    def _progress_rows(self, table: Table, progress: Progress) -> None:
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
            Text(f"ETA {duration(self._remaining(step, updates, steps_rate, updates_rate))}"),
        )
        table.add_row("progress", bar)
        counts = f"{step:,} of {self.total_steps:,} steps ({number(steps_rate)}/s)   {updates:,}"
        counts += f" of {self.total_updates:,}" if self.total_updates is not None else ""
        table.add_row("", Text(f"{counts} updates ({number(updates_rate)}/s)"))
        success = "" if progress.success_100 is None else f"success {number(progress.success_100)}   "
        means = f" mean return   {success}{number(progress.length_100)} mean length   {progress.episodes:,} episodes"
        table.add_row("training", Text.assemble((number(progress.return_100), "bold"), means))


def number(value: float | None) -> str:
    """A number for people: four significant digits, thousands grouped; "-" where there is none."""
    if value is None or math.isnan(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss; "-" where unknown."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class _Unbreakable(rich.console.Console):
    """Falls silent when its reader goes away (`| head`), where rich would end the process: the run goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def _rich_console(stream: TextIO | None) -> rich.console.Console:
    """stream: None where standard output was closed from the beginning (`>&-`); rich then writes nowhere."""
    # Colour may be forced on by the environment (FORCE_COLOR in CI); only a real terminal can be redrawn.
    return _Unbreakable(file=stream, force_terminal=stream is not None and stream.isatty(), highlight=False)


def _waits(metrics: Mapping[str, float]) -> str:
    """Who has waited for whom, and how old acting weights are; nothing where all is one process."""
    if "learner_waited" not in metrics:
        return ""
    waited = [f"{who} {duration(metrics[f'{who}_waited'])}" for who in ("learner", "collectors")]
    return f"waited: {', '.join(waited)} | lag {metrics['policy_lag']:.0f} updates"


def _is_loss(name: str) -> bool:
    return "loss" in name or name.endswith("temperature")
