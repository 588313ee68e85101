"""Every test of tmrl's interface meets in a directory of its own, and waits for no server that is not there."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from offbeat.compat.tmrl import rendezvous
from offbeat.compat.tmrl.networking import Server
from tmrl_parts import PORT


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(rendezvous, "SECONDS_TO_CONNECT", 0.0)
    monkeypatch.setattr(rendezvous, "SECONDS_BETWEEN_CHECKS", 0.0)


@pytest.fixture
def server() -> Any:
    made = Server(port=PORT)
    yield made
    made.close()
