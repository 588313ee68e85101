"""Checkpoints of a run: saving is atomic, and loading checks every byte before use.

checkpoints/<folder>/   arrays.safetensors, state.json, manifest.json (sizes and hashes; written last)
checkpoints/latest      the name of the newest checkpoint's folder; checkpoints/best: that of the best one
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
from offbeat.replay.chunkfile import little_endian, required
from offbeat.replay.segments import SEGMENT_BYTES, SEGMENT_NAME, SHARD_NAME, SavedShard, SegmentFiles, read_rows
from offbeat.replay.shard import Shard
from offbeat.run.manifest import ARRAYS, STATE, Manifest, decode_manifest, encode_manifest
from offbeat.run.snapshot import Snapshot, decode_arrays, encode_arrays, from_json, logical_parts, to_json
from offbeat.types import Chunk

_FOLDER = re.compile(r"(?P<kind>step|best)-(?P<step>[0-9]{12,18})(-(?P<repeat>[0-9]{1,6}))?")
_TEMPORARY = ".aside-"
_MANIFEST = "manifest.json"
_LONGEST_POINTER = 100
_LARGEST_MANIFEST = 64 << 20


class Checkpoints:
    """The checkpoints of the run in the directory `root`.

    It keeps the best checkpoint and the `keep` newest of this run's lineage, or the whole lineage for None. When a run
    resumes from an older checkpoint, the next save removes the later ones. A segment of replay is closed at
    `segment_bytes`, which changes the files but not the content.
    """

    def __init__(self, root: Path, *, keep: int | None = 2, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.root = Path(root)
        self._directory, self._replay = self.root / "checkpoints", self.root / "replay"
        self._keep, self._segment_bytes = keep, segment_bytes
        self._segments: dict[str, SegmentFiles] = {}
        # Folders up to the one that was saved last, or that the run resumed from.
        self._lineage: list[str] | None = None

    def save(
        self,
        snapshot: Snapshot,
        shards: Mapping[str, Shard],
        step: int,
        ends: Mapping[str, int] | None = None,
        others: Mapping[str, SavedShard] | None = None,
    ) -> str:
        """Saves the snapshot and the shards, of which it writes only new rows; returns the folder's name.

        ends: by shard, the row before which to stop, if its writer has continued since the snapshot. others: shards
        that other ranks have written with `append`.
        """
        with self._explain_save_errors(f"the checkpoint at step {step} could not be saved in {self.root}"):
            self._prepare()
            lineage = self._lineage if self._lineage is not None else self._lineage_of(self._resolve_or_none("latest"))
            replay = self._append(shards, ends or {})
            folder = self._commit("step", step, snapshot, {**replay, **(others or {})})
            durable.write_file(self._directory / "latest", f"{folder}\n".encode())
        self._segments = {name: self._segments[name] for name in shards}
        self._keep_lineage([*lineage, folder])
        return folder

    def append(self, shards: Mapping[str, Shard], ends: Mapping[str, int] | None = None) -> dict[str, SavedShard]:
        """Writes the new rows of shards, for a checkpoint that another process saves."""
        with self._explain_save_errors(f"rows could not be saved in {self._replay}"):
            durable.make_directory(self._replay)
            return self._append(shards, ends or {})

    def _append(self, shards: Mapping[str, Shard], ends: Mapping[str, int]) -> dict[str, SavedShard]:
        for name in shards:
            if not SHARD_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid shard name; use lower-case letters, digits, - and _")
        return {name: self._segment_files(name).append(shard, ends.get(name)) for name, shard in shards.items()}

    def save_again(self, snapshot: Snapshot) -> str:
        """Saves a snapshot as the newest checkpoint, with the step and the replay of the newest one before it."""
        with self._explain_save_errors(f"the newest checkpoint could not be saved again in {self.root}"):
            self._prepare()
            newest = self._resolve("latest")
            lineage, replay = self._lineage_of(newest), self._manifest(newest).replay
            folder = self._commit("step", int(newest.split("-")[1]), snapshot, replay)
            durable.write_file(self._directory / "latest", f"{folder}\n".encode())
        self._keep_lineage([*lineage, folder])
        return folder

    def _keep_lineage(self, lineage: list[str]) -> None:
        """Removes every step folder but the newest ones of a lineage, which ends with the one just saved."""
        self._lineage = lineage if self._keep is None else lineage[-self._keep :]
        saved = self._directory / lineage[-1]
        with self._explain_save_errors(f"{saved} is saved, but older files could not be removed"):
            self._remove_folders("step", set(self._lineage))
            self._remove_segments(set(self._lineage))

    def _lineage_of(self, folder: str | None) -> list[str]:
        """The step folders up to this one, in order; [] if it does not exist."""
        steps = [name for name in self.names() if name.startswith("step-")]
        return steps[: steps.index(folder) + 1] if folder in steps else []

    def save_best(self, snapshot: Snapshot, step: int) -> str:
        """Saves the snapshot as the best so far, without replay; returns the folder's name."""
        with self._explain_save_errors(f"the best checkpoint, of step {step}, could not be saved in {self.root}"):
            self._prepare()
            folder = self._commit("best", step, snapshot, None)
            durable.write_file(self._directory / "best", f"{folder}\n".encode())
        with self._explain_save_errors(f"{self._directory / folder} is saved, but older files could not be removed"):
            self._remove_folders("best", {folder})
        return folder

    def remove_best_after(self, step: int) -> bool:
        """Removes the best checkpoint if it is later than `step`, where the run resumes; returns whether it did."""
        with contextlib.suppress(CheckpointError):
            match = _FOLDER.fullmatch(self._resolve("best"))
            if match is None or int(match["step"]) <= step:
                return False
            with self._explain_save_errors("the outdated best checkpoint could not be removed"):
                durable.remove_file(self._directory / "best")
                self._remove_folders("best", set())
            return True
        return False

    def load(self, which: str = "latest") -> Snapshot:
        """Loads the snapshot of `latest`, `best` or a folder name; checks all of its files except replay."""
        with self._with_remedy(which):
            folder = self._resolve(which)
            return self._snapshot(folder, self._manifest(folder))

    def folder_name(self, which: str = "latest") -> str:
        """The folder that `latest` or `best` points to; a folder name is returned unchanged."""
        with self._with_remedy(which):
            return self._resolve(which)

    def continue_from(self, which: str) -> None:
        """Later saves continue from this checkpoint, and write all rows anew."""
        self._segments, self._lineage = {}, self._lineage_of(self._resolve(which))

    def rows_of(self, which: str) -> list[tuple[int, Iterator[Chunk]]]:
        """The rows of every shard of a checkpoint: how many, and chunks of them in their order."""
        with self._with_remedy(which):
            replay = self._manifest(self._resolve(which)).replay or {}
        return [(saved.committed - saved.oldest, read_rows(self._replay, saved)) for _, saved in sorted(replay.items())]

    def load_replay(self, which: str, shards: Mapping[str, Shard], *, partly: bool = False) -> None:
        """Fills the shards with the checkpoint's rows; later saves continue from this checkpoint.

        A shard's capacity may differ from the saved one; a smaller shard keeps the newest rows. partly: the checkpoint
        has shards of other ranks, too.
        """
        with self._with_remedy(which):
            folder = self._resolve(which)
            replay = self._manifest(folder).replay
            if replay is None:
                raise CheckpointError(
                    f"{self._directory / folder} holds no replay; resume from `latest` or from a step folder"
                )
            if partly:
                replay = {name: saved for name, saved in replay.items() if name in shards}
            if replay.keys() != shards.keys():
                raise CheckpointError(
                    f"{self._directory / folder} holds the shards {sorted(replay)}, this run has {sorted(shards)}; "
                    "resume with the collectors that made the checkpoint"
                )
            self._segments = {}
            for name, saved in replay.items():
                self._segment_files(name).resume(saved, shards[name])
            self._lineage = self._lineage_of(folder)

    def names(self) -> list[str]:
        """The existing folders, intact or not, in the order of their steps; best ones last."""
        folders = [match for match in map(_FOLDER.fullmatch, durable.list_names(self._directory)) if match]
        folders.sort(key=lambda match: (match["kind"] != "step", int(match["step"]), int(match["repeat"] or 1)))
        return [match.string for match in folders]

    def verify(self, which: str = "latest") -> None:
        """Reads and checks all files of the checkpoint, including replay; raises CheckpointError for any defect."""
        with self._with_remedy(which):
            self._verify(self._resolve(which))

    def digest(self, which: str = "latest") -> str:
        """One SHA-256 over the logical content: arrays, values, and the rows in the ring, field by field.

        It does not depend on notes, folder names, times, segment sizes and how often the run was saved.
        """
        with self._with_remedy(which):
            folder = self._resolve(which)
            manifest = self._manifest(folder)
            parts = logical_parts(self._snapshot(folder, manifest))
            for name, saved in sorted((manifest.replay or {}).items()):
                parts.append(to_json([name, saved.oldest, saved.committed]))
                parts += self._field_digests(saved)
            total = hashlib.sha256()
            for part in parts:
                total.update(len(part).to_bytes(8, "little"))
                total.update(part)
            return total.hexdigest()

    # Saving

    def _prepare(self) -> None:
        """Makes the directories, and removes temporary folders of an interrupted save."""
        for directory in (self._directory, self._replay):
            durable.make_directory(directory)
            durable.check_inside(directory, self.root)
        for name in durable.list_names(self._directory):
            if name.startswith(_TEMPORARY):
                durable.remove_tree(self._directory / name)

    def _segment_files(self, name: str) -> SegmentFiles:
        if name not in self._segments:
            self._segments[name] = SegmentFiles(self._replay, name, segment_bytes=self._segment_bytes)
        return self._segments[name]

    def _commit(self, kind: str, step: int, snapshot: Snapshot, replay: Mapping[str, SavedShard] | None) -> str:
        """Writes a temporary folder, renames it, and verifies it before `latest` or `best` points to it."""
        state = to_json({"values": snapshot.values, "notes": snapshot.notes})
        files = {ARRAYS: encode_arrays(snapshot.arrays), STATE: state}
        folder, taken = f"{kind}-{step:012d}", self.names()
        repeat = 1
        while folder in taken:
            repeat += 1
            folder = f"{kind}-{step:012d}-{repeat}"
        temporary = self._directory / f"{_TEMPORARY}{folder}"
        durable.make_directory(temporary)
        for name, data in files.items():
            durable.create(temporary / name, data)
        durable.create(temporary / _MANIFEST, encode_manifest(step, files, replay))
        durable.fsync_directory(temporary)
        durable.rename(temporary, self._directory / folder)
        try:
            self._verify(folder, check_rows=False)
        except CheckpointError:
            self._segments = {}  # a file was damaged, so the next save writes all rows again
            raise
        return folder

    def _remove_folders(self, kind: str, keep: set[str]) -> None:
        """Removes the other folders of this kind. Renames each first, so that no reader sees a half-removed one."""
        for name in self.names():
            if name.startswith(f"{kind}-") and name not in keep:
                temporary = self._directory / f"{_TEMPORARY}{name}"
                durable.rename(self._directory / name, temporary)
                durable.remove_tree(temporary)

    def _remove_segments(self, keep: set[str]) -> None:
        """Removes segments that no kept checkpoint lists, and bytes past the longest prefix that one lists."""
        lengths: dict[str, int] = {}
        for folder in keep:
            with contextlib.suppress(CheckpointError):  # a damaged checkpoint cannot be loaded, so it needs no rows
                replay = self._manifest(folder).replay
                for segment in (entry for saved in (replay or {}).values() for entry in saved.segments):
                    lengths[segment.name] = max(segment.length, lengths.get(segment.name, 0))
        for name in filter(SEGMENT_NAME.fullmatch, durable.list_names(self._replay)):
            path = self._replay / name
            if name not in lengths:
                durable.remove_file(path)
            elif (durable.size(path) or 0) > lengths[name]:
                durable.truncate(path, lengths[name])

    @contextlib.contextmanager
    def _explain_save_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "the disk is full: free some space" if full else "check the directory and its disk"
            raise CheckpointError(
                f"{what}: {error}; {remedy}, then save again or resume. Earlier checkpoints are intact"
            ) from error

    # Reading: everything is checked before use

    def _resolve(self, which: str) -> str:
        """The folder that `which` names."""
        if which not in ("latest", "best"):
            if not _FOLDER.fullmatch(which):
                existing = [
                    name for name in ("latest", "best", *self.names()[-8:]) if (self._directory / name).exists()
                ]
                raise CheckpointError(
                    f"{which!r:.120} is not a checkpoint name; {self.root} has {', '.join(existing) or 'none'}"
                )
            return which
        pointer = self._directory / which
        durable.check_inside(pointer, self.root)
        if durable.size(pointer) is None:
            raise CheckpointError(f"{self.root} has no checkpoint {which!r}: there is no file {pointer}")
        folder = durable.read_file(pointer, _LONGEST_POINTER).decode("ascii", "replace").removesuffix("\n")
        if not _FOLDER.fullmatch(folder):
            raise CheckpointError(f"{pointer} holds {folder!r}, which is not a checkpoint name")
        return folder

    def _resolve_or_none(self, which: str) -> str | None:
        """The folder that `which` names, or None if there is none."""
        try:
            return self._resolve(which)
        except CheckpointError:
            return None

    def _read(self, path: Path, limit: int) -> bytes:
        durable.check_inside(path, self.root)
        size = durable.size(path)
        if size is None:
            raise CheckpointError(f"{path} is missing")
        if size > limit:
            raise CheckpointError(f"{path} has {size} bytes; at most {limit} are expected")
        return durable.read_file(path)

    def _manifest(self, folder: str) -> Manifest:
        path = self._directory / folder / _MANIFEST
        if durable.size(path) is None:
            existing = ", ".join(self.names()) or "none"
            raise CheckpointError(f"there is no checkpoint {folder}: {path} is missing; existing: {existing}")
        return decode_manifest(self._read(path, _LARGEST_MANIFEST), str(path))

    def _snapshot(self, folder: str, manifest: Manifest) -> Snapshot:
        contents = {}
        for name, (size, sha256) in manifest.files.items():
            path = self._directory / folder / name
            data = self._read(path, size)
            if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
                raise CheckpointError(f"{path} does not match its manifest: it was truncated or changed")
            contents[name] = (data, str(path))
        state, where = from_json(*contents[STATE]), contents[STATE][1]
        values, notes = (required(state, part, dict, where) for part in ("values", "notes"))
        return Snapshot(decode_arrays(*contents[ARRAYS]), values, notes)

    def _verify(self, folder: str, *, check_rows: bool = True) -> None:
        """check_rows=False checks only the lengths of segments, so that a save does not read all rows."""
        manifest = self._manifest(folder)
        self._snapshot(folder, manifest)
        for saved in (manifest.replay or {}).values():
            for segment in saved.segments:
                size = durable.size(self._replay / segment.name)
                if size is None or size < segment.length:
                    raise CheckpointError(f"{self._replay / segment.name} is missing or shorter than was written")
            if check_rows:
                for _ in read_rows(self._replay, saved):
                    pass

    def _field_digests(self, saved: SavedShard) -> list[bytes]:
        """Name, dtype, shape and hash of each field over all rows, independent of the division into records."""
        fields: dict[str, Any] = {}
        kinds: dict[str, bytes] = {}
        for chunk in read_rows(self._replay, saved):
            for name, column in chunk.columns.items():
                kind = to_json([name, column.dtype.name, list(column.shape[1:])])
                if kinds.setdefault(name, kind) != kind:
                    raise CheckpointError(f"the rows in {self._replay} differ in the shape or dtype of {name!r:.60}")
                running = fields.setdefault(name, hashlib.sha256())
                running.update(column.astype(little_endian(column.dtype.name), copy=False).tobytes())
        return [kinds[name] + fields[name].digest() for name in sorted(fields)]

    @contextlib.contextmanager
    def _with_remedy(self, which: str) -> Iterator[None]:
        """Adds the remedy to an error: the intact checkpoints of the run."""
        try:
            yield
        except (CheckpointError, OSError) as error:
            raise CheckpointError(f"{error}{self._remedy(which)}") from error

    def _remedy(self, which: str) -> str:
        try:
            folder = self._resolve_or_none(which)
            if folder is None and which not in ("latest", "best"):
                return ""  # a misspelt name, and the error lists the valid ones
            if folder is not None and self._intact(folder):  # intact, but it does not fit; neither would the others
                return ""
            commands = [
                f"`offbeat resume {self.root} --checkpoint {name}`" for name in self.names() if self._intact(name)
            ]
        except OSError as error:
            return f"; {self._directory} cannot be read: {error}"
        return f"; intact: {', '.join(commands)}" if commands else "; no other checkpoint of this run is intact"

    def _intact(self, folder: str) -> bool:
        """Whether a run can be resumed from the folder."""
        try:
            self._verify(folder)
            return self._manifest(folder).replay is not None
        except (CheckpointError, OSError):
            return False


def digest(root: Path, which: str = "latest") -> str:
    """One SHA-256 over a checkpoint's logical content, for comparing two runs."""
    return Checkpoints(root).digest(which)
