"""JSON lines: records are read back as written, also after a crash and a resume."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from offbeat.errors import OffbeatError
from offbeat.observe.jsonl import Jsonl, read


def test_what_is_written_is_read_back_in_order(tmp_path: Path) -> None:
    with Jsonl(tmp_path / "log.jsonl") as log:
        log.write({"step": 1, "losses": {"critic": 0.5}})
        log.write({"step": 2, "name": "größe"})
    assert read(tmp_path / "log.jsonl") == [{"step": 1, "losses": {"critic": 0.5}}, {"step": 2, "name": "größe"}]


def test_numpy_values_become_plain_numbers_and_lists(tmp_path: Path) -> None:
    with Jsonl(tmp_path / "log.jsonl") as log:
        log.write(
            {"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True), "d": np.arange(3), "e": (1, np.int8(2))}
        )
    assert read(log.path) == [{"a": 0.5, "b": 3, "c": True, "d": [0, 1, 2], "e": [1, 2]}]


def test_numbers_that_json_lacks_are_null_at_any_depth(tmp_path: Path) -> None:
    with Jsonl(tmp_path / "log.jsonl") as log:
        log.write({"a": float("nan"), "b": np.float32("inf"), "c": [1.0, -np.inf], "d": {"e": np.array([np.nan])}})
    line = log.path.read_text()
    assert json.loads(line) == {"a": None, "b": None, "c": [1.0, None], "d": {"e": [None]}}
    assert "NaN" not in line
    assert "Infinity" not in line


def test_a_line_is_visible_to_other_readers_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with Jsonl(tmp_path / "log.jsonl") as log:
        log.write({"step": 1})
        assert read(log.path) == [{"step": 1}]


def test_a_line_is_compact_and_has_no_line_break_inside(tmp_path: Path) -> None:
    with Jsonl(tmp_path / "log.jsonl") as log:
        log.write({"text": "two\nlines", "n": 1})
    assert log.path.read_bytes() == b'{"text":"two\\nlines","n":1}\n'


def test_truncate_goes_back_to_the_length_that_sync_returned(tmp_path: Path) -> None:
    with Jsonl(tmp_path / "log.jsonl") as log:
        log.write({"step": 1})
        length = log.sync()
        assert length == log.path.stat().st_size
        log.write({"step": 2})
    with Jsonl(log.path) as resumed:
        assert resumed.truncate(length) is True
        resumed.write({"step": 3})
    assert read(log.path) == [{"step": 1}, {"step": 3}]


def test_truncate_drops_a_last_line_without_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":')
    with Jsonl(path) as log:
        assert log.truncate(path.stat().st_size) is False
        log.write({"step": 2})
    assert read(path) == [{"step": 1}, {"step": 2}]


def test_truncating_to_nothing_leaves_an_empty_log(tmp_path: Path) -> None:
    with Jsonl(tmp_path / "log.jsonl") as log:
        log.write({"step": 1})
        assert log.truncate(0) is True
    assert read(log.path) == []


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        (None, []),
        (b"", []),
        (b'{"step":1}\n', [{"step": 1}]),
        (b'{"step":1}\n{"step":', [{"step": 1}]),
        (b'{"step":1}\n{"other":"line"}\n', [{"step": 1}]),
    ],
)
def test_a_log_that_lost_lines_keeps_the_complete_ones_and_reports_it(
    left: bytes | None, kept: list[dict[str, int]], tmp_path: Path
) -> None:
    if left is not None:
        (tmp_path / "log.jsonl").write_bytes(left)
    with Jsonl(tmp_path / "log.jsonl") as log:
        assert log.truncate(len(b'{"step":1}\n{"step":2}\n')) is False
        assert read(log.path) == kept
        log.write({"step": 3})
    assert read(log.path) == [*kept, {"step": 3}]


def test_read_leaves_out_a_line_that_is_still_being_written(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b'{"step":1}\n{"st')
    assert read(tmp_path / "log.jsonl") == [{"step": 1}]


def test_read_names_the_line_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b'{"step":1}\nbroken\n')
    with pytest.raises(OffbeatError, match="line 2 is not JSON"):
        read(tmp_path / "log.jsonl")
