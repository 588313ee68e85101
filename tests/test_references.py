"""module:callable references, and errors for modules that cannot be imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from offbeat import references
from offbeat.errors import UsageError


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("x = 1\ndef make(:\n", SyntaxError, r"SyntaxError: .*\(broken_module.py, line 2\)"),
        ("import no_such_package", ModuleNotFoundError, r"ModuleNotFoundError: No module named 'no_such_package'"),
        ("from os import nothing_such", ImportError, r"ImportError: cannot import name 'nothing_such' from 'os'"),
        ("size = 1 / 0", ZeroDivisionError, r"ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", SystemExit, r"SystemExit: 3"),
    ],
)
def test_a_module_that_raises_is_wrong_use_with_its_cause(
    source: str, kind: type[BaseException], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UsageError, match=f"actor='broken_module:make': importing broken_module raised {words}"
    ) as caught:
        references.resolve("broken_module:make", "actor")
    assert type(caught.value.__cause__) is kind


@pytest.mark.parametrize(
    ("file", "module"), [("./sharpen.py", "sharpen"), ("sharpen.py", "sharpen"), ("parts/sharpen.py", "parts.sharpen")]
)
def test_a_file_in_the_place_of_a_module_is_answered_with_the_module(file: str, module: str) -> None:
    with pytest.raises(UsageError, match=f"names a file; name the module instead: {module}:ALGORITHM"):
        references.resolve(f"{file}:ALGORITHM", "algorithm")
    absolute = str(Path(file).resolve())
    with pytest.raises(UsageError, match=f"name the module instead: {module}:ALGORITHM"):
        references.find(f"{absolute}:ALGORITHM", "algorithm")


@pytest.mark.parametrize("name", ["absent_module", "json.absent"])
def test_a_missing_module_is_distinguished_from_one_that_raises(name: str) -> None:
    with pytest.raises(UsageError, match=f"env='{name}:make': there is no module '{name}' in"):
        references.resolve(f"{name}:make", "env")
