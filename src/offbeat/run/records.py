"""Writes metrics, evaluations and the summary of a run to files, loggers and the console."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offbeat.observe.console import Console
from offbeat.observe.groups import grouped
from offbeat.observe.jsonl import Jsonl
from offbeat.observe.jsonl import read as read_jsonl
from offbeat.observe.loggers import Logger, open_logger
from offbeat.run.directory import RunDirectory
from offbeat.run.evaluation import Evaluation
from offbeat.run.progress import Progress


class Records:
    """The outputs of a run. history: every evaluation so far, in order."""

    def __init__(self, directory: RunDirectory, console: Console) -> None:
        self.directory, self.console = directory, console
        self.history: list[Evaluation] = []
        self._files = {name: Jsonl(directory.path / f"{name}.jsonl") for name in ("metrics", "evaluations")}
        self._loggers: list[Logger] = []

    def open_loggers(self, names: tuple[str, ...], settings: Mapping[str, Any], purge: int | None, quiet: bool) -> None:
        """purge: loggers discard what they hold from this step on, because a resumed run repeats it; None: nothing."""
        for name in dict.fromkeys(names):
            self._loggers.append(open_logger(name, self.directory.path, settings, purge, quiet))

    def sync(self) -> dict[str, int]:
        """Flushes the files to disk; returns their lengths, for `rewind`."""
        return {name: file.sync() for name, file in self._files.items()}

    def rewind(self, lengths: Mapping[str, int]) -> None:
        """Truncates the files to their lengths at a checkpoint, and reloads the evaluations."""
        for name, file in self._files.items():
            if not file.truncate(lengths[name]):
                self.note(f"{file.path} is shorter than at the checkpoint: the missing lines cannot be restored")
        self.history = [
            Evaluation(
                line["step"],
                line["version"],
                tuple(line["returns"]),
                tuple(line["lengths"]),
                tuple(line.get("successes", ())),
            )
            for line in read_jsonl(self._files["evaluations"].path)
        ]

    def log(self, progress: Progress, numbers: Mapping[str, Any], user_numbers: Mapping[str, float]) -> None:
        """Logs the run's numbers and the user's, which have other names."""
        position = {"step": progress.step, "update": progress.updates, "wall": progress.wall_seconds}
        self._files["metrics"].write({**position, **numbers, **user_numbers})
        known = {name: value for name, value in numbers.items() if value is not None}
        self.console.log(progress.step, {"update": progress.updates, **known}, user_numbers)
        for logger in self._loggers:
            logger.write(progress.step, grouped(known) | grouped(user_numbers, "own"))

    def evaluation(self, result: Evaluation, best: bool) -> None:
        step, mean, std, success = result.step, result.mean_return, result.std_return, result.success_rate
        self.history.append(result)
        self._files["evaluations"].write(result.to_json())
        self.console.evaluation(step, mean, std, result.episodes, best, success)
        succeeded = "" if success is None else f", success {success:.3g}"
        self.directory.log(f"step {step}: evaluation {mean:.6g} (std {std:.3g}){succeeded}")
        numbers = {"return": mean, "return_std": std, "length": result.mean_length}
        if success is not None:
            numbers["success"] = success
        for logger in self._loggers:
            logger.write(step, grouped(numbers, "eval"))

    def checkpoint(self, step: int, path: Path) -> None:
        if step:
            self.console.checkpoint(step, path)
        self.directory.log(f"step {step}: checkpoint {path.name}")

    def summary(self, values: Mapping[str, Any]) -> None:
        """Writes summary.json: these values, and the last and the best evaluation."""
        best = max(self.history, key=lambda each: each.mean_return, default=None)
        last = self.history[-1] if self.history else None
        summary = {**values, "evaluation": _summarised(last), "best_evaluation": _summarised(best)}
        self.directory.write_summary(summary)
        for logger in self._loggers:
            logger.summarise(summary)

    def failed(self, trace: str) -> None:
        """Records that the run failed. Ignores a full disk: the error that ended the run matters more."""
        with contextlib.suppress(OSError):
            self.directory.log("failed\n" + trace)
        with contextlib.suppress(OSError):
            self.directory.write_status("failed", force=True)

    def note(self, text: str) -> None:
        """Writes a message for the user to the console and to log.txt."""
        self.console.note(text)
        with contextlib.suppress(OSError):  # writing a file that the run needs will raise the same error
            self.directory.log(text)

    def close(self) -> None:
        for logger in self._loggers:
            try:
                logger.close()
            except Exception as error:  # the run is finished and saved, so this must not fail it
                self.note(f"closing a logger raised {type(error).__name__}: {error}")
        for file in self._files.values():
            file.close()


def _summarised(evaluation: Evaluation | None) -> dict[str, Any] | None:
    if evaluation is None:
        return None
    return {
        "mean_return": evaluation.mean_return,
        "std_return": evaluation.std_return,
        "episodes": evaluation.episodes,
        "env_steps": evaluation.step,
        **({} if evaluation.success_rate is None else {"success_rate": evaluation.success_rate}),
    }
