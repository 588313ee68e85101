"""Checkpoints of a run: a crash at any moment leaves the old one or the new one, and what is read is not trusted.

checkpoints/<folder>/   arrays.safetensors, state.json, manifest.json (sizes and hashes; written last)
checkpoints/latest      the name of the newest checkpoint's folder; `best` likewise
replay/                 segments of rows, shared by the checkpoints that list them
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from offbeat import durable
from offbeat.errors import CheckpointError
from offbeat.replay.chunkfile import little
from offbeat.replay.segments import SEGMENT_BYTES, SEGMENT_NAME, SHARD_NAME, Listing, Segments, rows
from offbeat.replay.shard import Shard
from offbeat.run.manifest import ARRAYS, STATE, Manifest, decode_manifest, encode_manifest
from offbeat.run.snapshot import (
    Snapshot,
    decode_arrays,
    decode_state,
    encode_arrays,
    encode_state,
    logical_parts,
    to_json,
)

_FOLDER = re.compile(r"(?P<kind>step|best)-(?P<step>[0-9]{12,18})(-(?P<repeat>[0-9]{1,6}))?")
_ASIDE = ".aside-"
_MANIFEST = "manifest.json"
_LONGEST_POINTER = 100
_LARGEST_MANIFEST = 64 << 20


class Checkpoints:
    """The checkpoints of the run in the directory `root`.

    Kept are the best and the `keep` newest of this run's line, or the whole line for None; what a run that went back no
    longer has made goes with its next save. `segment_bytes` is the size at which a segment of replay is closed; it
    changes the files, never the content.
    """

    def __init__(self, root: Path, *, keep: int | None = 2, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.root = Path(root)
        self._folders, self._replay = self.root / "checkpoints", self.root / "replay"
        self._keep, self._segment_bytes = keep, segment_bytes
        self._segments: dict[str, Segments] = {}
        self._line: list[str] | None = None  # of folders up to the one that this object saved last, or went on from

    def save(
        self, snapshot: Snapshot, shards: Mapping[str, Shard], step: int, ends: Mapping[str, int] | None = None
    ) -> str:
        """Saves the snapshot and the shards' rows, of which only new ones are written; returns the folder's name.

        ends: as if each shard ended before this row, where its writer has gone on since the snapshot.
        """
        for name in shards:
            if not SHARD_NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot name a shard; use small letters, digits, - and _")
        with self._saving(f"the checkpoint at step {step} could not be saved in {self.root}"):
            self._prepare()
            line = self._line if self._line is not None else self._up_to(self._pointed("latest"))
            replay = {name: self._follow(name).append(shard, (ends or {}).get(name)) for name, shard in shards.items()}
            folder = self._commit("step", step, snapshot, replay)
            durable.write_file(self._folders / "latest", f"{folder}\n".encode())
        self._line = [*line, folder] if self._keep is None else [*line, folder][-self._keep :]
        self._segments = {name: self._segments[name] for name in shards}
        with self._saving(f"{self._folders / folder} is saved, but older files could not be removed"):
            self._remove_folders("step", set(self._line))
            self._remove_segments(set(self._line))
        return folder

    def _up_to(self, folder: str | None) -> list[str]:
        """The folders of steps in their order, up to this one."""
        steps = [name for name in self.names() if name.startswith("step-")]
        return steps[: steps.index(folder) + 1] if folder in steps else []

    def save_best(self, snapshot: Snapshot, step: int) -> str:
        """Saves the snapshot as the best so far, without replay; returns the folder's name."""
        with self._saving(f"the best checkpoint, of step {step}, could not be saved in {self.root}"):
            self._prepare()
            folder = self._commit("best", step, snapshot, None)
            durable.write_file(self._folders / "best", f"{folder}\n".encode())
        with self._saving(f"{self._folders / folder} is saved, but older files could not be removed"):
            self._remove_folders("best", {folder})
        return folder

    def forget_best_after(self, step: int) -> bool:
        """Removes a best checkpoint of a later step, which a run that goes back to `step` no longer has made."""
        with contextlib.suppress(CheckpointError):
            match = _FOLDER.fullmatch(self._resolve("best"))
            if match is None or int(match["step"]) <= step:
                return False
            with self._saving("forgetting the best checkpoint"):
                durable.remove_file(self._folders / "best")
                self._remove_folders("best", set())
            return True
        return False

    def load(self, which: str = "latest") -> Snapshot:
        """The snapshot of `latest`, `best` or a folder by its name, after checking every file of it but replay."""
        with self._explained(which):
            folder = self._resolve(which)
            return self._snapshot(folder, self._manifest(folder))

    def name_of(self, which: str = "latest") -> str:
        """The name of the folder that `latest` or `best` points to; a folder's own name stays."""
        with self._explained(which):
            return self._resolve(which)

    def load_replay(self, which: str, shards: Mapping[str, Shard]) -> None:
        """Fills the shards with the checkpoint's rows, and makes later saves go on from this checkpoint.

        A shard may have another capacity than it had: a smaller one keeps the newest rows.
        """
        with self._explained(which):
            folder = self._resolve(which)
            replay = self._manifest(folder).replay
            if replay is None:
                raise CheckpointError(
                    f"{self._folders / folder} holds no replay; resume from `latest` or a step folder"
                )
            if replay.keys() != shards.keys():
                raise CheckpointError(
                    f"{self._folders / folder} holds the shards {sorted(replay)}, this run has {sorted(shards)}; "
                    "resume with the collectors that made the checkpoint"
                )
            self._segments = {}
            for name, listing in replay.items():
                self._follow(name).resume(listing, shards[name])
            self._line = self._up_to(folder)

    def names(self) -> list[str]:
        """The folders that are there, intact or not, in the order of their steps, best ones last."""
        found = [match for match in map(_FOLDER.fullmatch, durable.listing(self._folders)) if match]
        found.sort(key=lambda match: (match["kind"] != "step", int(match["step"]), int(match["repeat"] or 1)))
        return [match.string for match in found]

    def verify(self, which: str = "latest") -> None:
        """Reads everything that the checkpoint names, replay included; CheckpointError says what is wrong."""
        with self._explained(which):
            self._verify(self._resolve(which))

    def digest(self, which: str = "latest") -> str:
        """One SHA-256 over the logical content: arrays, values, and the rows in the ring, field by field.

        Notes, folder names, times, segment sizes and the rhythm of saving are not in it.
        """
        with self._explained(which):
            folder = self._resolve(which)
            manifest = self._manifest(folder)
            parts = logical_parts(self._snapshot(folder, manifest))
            for name, listing in sorted((manifest.replay or {}).items()):
                parts.append(to_json([name, listing.oldest, listing.committed]))
                parts += self._field_digests(listing)
            total = hashlib.sha256()
            for part in parts:
                total.update(len(part).to_bytes(8, "little"))
                total.update(part)
            return total.hexdigest()

    # Saving

    def _prepare(self) -> None:
        """Makes the directories, and removes what a crashed save left aside."""
        for directory in (self._folders, self._replay):
            durable.make_directory(directory)
            durable.stay_inside(directory, self.root)
        for name in durable.listing(self._folders):
            if name.startswith(_ASIDE):
                durable.remove_tree(self._folders / name)

    def _follow(self, name: str) -> Segments:
        if name not in self._segments:
            self._segments[name] = Segments(self._replay, name, segment_bytes=self._segment_bytes)
        return self._segments[name]

    def _commit(self, kind: str, step: int, snapshot: Snapshot, replay: Mapping[str, Listing] | None) -> str:
        """Writes a folder aside, renames it into place, and reads it again before anything points to it."""
        files = {ARRAYS: encode_arrays(snapshot.arrays), STATE: encode_state(snapshot)}
        folder, taken = f"{kind}-{step:012d}", self.names()
        repeat = 1
        while folder in taken:
            repeat += 1
            folder = f"{kind}-{step:012d}-{repeat}"
        aside = self._folders / f"{_ASIDE}{folder}"
        durable.make_directory(aside)
        for name, data in files.items():
            durable.create(aside / name, data)
        durable.create(aside / _MANIFEST, encode_manifest(step, files, replay))
        durable.fsync_directory(aside)
        durable.rename(aside, self._folders / folder)
        try:
            self._verify(folder, rows_too=False)
        except CheckpointError:
            self._segments = {}  # the files are not what they should be: the next save writes the whole ring anew
            raise
        return folder

    def _remove_folders(self, kind: str, keep: set[str]) -> None:
        """Removes this kind's other folders; each loses its name first, so that no half-removed one is ever seen."""
        for name in self.names():
            if name.startswith(f"{kind}-") and name not in keep:
                aside = self._folders / f"{_ASIDE}{name}"
                durable.rename(self._folders / name, aside)
                durable.remove_tree(aside)

    def _remove_segments(self, keep: set[str]) -> None:
        """Removes segments that no kept checkpoint lists, and bytes past the longest prefix that one lists."""
        lengths: dict[str, int] = {}
        for folder in keep:
            with contextlib.suppress(CheckpointError):  # a damaged checkpoint cannot be loaded, and so needs no rows
                replay = self._manifest(folder).replay
                for segment in (entry for listing in (replay or {}).values() for entry in listing.segments):
                    lengths[segment.name] = max(segment.length, lengths.get(segment.name, 0))
        for name in filter(SEGMENT_NAME.fullmatch, durable.listing(self._replay)):
            path = self._replay / name
            if name not in lengths:
                durable.remove_file(path)
            elif (durable.size(path) or 0) > lengths[name]:
                durable.truncate(path, lengths[name])

    @contextlib.contextmanager
    def _saving(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "the disk is full: free some space" if full else "check the directory and its disk"
            raise CheckpointError(
                f"{what}: {error}; {remedy}, then save again or resume. What was saved before is intact"
            ) from error

    # Reading: nothing is believed before it is checked

    def _resolve(self, which: str) -> str:
        """The folder that `which` names."""
        if which not in ("latest", "best"):
            if not _FOLDER.fullmatch(which):
                there = [name for name in ("latest", "best", *self.names()[-8:]) if (self._folders / name).exists()]
                raise CheckpointError(
                    f"{which!r:.120} is not a checkpoint's name; {self.root} has {', '.join(there) or 'none'}"
                )
            return which
        pointer = self._folders / which
        durable.stay_inside(pointer, self.root)
        if durable.size(pointer) is None:
            raise CheckpointError(f"{self.root} has no checkpoint {which!r}: there is no file {pointer}")
        folder = durable.read_file(pointer, _LONGEST_POINTER).decode("ascii", "replace").removesuffix("\n")
        if not _FOLDER.fullmatch(folder):
            raise CheckpointError(f"{pointer} holds {folder!r}, which is not a checkpoint's name")
        return folder

    def _pointed(self, which: str) -> str | None:
        """The folder that `which` names, or None where it names none."""
        try:
            return self._resolve(which)
        except CheckpointError:
            return None

    def _read(self, path: Path, limit: int) -> bytes:
        durable.stay_inside(path, self.root)
        found = durable.size(path)
        if found is None:
            raise CheckpointError(f"{path} is missing")
        if found > limit:
            raise CheckpointError(f"{path} has {found} bytes; at most {limit} are expected")
        return durable.read_file(path)

    def _manifest(self, folder: str) -> Manifest:
        path = self._folders / folder / _MANIFEST
        if durable.size(path) is None:
            there = ", ".join(self.names()) or "none"
            raise CheckpointError(f"there is no checkpoint {folder}: {path} is missing; there are {there}")
        return decode_manifest(self._read(path, _LARGEST_MANIFEST), str(path))

    def _snapshot(self, folder: str, manifest: Manifest) -> Snapshot:
        contents = {}
        for name, (size, sha256) in manifest.files.items():
            path = self._folders / folder / name
            data = self._read(path, size)
            if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
                raise CheckpointError(f"{path} does not match its manifest: it was truncated or changed")
            contents[name] = (data, str(path))
        values, notes = decode_state(*contents[STATE])
        return Snapshot(decode_arrays(*contents[ARRAYS]), values, notes)

    def _verify(self, folder: str, *, rows_too: bool = True) -> None:
        """Without rows, of segments only the lengths are checked: a save must not cost what is stored."""
        manifest = self._manifest(folder)
        self._snapshot(folder, manifest)
        for listing in (manifest.replay or {}).values():
            for segment in listing.segments:
                found = durable.size(self._replay / segment.name)
                if found is None or found < segment.length:
                    raise CheckpointError(f"{self._replay / segment.name} is missing or shorter than was written")
            if rows_too:
                for _ in rows(self._replay, listing):
                    pass

    def _field_digests(self, listing: Listing) -> list[bytes]:
        """Name, dtype, shape and hash of each field over all rows, whatever records they came in."""
        fields: dict[str, Any] = {}
        kinds: dict[str, bytes] = {}
        for chunk in rows(self._replay, listing):
            for name, column in chunk.columns.items():
                kind = to_json([name, column.dtype.name, list(column.shape[1:])])
                if kinds.setdefault(name, kind) != kind:
                    raise CheckpointError(f"the rows in {self._replay} change their field {name!r:.60} on the way")
                running = fields.setdefault(name, hashlib.sha256())
                running.update(column.astype(little(column.dtype.name), copy=False).tobytes())
        return [kinds[name] + fields[name].digest() for name in sorted(fields)]

    @contextlib.contextmanager
    def _explained(self, which: str) -> Iterator[None]:
        """Adds to an error what can be done: the checkpoints of the run that are intact."""
        try:
            yield
        except (CheckpointError, OSError) as error:
            raise CheckpointError(f"{error}{self._remedy(which)}") from error

    def _remedy(self, which: str) -> str:
        try:
            folder = self._pointed(which)
            if folder is None and which not in ("latest", "best"):
                return ""  # it is misspelt, and the error lists the names
            if folder is not None and self._intact(folder):  # it is whole but does not fit: others would not either
                return ""
            commands = [
                f"`offbeat resume {self.root} --checkpoint {name}`" for name in self.names() if self._intact(name)
            ]
        except OSError as error:
            return f"; {self._folders} cannot be read: {error}"
        return f"; intact: {', '.join(commands)}" if commands else "; no other checkpoint of this run is intact"

    def _intact(self, folder: str) -> bool:
        """Whether a run can go on from the folder."""
        try:
            self._verify(folder)
            return self._manifest(folder).replay is not None
        except (CheckpointError, OSError):
            return False


def digest(root: Path, which: str = "latest") -> str:
    """One SHA-256 over a checkpoint's logical content, to compare two runs by."""
    return Checkpoints(root).digest(which)
