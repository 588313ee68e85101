"""Damaged or hostile files give a CheckpointError; nothing is executed, and nothing is written outside the run."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from offbeat.errors import CheckpointError
from offbeat.replay.shard import Shard
from offbeat.run.checkpoint import Checkpoints, Snapshot, digest
from offbeat.run.snapshot import to_json
from rows import SCHEMA, Counting

STEP, BEFORE = "step-000000000040", "step-000000000020"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile") / "run"
    checkpoints, shard, model = Checkpoints(root, segment_bytes=1_200), Shard(SCHEMA, 30), Counting(1)
    for rows in (20, 40):
        shard.write(model.chunk(20))
        checkpoints.save(Snapshot({"weight": np.arange(20.0)}, {"rows": rows}, {"wall": 1.5}), {"0": shard}, rows)
    checkpoints.save_best(Snapshot({"weight": np.arange(5.0)}), 20)
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "run")
    return tmp_path / "run"


def refusals(root: Path, which: str = "latest") -> list[str]:
    """Every way of reading the checkpoint that must refuse it, and what it says."""
    messages = []
    for read in (
        lambda: Checkpoints(root).verify(which),
        lambda: digest(root, which),
        lambda: (Checkpoints(root).load(which), Checkpoints(root).load_replay(which, {"0": Shard(SCHEMA, 30)})),
    ):
        with pytest.raises(CheckpointError) as caught:
            read()
        messages.append(str(caught.value))
    return messages


def files_of(root: Path) -> list[Path]:
    """The pointer, the three files of the newest folder, and its segments."""
    folder = root / "checkpoints" / STEP
    listed = json.loads((folder / "manifest.json").read_bytes())["replay"]["0"]["segments"]
    return [
        root / "checkpoints/latest",
        *sorted(folder.iterdir()),
        *(root / "replay" / each["name"] for each in listed),
    ]


def test_a_changed_byte_anywhere_is_noticed_and_the_file_named(root: Path) -> None:
    assert len(files_of(root)) >= 6
    for path in files_of(root):
        data = path.read_bytes()
        for position in sorted({0, 1, len(data) // 3, len(data) // 2, len(data) - 2, len(data) - 1}):
            damaged = bytearray(data)
            damaged[position] ^= 0x55
            path.write_bytes(damaged)
            for message in refusals(root):
                assert path.name in message or "step-" in message
        path.write_bytes(data)
    Checkpoints(root).verify()


def test_a_truncated_or_missing_file_is_noticed(root: Path) -> None:
    for path in files_of(root):
        data = path.read_bytes()
        # A pointer without its line end is still the same name.
        for length in {0, 1, len(data) // 2, len(data) - (2 if path.name == "latest" else 1)}:
            path.write_bytes(data[:length])
            refusals(root)
        path.unlink()
        assert all(path.name in message for message in refusals(root))
        path.write_bytes(data)
    Checkpoints(root).verify()


def test_bytes_after_a_segments_listed_length_do_not_matter_but_elsewhere_they_do(root: Path) -> None:
    for path in files_of(root):
        data = path.read_bytes()
        path.write_bytes(data + b"\n")
        if path.suffix == ".chunks":
            Checkpoints(root).verify()
        else:
            refusals(root)
        path.write_bytes(data)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["OFFBEAT_TEST_BOMB"],)


def test_a_pickle_instead_of_any_file_is_refused_and_not_executed(root: Path, tmp_path: Path, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("OFFBEAT_TEST_BOMB", str(tmp_path / "exploded"))
    saved = io.BytesIO()
    torch.save({"bomb": Bomb()}, saved)
    for path in files_of(root):
        data = path.read_bytes()
        for hostile in (pickle.dumps(Bomb()), saved.getvalue()):
            path.write_bytes(hostile)
            refusals(root)
            if path.parent.name == STEP and path.name != "manifest.json":
                resign(root, **{path.name: hostile})
                refusals(root)
                resign(root, **{path.name: data})
        path.write_bytes(data)
    assert not (tmp_path / "exploded").exists()
    Checkpoints(root).verify()


def manifest_of(root: Path) -> dict[str, Any]:
    return json.loads((root / "checkpoints" / STEP / "manifest.json").read_bytes())


def sign(root: Path, content: Any) -> None:
    """Writes a manifest with a right hash of itself, as an attacker would."""
    if isinstance(content, dict):
        unsigned = {key: value for key, value in content.items() if key != "sha256"}
        content = {**unsigned, "sha256": hashlib.sha256(to_json(unsigned)).hexdigest()}
    (root / "checkpoints" / STEP / "manifest.json").write_bytes(to_json(content))


def resign(root: Path, **files: bytes) -> None:
    content = manifest_of(root)
    for name, data in files.items():
        (root / "checkpoints" / STEP / name).write_bytes(data)
        content["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    sign(root, content)


def changed(content: Any, path: tuple, value: Any) -> Any:
    if not path:
        return value
    copy = list(content) if isinstance(content, list) else dict(content)
    copy[path[0]] = changed(copy[path[0]] if path[0] in copy or isinstance(copy, list) else {}, path[1:], value)
    return copy


SHARD, SEGMENT = ("replay", "0"), ("replay", "0", "segments", 0)
A_FILE = {"size": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), []),
        ((), "manifest"),
        ((), None),
        (("format",), "1"),
        (("format",), True),
        (("format",), None),
        (("files",), []),
        (("files",), {}),
        (("files", "../../../escaped"), A_FILE),
        (("files", "/etc/passwd"), A_FILE),
        (("files", "state.json"), "x"),
        (("files", "state.json", "size"), -1),
        (("files", "state.json", "size"), 10**30),
        (("files", "state.json", "size"), "12"),
        (("files", "state.json", "sha256"), None),
        (("replay",), []),
        (("replay",), 3),
        (("replay", "../0"), {}),
        (SHARD, []),
        ((*SHARD, "worker"), -1),
        ((*SHARD, "worker"), 7),
        ((*SHARD, "boot"), 1.0),
        ((*SHARD, "oldest"), 40),
        ((*SHARD, "oldest"), 41),
        ((*SHARD, "committed"), 41),
        ((*SHARD, "committed"), 0),
        ((*SHARD, "committed"), 2**70),
        ((*SHARD, "segments"), {}),
        ((*SHARD, "segments"), []),
        (SEGMENT, 5),
        ((*SEGMENT, "name"), "../checkpoints/latest"),
        ((*SEGMENT, "name"), "/etc/passwd"),
        ((*SEGMENT, "name"), "..\\0-000001.chunks"),
        ((*SEGMENT, "name"), "0-000001.chunks\x00"),
        ((*SEGMENT, "name"), "0-000001.chunks\n"),
        ((*SEGMENT, "name"), "0-٠٠٠٠٠١.chunks"),
        ((*SEGMENT, "name"), "0-000777.chunks"),
        ((*SEGMENT, "name"), ["0-000001.chunks"]),
        ((*SEGMENT, "length"), 10**30),
        ((*SEGMENT, "length"), 0),
        ((*SEGMENT, "length"), None),
        ((*SEGMENT, "sha256"), "0" * 64),
        ((*SEGMENT, "sha256"), "zz"),
        ((*SEGMENT, "first"), -1),
        ((*SEGMENT, "last"), "x"),
    ],
)
def test_a_hostile_manifest_with_a_right_hash_is_refused(root: Path, path: tuple, value: Any) -> None:
    before = {each for each in root.parent.rglob("*") if root not in each.parents}
    sign(root, changed(manifest_of(root), path, value))
    named = ("manifest.json", "state.json", "replay", "worker 7")
    assert all(any(name in message for name in named) for message in refusals(root))
    assert {each for each in root.parent.rglob("*") if root not in each.parents} == before


def test_a_segment_listed_twice_is_refused(root: Path) -> None:
    content = manifest_of(root)
    content["replay"]["0"]["segments"] *= 2
    sign(root, content)
    assert all("twice" in message for message in refusals(root))


def test_a_foreign_format_names_the_version_that_wrote_it(root: Path) -> None:
    sign(root, manifest_of(root) | {"format": 7, "offbeat": "9.1.2"})
    for message in refusals(root):
        assert "format 7, written by Offbeat '9.1.2'" in message


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"[]",
        b"{}",
        b'{"values": [], "notes": {}}',
        b'{"values": {}, "notes": null}',
        b'{"values": {"a": NaN}, "notes": {}}',
        b'{"values": {"a": {"$float": "1"}}, "notes": {}}',
        b'{"values": {"a": {"$float": ["nan"]}}, "notes": {}}',
        b'{"values": {"a": ' + b"1" * 5_000 + b'}, "notes": {}}',
        b'{"values": ' + b"[" * 100_000,
        b"\xff\xfe{}",
    ],
)
def test_a_state_that_is_not_one_is_refused_though_its_hash_is_right(root: Path, state: bytes) -> None:
    resign(root, **{"state.json": state})
    assert all("state.json" in message for message in refusals(root))


def bad_safetensors(header: bytes, payload: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + payload


@pytest.mark.parametrize(
    "arrays",
    [
        b"",
        b"\xff" * 8,
        bad_safetensors(b"{"),
        bad_safetensors(b'{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}', b"12"),
        bad_safetensors(b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}', b"1234"),
        bad_safetensors(b'{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}', b"1"),
        safetensors.numpy.save({"a": np.ones(3)})[:-1],
    ],
)
def test_arrays_that_are_none_are_refused_though_their_hash_is_right(root: Path, arrays: bytes) -> None:
    resign(root, **{"arrays.safetensors": arrays})
    assert all("arrays.safetensors" in message for message in refusals(root))


@pytest.mark.parametrize(
    "name",
    [
        "../../elsewhere",
        "/etc",
        "..",
        "",
        "latest",
        "step-1",
        f"{STEP}/../{BEFORE}",
        "step-00000000004٠",
        "x" * 1_000_000,
    ],
)
def test_odd_names_in_a_pointer_or_from_a_user_are_refused(root: Path, name: str) -> None:
    (root / "checkpoints/latest").write_text(name, encoding="utf-8")
    assert all("latest" in message for message in refusals(root))
    if name != "latest":
        refusals(root, name)


@pytest.mark.parametrize(
    "where", ["checkpoints/latest", f"checkpoints/{STEP}", f"checkpoints/{STEP}/state.json", "replay"]
)
def test_links_that_lead_out_are_refused(root: Path, where: str) -> None:
    outside = root.parent / "outside"
    shutil.move(root / where, outside)
    (root / where).symlink_to(outside)
    assert all("outside of" in message for message in refusals(root))


@pytest.mark.parametrize("where", ["checkpoints", "replay"])
def test_nothing_is_saved_through_a_link_that_leads_out(root: Path, where: str) -> None:
    outside = root.parent / "outside"
    shutil.move(root / where, outside)
    (root / where).symlink_to(outside)
    before = sorted(outside.rglob("*"))
    with pytest.raises(CheckpointError, match="outside of"):
        Checkpoints(root).save(Snapshot(), {"0": Shard(SCHEMA, 30)}, 99)
    assert sorted(outside.rglob("*")) == before


def test_a_segment_that_is_a_link_out_is_refused(root: Path) -> None:
    path = files_of(root)[-1]
    shutil.move(path, root.parent / "segment")
    path.symlink_to(root.parent / "segment")
    assert all("outside of" in message for message in refusals(root))


def test_a_pipe_instead_of_a_file_does_not_hang(root: Path) -> None:
    for path in files_of(root):
        data = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        refusals(root)
        path.unlink()
        path.write_bytes(data)


def test_the_error_names_the_checkpoints_that_are_intact(root: Path) -> None:
    (root / "checkpoints" / STEP / "arrays.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=re.escape(f"intact: `offbeat resume {root} --checkpoint {BEFORE}`")):
        Checkpoints(root).load()
    assert Checkpoints(root).load(BEFORE).values == {"rows": 20}
    shutil.rmtree(root / "replay")
    with pytest.raises(CheckpointError, match="no other checkpoint of this run is intact"):
        Checkpoints(root).load()


def test_a_run_without_checkpoints_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint 'latest'"):
        Checkpoints(tmp_path / "missing").load()
    (tmp_path / "checkpoints").write_bytes(b"a file")
    with pytest.raises(CheckpointError, match="no checkpoint 'best'"):
        Checkpoints(tmp_path).load("best")
    assert not (tmp_path / "missing").exists()


def test_a_damaged_previous_checkpoint_does_not_stop_saving(root: Path) -> None:
    (root / "checkpoints" / STEP / "manifest.json").write_bytes(b"damaged")
    (root / "checkpoints/latest").write_bytes(b"damaged")
    checkpoints, shard = Checkpoints(root), Shard(SCHEMA, 30)
    shard.write(Counting(1).chunk(50))
    checkpoints.save(Snapshot(values={"rows": 50}), {"0": shard}, 50)
    Checkpoints(root).verify()
    assert Checkpoints(root).load().values == {"rows": 50}
