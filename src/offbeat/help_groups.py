"""The sections of `--help`: the titles that groups of settings have."""

from __future__ import annotations

from collections.abc import Iterable

from offbeat.settings import Setting

RUN = "run"
TITLES = ("networks", "exploration", "collectors", "evaluation", "logging")
"""The titles of groups in the order of the help, after the run, the environment and the algorithm."""


def grouped(run: Iterable[Setting], algorithm: str, own: Iterable[Setting]) -> dict[str, list[Setting]]:
    """The run's and the algorithm's settings by title. One without a title belongs to the run or the algorithm."""
    groups: dict[str, list[Setting]] = {title: [] for title in (RUN, "environment", algorithm, *TITLES)}
    for title, settings in ((RUN, run), (algorithm, own)):
        for each in settings:
            groups.setdefault(each.title or title, []).append(each)
    return {title: settings for title, settings in groups.items() if settings}
