"""Imports point one way, along the data's path; a wrong arrow fails here and is named."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import offbeat

PACKAGE = Path(offbeat.__file__).parent
BACKENDS = {"torch", "jax"}

# Everybody may import these; they import one another only.
BASE = {
    *("types", "layout", "masks", "errors", "foreign_names", "memory", "descriptors"),
    *("ranges", "streams", "references", "durable", "threads", "trace"),
}

# What each part may import besides itself and the base. The first prefix that fits a module is its part.
ALLOWED: dict[str, set[str]] = {
    "envs": set(),
    "policies": set(),
    "replay": set(),
    "weights": set(),
    "collect": {"envs", "policies", "replay", "weights"},
    "algorithms.configs": set(),
    "algorithms": {"algorithms.configs"},
    "learn": {"algorithms", "algorithms.configs"},
    "observe": {"yamltext"},
    "deploy": {"policies", "weights"},
    "coercion": set(),
    "yamltext": set(),
    "settings": {"algorithms.configs", "coercion", "settings_page", "yamltext"},
    "settings_page": {"algorithms.configs", "coercion", "settings"},
    "flags": {"algorithms.configs", "coercion", "settings", "yamltext"},
    "help_groups": {"settings"},
    "presets": {"algorithms.configs", "coercion", "settings", "yamltext"},
    "run": {
        "envs",
        "policies",
        "replay",
        "weights",
        "collect",
        "algorithms",
        "algorithms.configs",
        "learn",
        "observe",
        "deploy",
        "coercion",
        "settings",
        "presets",
    },
}

# The front doors, which may import everything and which nothing may import.
DOORS = {"", "cli", "training_commands", "__main__"}

# Parts that never load a backend: not themselves, and not through what they import when they are imported.
WITHOUT_BACKEND = {"collect", "algorithms.configs", "presets"}


@dataclass(frozen=True)
class Import:
    """`late` is an import inside a function, which runs only when the function does."""

    line: int
    target: str
    late: bool


def part_of(module: str) -> str:
    """`run.api` belongs to `run`; `algorithms.configs` is a part of its own. "" is the package itself."""
    for part in (*ALLOWED, *BASE, *DOORS - {""}):
        if module == part or module.startswith(part + "."):
            return part
    return module


def modules_of(root: Path) -> dict[str, Path]:
    """Every module below `root` by its name without the package's: `envs` is envs/__init__.py, "" the root's."""
    names = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports_of(module: str, modules: Mapping[str, Path]) -> Iterator[Import]:
    """What a module imports when it runs: package modules without the package's name, others as "~name"."""
    is_package = modules[module].name == "__init__.py"

    def visit(node: ast.AST, late: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            children: list[ast.AST] = list(node.orelse)
        else:
            children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in targets(node):
                yield Import(node.lineno, target, late)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "offbeat" and node.attr != "__version__":
            yield Import(node.lineno, node.attr if node.attr in modules else "", late)
        for child in children:
            yield from visit(child, late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    def targets(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            # `import offbeat` alone is no arrow; what is then taken from it is.
            yield from (inside(alias.name) for alias in node.names if alias.name != "offbeat")
            return
        origin = node.module or ""
        if node.level:
            here = ["offbeat", *module.split(".")] if module else ["offbeat"]
            up = node.level - is_package
            origin = ".".join([*here[: len(here) - up], *([node.module] if node.module else [])])
        for alias in node.names:
            whole = inside(f"{origin}.{alias.name}")
            if (origin, alias.name) != ("offbeat", "__version__"):  # a plain string, not an arrow
                yield whole if whole in modules else inside(origin)

    def inside(name: str) -> str:
        return name.removeprefix("offbeat").removeprefix(".") if name.split(".")[0] == "offbeat" else f"~{name}"

    yield from visit(ast.parse(modules[module].read_text()), late=False)


def wrong_arrows(root: Path) -> list[str]:
    """Every import below `root` that the table above does not allow, as `file:line: why`."""
    modules = modules_of(root)
    imports = {module: list(imports_of(module, modules)) for module in modules}
    found = []
    for module, its_imports in imports.items():
        part = part_of(module)
        if part in DOORS:
            continue
        if part not in ALLOWED and part not in BASE:
            found.append(f"{modules[module].relative_to(root)}: {part} is not in the table of parts")
        for each in its_imports:
            where = f"{modules[module].relative_to(root)}:{each.line}"
            target = part_of(each.target)
            if each.target.startswith("~"):
                if part in WITHOUT_BACKEND and each.target[1:].split(".")[0] in BACKENDS:
                    found.append(f"{where}: {part} imports {each.target[1:]}")
            elif target != part and target not in BASE | ALLOWED.get(part, set()):
                found.append(f"{where}: {part} imports {target or 'offbeat itself'}")
            elif part in WITHOUT_BACKEND and not each.late and (chain := way_to_backend(each.target, imports)):
                found.append(f"{where}: {part} loads {chain[-1]} through {' -> '.join(chain[:-1])}")
    return found


def way_to_backend(module: str, imports: Mapping[str, list[Import]], seen: set[str] | None = None) -> tuple[str, ...]:
    """The chain of modules by which importing `module` loads a backend; empty if it does not. seen: dead ends."""
    seen = set() if seen is None else seen
    if module.startswith("~"):
        return (module[1:],) if module[1:].split(".")[0] in BACKENDS else ()
    if not module or module in seen or module not in imports:  # the package itself has a test of its own
        return ()
    seen.add(module)
    package = module.rpartition(".")[0]  # its __init__ runs first
    for target in (package, *(each.target for each in imports[module] if not each.late)):
        if rest := way_to_backend(target, imports, seen):
            return (module, *rest)
    return ()


def test_imports_point_along_the_data_path() -> None:
    assert modules_of(PACKAGE).keys() >= BASE - {"durable"}
    assert wrong_arrows(PACKAGE) == []


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_each_kind_of_wrong_arrow_is_found_and_named(tmp_path: Path) -> None:
    tree = {
        "__init__.py": "from offbeat.run.api import train",
        "types.py": "from offbeat.envs import make",
        "envs/__init__.py": "import torch",
        "policies/__init__.py": "def late():\n    from offbeat import train",
        "policies/heavy.py": "import torch.nn as nn",
        "policies/deep/__init__.py": "from offbeat.policies.heavy import Heavy",
        "policies/deep/light.py": "",
        "policies/sly.py": "import offbeat\nversion = offbeat.__version__\noffbeat.train()",
        "replay/__init__.py": "def late():\n    from offbeat.algorithms import configs",
        "collect/__init__.py": "from ..policies import heavy\nfrom ..run.api import train",
        "collect/hidden.py": "from offbeat.policies.deep.light import act",
        "collect/direct.py": "def late():\n    import jax.numpy",
        "algorithms/__init__.py": "",
        "algorithms/configs.py": "import torch",
        "algorithms/torch/sac.py": "import offbeat.learn.torch",
        "learn/torch.py": "from offbeat.algorithms.torch.sac import update",
        "observe/plot.py": "from offbeat.cli import main",
        "run/api.py": "import offbeat.collect",
        "cli.py": "from offbeat.run.api import train",
        "helpers.py": "",
    }
    assert sorted(wrong_arrows(write_tree(tmp_path, tree))) == [
        "algorithms/configs.py:1: algorithms.configs imports torch",
        "algorithms/torch/sac.py:1: algorithms imports learn",
        "collect/__init__.py:1: collect loads torch.nn through policies.heavy",
        "collect/__init__.py:2: collect imports run",
        "collect/direct.py:2: collect imports jax.numpy",
        "collect/hidden.py:1: collect loads torch.nn through policies.deep.light -> policies.deep -> policies.heavy",
        "helpers.py: helpers is not in the table of parts",
        "observe/plot.py:1: observe imports cli",
        "policies/__init__.py:2: policies imports offbeat itself",
        "policies/sly.py:3: policies imports offbeat itself",
        "replay/__init__.py:2: replay imports algorithms.configs",
        "types.py:1: types imports envs",
    ]


def test_good_arrows_late_backends_and_imports_for_type_checking_pass(tmp_path: Path) -> None:
    tree = {
        "__init__.py": "",
        "types.py": "import numpy",
        "envs/__init__.py": "from offbeat import __version__\nfrom .spaces import spec",
        "envs/spaces.py": "from ..types import Array",
        "policies/__init__.py": "def make():\n    from offbeat.policies.heavy import Heavy",
        "policies/heavy.py": "import torch",
        "collect/__init__.py": "from offbeat import policies\nimport offbeat.envs.spaces",
        "observe/plot.py": "if TYPE_CHECKING:\n    from offbeat.run.api import train",
        "run/api.py": "import torch\nfrom offbeat.observe import plot",
    }
    assert wrong_arrows(write_tree(tmp_path, tree)) == []


def test_importing_offbeat_loads_no_heavy_library() -> None:
    script = (
        "import sys, offbeat; print(*sorted({'torch', 'jax', 'gymnasium', 'matplotlib', 'rich'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
