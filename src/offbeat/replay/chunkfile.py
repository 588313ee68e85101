"""The record format of chunks on disk, which replay segments consist of.

A record is the magic, the lengths of header and payload (little-endian), a JSON header (worker, boot, sequence, rows,
and each field's name, dtype and shape), the columns' raw little-endian bytes in the header's order, and a CRC-32 of
header and payload. Decoding executes nothing and checks everything before use.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

from offbeat.errors import CheckpointError
from offbeat.types import Array, Chunk, Field, Schema

MAGIC = b"OFFBEATC"
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_FRAME = struct.Struct("<8sIQ")
_CHECKSUM = struct.Struct("<I")
_LONGEST_HEADER = 1 << 20
_Kind = TypeVar("_Kind")


def encode(chunk: Chunk, schema: Schema) -> bytes:
    """Encodes the schema's fields of a chunk as one record."""
    for field in schema:
        if field.dtype not in DTYPES:
            raise ValueError(f"field {field.name!r} is {field.dtype}; files may hold {', '.join(DTYPES)}")
    header = json.dumps(
        {
            "worker": chunk.worker,
            "boot": chunk.boot,
            "sequence": chunk.sequence,
            "rows": len(chunk),
            "fields": [{"name": each.name, "dtype": each.dtype, "shape": list(each.shape)} for each in schema],
        },
        separators=(",", ":"),
    ).encode()
    if len(header) > _LONGEST_HEADER:
        raise ValueError(
            f"the schema needs a header of {len(header)} bytes; a record allows {_LONGEST_HEADER}: use fewer fields or "
            "shorter names"
        )
    columns = [np.asarray(chunk.columns[each.name], little_endian(each.dtype)).tobytes() for each in schema]
    length = sum(len(column) for column in columns)
    checksum = zlib.crc32(header)
    for column in columns:
        checksum = zlib.crc32(column, checksum)
    return b"".join([_FRAME.pack(MAGIC, len(header), length), header, *columns, _CHECKSUM.pack(checksum)])


def decode(data: bytes, where: str) -> Iterator[Chunk]:
    """Yields the chunks in a file's bytes, as read-only views of them; `where` names the file in errors."""
    view, position = memoryview(data), 0
    while position < len(view):
        chunk, position = _record(view, position, f"{where} at byte {position}")
        yield chunk


def little_endian(dtype: str) -> np.dtype[Any]:
    """The dtype in little-endian byte order, which all files use."""
    return np.dtype(dtype).newbyteorder("<")


def required(record: Any, key: str, kind: type[_Kind], where: str) -> _Kind:
    """Returns `record[key]`. CheckpointError if it is missing, of another JSON type, or a negative integer."""
    if not isinstance(record, dict) or key not in record:
        raise CheckpointError(f"{where} has no {key!r}")
    value = record[key]
    if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
        raise CheckpointError(f"{where} has {key}={value!r:.60}, which is not a valid {kind.__name__}")
    return value


def _record(view: memoryview, start: int, where: str) -> tuple[Chunk, int]:
    if len(view) - start < _FRAME.size:
        raise CheckpointError(f"{where} ends in the middle of a record")
    magic, header_length, length = _FRAME.unpack_from(view, start)
    if magic != MAGIC:
        raise CheckpointError(f"{where} is not a chunk record: it starts with {magic!r}, not {MAGIC!r}")
    body = start + _FRAME.size
    stop = body + header_length + length
    if header_length > _LONGEST_HEADER or stop + _CHECKSUM.size > len(view):
        raise CheckpointError(f"{where} declares {header_length} + {length} bytes, more than the file holds")
    if _CHECKSUM.unpack_from(view, stop)[0] != zlib.crc32(view[body:stop]):
        raise CheckpointError(f"{where} does not match its checksum: its bytes were changed")
    payload = view[body + header_length : stop]
    return _chunk(bytes(view[body : body + header_length]), payload, where), stop + _CHECKSUM.size


def _chunk(header: bytes, payload: memoryview, where: str) -> Chunk:
    try:
        description = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} has a header that is not JSON: {error}") from error
    rows = required(description, "rows", int, where)
    columns: dict[str, Array] = {}
    position = 0
    for entry in required(description, "fields", list, where):
        field = _field(entry, where)
        length = rows * field.size * np.dtype(field.dtype).itemsize
        if field.name in columns or position + length > len(payload):
            raise CheckpointError(
                f"{where} has a field {field.name!r:.60} that is duplicated or longer than the record"
            )
        flat = np.frombuffer(payload[position : position + length], little_endian(field.dtype))
        try:
            columns[field.name] = flat.reshape(rows, *field.shape)
        except (ValueError, OverflowError) as error:  # zero bytes, but a shape that NumPy does not allow
            raise CheckpointError(
                f"{where} has {rows} rows of shape {field.shape}, which is not a valid array shape"
            ) from error
        position += length
    if position != len(payload) or not columns:
        raise CheckpointError(f"{where} has {len(payload)} bytes of rows, but its header describes {position}")
    worker, boot, sequence = (required(description, key, int, where) for key in ("worker", "boot", "sequence"))
    if sequence + rows >= 1 << 62:
        raise CheckpointError(f"{where} has sequence={sequence}, which exceeds the largest row number")
    return Chunk(columns, worker=worker, boot=boot, sequence=sequence)


def _field(entry: Any, where: str) -> Field:
    name, dtype = required(entry, "name", str, where), required(entry, "dtype", str, where)
    shape = required(entry, "shape", list, where)
    if dtype not in DTYPES:
        raise CheckpointError(f"{where} has dtype {dtype!r:.60}; files may hold {', '.join(DTYPES)}")
    if len(shape) > 8 or not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) >= 1 << 40:
        raise CheckpointError(f"{where} has shape={shape!r:.60}, which is not a valid field shape")
    return Field(name, tuple(shape), dtype)
