"""A checkpoint's manifest: encodes and decodes the list of its files, with sizes and hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import offbeat
from offbeat.errors import CheckpointError
from offbeat.replay.chunkfile import required
from offbeat.replay.segments import SHARD_NAME, SavedShard
from offbeat.run.snapshot import from_json, to_json

FORMAT = 1
ARRAYS, STATE = "arrays.safetensors", "state.json"


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint.

    files: size and SHA-256 by name. replay: the saved shards by name, or None if the checkpoint holds no replay.
    """

    files: Mapping[str, tuple[int, str]]
    replay: Mapping[str, SavedShard] | None


def encode_manifest(step: int, files: Mapping[str, bytes], replay: Mapping[str, SavedShard] | None) -> bytes:
    content = {
        "format": FORMAT,
        "offbeat": offbeat.__version__,
        "step": step,
        "files": {
            name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()
        },
        "replay": None if replay is None else {name: saved.to_json() for name, saved in replay.items()},
    }
    return to_json(content | {"sha256": hashlib.sha256(to_json(content)).hexdigest()})


def decode_manifest(data: bytes, where: str) -> Manifest:
    content = from_json(data, where)
    version = required(content, "format", int, where)
    if version != FORMAT:
        raise CheckpointError(
            f"{where} has format {version}, written by Offbeat {content.get('offbeat')!r:.40}; Offbeat "
            f"{offbeat.__version__} reads format {FORMAT}: use the version that wrote it"
        )
    sha256 = required(content, "sha256", str, where)
    unsigned = {key: value for key, value in content.items() if key != "sha256"}
    if hashlib.sha256(to_json(unsigned)).hexdigest() != sha256 or to_json(content) != data:
        raise CheckpointError(f"{where} does not match its own hash: it was changed")
    listed = required(content, "files", dict, where)
    if listed.keys() != {ARRAYS, STATE}:
        raise CheckpointError(f"{where} lists the files {sorted(listed)!r:.200}; a checkpoint has {ARRAYS} and {STATE}")
    files = {
        name: (required(each, "size", int, where), required(each, "sha256", str, where))
        for name, each in listed.items()
    }
    if content.get("replay") is None:
        return Manifest(files, None)
    replay = required(content, "replay", dict, where)
    if wrong := [name for name in replay if not SHARD_NAME.fullmatch(name)]:
        raise CheckpointError(f"{where} lists a shard {wrong[0]!r:.80}, which is not a valid shard name")
    return Manifest(files, {name: SavedShard.from_json(value, f"{where} ({name})") for name, value in replay.items()})
