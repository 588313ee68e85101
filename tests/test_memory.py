"""Settings that need more memory than there is are refused before anything is created."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from offbeat import memory
from offbeat.cli import main
from offbeat.errors import UsageError

TWO = ["--num-envs", "2", "--collectors", "2"]
SMALL = {"--env": "Pendulum-v1", "--preset": "none", "--total-steps": "2000", "--hidden": "8"}


@pytest.mark.parametrize(
    ("algorithm", "flags", "words"),
    [
        (
            "sac",
            ["--capacity", "1000000000000"],
            "capacity=1000000000000 needs .* GiB of memory, but the machine",
        ),
        ("sac", ["--capacity", "1000000000000", *TWO], "capacity=1000000000000 needs"),
        ("sac", ["--capacity", str(2**63 - 1), *TWO], "needs .* GiB of memory"),
        (
            "sac",
            ["--hidden", "200000", "200000"],
            r"a network of 40,\d+,\d+,\d+ weights .*200000 200000.* needs .* GiB",
        ),
        ("sac", ["--critics", "1000000000000"], r"a network of .* weights .* needs .* GiB of memory"),
        ("sac", ["--batch-size", "1000000000000"], r"batch_size=1000000000000 needs .* GiB"),
        ("ppo", ["--hidden", "200000", "200000"], r"a network of .* weights .* needs .* GiB of memory"),
        ("ppo", ["--rollout-steps", "1000000000000", *TWO], "rollout_steps=10.* needs"),
        ("appo", ["--queue", "1000000000000", *TWO], "1000000000000 times, needs"),
        ("sac", ["--total-steps", str(10**30)], r"total-steps='10+' is out of range: it must be less than 2\^63"),
        ("sac", ["--total-steps", "1e30"], r"total-steps='1e30' is out of range: it must be less than 2\^63"),
        ("sac", ["--seed", str(10**40)], r"seed='10+' is out of range: it must be less than 2\^63"),
        ("sac", ["--total-updates", str(10**400)], r"total-updates=.* is out of range: it must be less than 2\^63"),
        ("sac", ["--num-envs", "1000000"], "num-envs=1000000 is out of range: it must be at most 65536"),
        ("sac", ["--threads", "1000000"], "threads=1000000 is out of range: it must be at most 1024"),
    ],
)
def test_too_large_settings_are_usage_errors_and_leave_nothing(
    algorithm: str, flags: list[str], words: str, tmp_path: Path, capsys
) -> None:
    given = [word for name, value in SMALL.items() if name not in flags for word in (name, value)]
    assert main(["train", algorithm, *given, *flags, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert re.search(words, said), said
    assert list(tmp_path.iterdir()) == []


def test_a_ring_may_exceed_free_memory_if_the_run_fills_less(monkeypatch) -> None:
    monkeypatch.setattr(memory, "total_and_free", lambda: (1000, 100))
    memory.check_fits("capacity=5", 900, filled=100)
    with pytest.raises(UsageError, match=r"capacity=5 needs 0\.0 GiB of memory, but only 0\.0 GiB are free; use less"):
        memory.check_fits("capacity=5", 900, filled=101)
    with pytest.raises(UsageError, match=r"but the machine has only 0\.0 GiB"):
        memory.check_fits("capacity=5", 1001, filled=1)


def test_a_containers_limit_applies_and_its_cache_counts_as_free(tmp_path: Path, monkeypatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 8000 kB\nMemAvailable: 6000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
        "/sys/fs/cgroup/memory.max": "4096000\n",
        "/sys/fs/cgroup/memory.current": "2048000\n",
        "/sys/fs/cgroup/memory.stat": "anon 1024000\ninactive_file 1024000\n",
    }

    def path(name: str) -> Path:
        (tmp_path / name.strip("/")).parent.mkdir(parents=True, exist_ok=True)
        if name in files:
            (tmp_path / name.strip("/")).write_text(files[name])
        return tmp_path / name.strip("/")

    for name in files:
        path(name)
    monkeypatch.setattr(memory, "Path", path)
    assert memory.total_and_free() == (4_096_000, 3_072_000)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert memory.total_and_free() == (8000 << 10, 6000 << 10)
