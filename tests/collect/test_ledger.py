"""The ledger of chunk keys: every row counts once, and a row that never came counts as lost."""

from __future__ import annotations

import json

import numpy as np
import pytest

from offbeat.collect import ChunkLedger
from offbeat.errors import OffbeatError
from offbeat.types import Chunk


def chunk(sequence: int, rows: int, worker: int = 0, boot: int = 1) -> Chunk:
    return Chunk({"reward": np.zeros(rows)}, sequence, worker=worker, boot=boot)


def test_chunks_that_follow_each_other_are_accepted_by_worker() -> None:
    ledger = ChunkLedger()
    assert ledger.accept(chunk(0, 4))
    assert ledger.accept(chunk(0, 3, worker=1))
    assert ledger.accept(chunk(4, 2))
    assert ledger.accept(chunk(3, 3, worker=1))
    assert ledger.lost == 0


def test_a_resend_is_refused_whole_or_in_parts() -> None:
    ledger = ChunkLedger()
    for sequence in (0, 4, 8):
        assert ledger.accept(chunk(sequence, 4))
    for sequence, rows in ((0, 4), (4, 4), (8, 4), (0, 12), (9, 2)):
        assert not ledger.accept(chunk(sequence, rows))
    assert ledger.accept(chunk(12, 1))
    assert ledger.lost == 0


def test_a_chunk_with_old_and_new_rows_is_an_error_and_changes_nothing() -> None:
    ledger = ChunkLedger()
    assert ledger.accept(chunk(0, 4))
    with pytest.raises(OffbeatError, match="sent rows 2 to 6, but rows up to 4 were counted already"):
        ledger.accept(chunk(2, 4))
    assert ledger.accept(chunk(4, 4))
    assert ledger.lost == 0


def test_rows_missing_in_a_gap_are_lost() -> None:
    ledger = ChunkLedger()
    assert ledger.accept(chunk(0, 4))
    assert ledger.accept(chunk(10, 4))
    assert ledger.accept(chunk(1, 1, worker=5))
    assert ledger.lost == 6 + 1
    assert not ledger.accept(chunk(4, 6)), "rows that were given up as lost are not counted again"


def test_a_chunk_without_rows_is_accepted_where_the_next_row_is_due() -> None:
    ledger = ChunkLedger()
    assert ledger.accept(chunk(0, 0))
    assert ledger.accept(chunk(0, 4))
    assert ledger.accept(chunk(4, 0))
    assert ledger.lost == 0


@pytest.mark.parametrize(("start", "lost"), [(4, 0), (0, 0), (6, 2), (1, 1)])
def test_a_newer_boot_continues_or_starts_again(start: int, lost: int) -> None:
    ledger = ChunkLedger()
    assert ledger.accept(chunk(0, 4, boot=1))
    assert ledger.accept(chunk(start, 3, boot=2))
    assert ledger.lost == lost
    assert not ledger.accept(chunk(start, 3, boot=2))
    assert ledger.accept(chunk(start + 3, 3, boot=2))


def test_what_a_replaced_process_sends_late_is_refused() -> None:
    ledger = ChunkLedger()
    assert ledger.accept(chunk(0, 4, boot=1))
    assert ledger.accept(chunk(0, 4, boot=2))
    assert not ledger.accept(chunk(4, 4, boot=1))
    assert ledger.accept(chunk(4, 4, boot=2))


def test_a_restored_ledger_refuses_what_was_counted_before() -> None:
    ledger, restored = ChunkLedger(), ChunkLedger()
    for each in (chunk(0, 4), chunk(8, 4), chunk(0, 5, worker=-1, boot=0)):
        assert ledger.accept(each)
    restored.restore(json.loads(json.dumps(ledger.state())))
    assert restored.lost == 4
    assert not restored.accept(chunk(8, 4))
    assert not restored.accept(chunk(0, 5, worker=-1, boot=0))
    assert restored.accept(chunk(12, 4))
    assert restored.accept(chunk(0, 4, boot=2))
    assert restored.lost == 4
