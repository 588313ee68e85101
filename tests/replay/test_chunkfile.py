"""The record format: decoding returns what was encoded, and refuses anything else."""

from __future__ import annotations

import json
import pickle
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import CheckpointError
from offbeat.replay.chunkfile import DTYPES, MAGIC, decode, encode
from offbeat.types import Chunk, Field, Schema

SMALL = Schema((Field("obs", (2,), "float32"), Field("flag", (), "bool"), Field("none", (0,), "float32")))
SMALL_CHUNK = Chunk(
    {"obs": np.arange(6, dtype=np.float32).reshape(3, 2), "flag": np.array([1, 0, 1], bool), "none": np.zeros((3, 0))},
    worker=2,
    boot=1,
    sequence=40,
)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), shapes), min_size=1, max_size=5), st.integers(0, 4), st.integers(0, 99)
)
def test_what_is_written_is_read(kinds: list, rows: int, seed: int) -> None:
    schema = Schema(tuple(Field(f"näme {index}", shape, dtype) for index, (dtype, shape) in enumerate(kinds)))
    rng = np.random.default_rng(seed)
    columns = {each.name: (rng.random((rows, *each.shape)) * 100).astype(each.dtype) for each in schema}
    chunk = Chunk(columns, worker=3, boot=4, sequence=2**40)
    for found in decode(encode(chunk, schema) * 2, "file"):
        assert (found.worker, found.boot, found.sequence, len(found)) == (3, 4, 2**40, rows)
        for name, column in columns.items():
            assert found.columns[name].dtype == column.dtype
            np.testing.assert_array_equal(found.columns[name], column)


def test_every_changed_byte_is_noticed() -> None:
    data = encode(SMALL_CHUNK, SMALL)
    for position in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= change
            with pytest.raises(CheckpointError, match=r"segment\.chunks"):
                list(decode(bytes(damaged), "segment.chunks"))


def test_every_truncation_is_noticed() -> None:
    data = encode(SMALL_CHUNK, SMALL)
    for length in range(1, len(data)):
        with pytest.raises(CheckpointError):
            list(decode(data[:length], "file"))


def sealed(header: Any, payload: bytes) -> bytes:
    """A record that is right in every outer respect, as an attacker would write it."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (
        MAGIC
        + struct.pack("<IQ", len(raw), len(payload))
        + raw
        + payload
        + struct.pack("<I", zlib.crc32(raw + payload))
    )


GOOD = {"worker": 0, "boot": 0, "sequence": 0, "rows": 2, "fields": [{"name": "x", "dtype": "uint8", "shape": [2]}]}


def field(**change: Any) -> dict[str, Any]:
    return {"fields": [{**GOOD["fields"][0], **change}]}  # type: ignore[index, dict-item]


def test_the_record_that_the_hostile_ones_are_made_from_is_good() -> None:
    (chunk,) = decode(sealed(GOOD, b"1234"), "file")
    np.testing.assert_array_equal(chunk.columns["x"], [[49, 50], [51, 52]])


@pytest.mark.parametrize(
    "change",
    [
        {"rows": -2},
        {"rows": 2.0},
        {"rows": True},
        {"rows": "2"},
        {"rows": 10**30},
        {"sequence": -1},
        {"sequence": 2**62},
        {"worker": None},
        {"fields": []},
        {"fields": {}},
        {"fields": ["x"]},
        {"fields": GOOD["fields"] * 2},  # type: ignore[operator]
        field(dtype="object"),
        field(dtype="O"),
        field(dtype="|V4"),
        field(dtype=["uint8"]),
        field(shape=[-2]),
        field(shape=[2.0]),
        field(shape=[True, 2]),
        field(shape="2"),
        field(shape=[2**40, 2**40]),
        field(shape=[1] * 9),
        field(shape=[0]),
        field(shape=[1]),
        field(shape=[3]),
        field(name=3),
    ],
)
def test_a_hostile_header_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="file"):
        list(decode(sealed({**GOOD, **change}, b"1234"), "file"))


@pytest.mark.parametrize("missing", list(GOOD))
def test_a_missing_key_is_named(missing: str) -> None:
    with pytest.raises(CheckpointError, match=missing):
        list(decode(sealed({key: value for key, value in GOOD.items() if key != missing}, b"1234"), "file"))


def test_shapes_without_bytes_cannot_be_beyond_what_an_array_holds() -> None:
    hostile = {**GOOD, "rows": 2**60, **field(shape=[2**60, 2**60, 0])}
    with pytest.raises(CheckpointError, match="not a valid array"):
        list(decode(sealed(hostile, b""), "file"))


@pytest.mark.parametrize(
    "header", [b"[" * 100_000, b"\xff\xfe", b"null", b"3", b"[]", b'{"rows": ' + b"9" * 5000 + b"}"]
)
def test_a_header_that_is_no_object_is_refused(header: bytes) -> None:
    with pytest.raises(CheckpointError):
        list(decode(sealed(header, b"1234"), "file"))


def test_a_pickle_is_not_a_record() -> None:
    with pytest.raises(CheckpointError, match="not a chunk record"):
        list(decode(pickle.dumps({"a": list(range(100))}), "file"))


def test_a_field_that_files_cannot_hold_is_refused_when_it_is_written() -> None:
    schema = Schema((Field("x", (), "complex64"),))
    with pytest.raises(ValueError, match="'x' is complex64"):
        encode(Chunk({"x": np.zeros(2, np.complex64)}), schema)
