"""A run loads the backend that it learns with and no other one; its collectors and its evaluator load none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from short_runs import SETTINGS, train

WATCHED = """
import json, os, sys
from pathlib import Path

import offbeat

class Watch:
    children: dict[int, list[str]] = {}

    def on_chunk(self, event):
        for task in Path("/proc/self/task").iterdir():
            for child in (task / "children").read_text().split():
                try:
                    command = Path(f"/proc/{child}/cmdline").read_text().replace(chr(0), " ")
                    maps = Path(f"/proc/{child}/maps").read_text()
                except OSError:
                    continue  # it has ended
                self.children[child] = [command, *(name for name in ("jaxlib", "libtorch") if name in maps)]

settings = json.loads(sys.argv[1])
run = offbeat.train(env="Pendulum-v1", callbacks=[Watch()], **settings)
loaded = [name for name in ("torch", "jax") if name in sys.modules]
print(json.dumps({"status": run.status, "loaded": loaded, "children": list(Watch.children.values())}))
"""


def watched(directory: Path, **settings: Any) -> dict[str, Any]:
    given = {**SETTINGS, "algorithm": "sac", "out": str(directory), **settings}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, json.dumps(given)], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["status"] == "finished"
    return found


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="processes are looked into through Linux's /proc")
def test_a_run_in_jax_needs_no_torch_and_its_collectors_need_neither(tmp_path: Path) -> None:
    found = watched(tmp_path, backend="jax", collectors=2)  # without TensorBoard, whose writer is torch's
    assert found["loaded"] == ["jax"]
    assert sum("collector" in command for command, *_ in found["children"]) == 2
    assert [libraries for _, *libraries in found["children"] if libraries] == []


def test_a_run_in_torch_never_imports_jax(tmp_path: Path) -> None:
    assert watched(tmp_path, backend="torch")["loaded"] == ["torch"]


HIDDEN = "import sys; sys.modules['jax'] = None; from offbeat.cli import main; sys.exit(main(sys.argv[1:]))"


def test_without_jax_the_commands_say_what_to_install(tmp_path: Path) -> None:
    run = train(tmp_path / "there", name="run").path
    before = sorted((run / "checkpoints").iterdir())
    training = ["train", "sac", "--env", "Pendulum-v1", "--backend", "jax", "--out", str(tmp_path / "new")]
    for command in (training, ["convert", str(run), "--backend", "jax"]):
        done = subprocess.run([sys.executable, "-c", HIDDEN, *command], check=False, capture_output=True, text=True)
        assert done.returncode == 2
        assert "backend=jax needs JAX: pip install 'offbeat[jax]'" in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "new").exists()
    assert sorted((run / "checkpoints").iterdir()) == before
