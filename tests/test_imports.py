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
    *("ranges", "flat", "streams", "references", "pure_networks", "durable", "threads", "trace", "coercion", "ranks"),
    "processor",
}

# What each part may import besides itself and the base. The first prefix that fits a module is its part.
ALLOWED: dict[str, set[str]] = {
    "envs": set(),
    "policies": set(),
    "replay": set(),
    "weights": set(),
    "collect": {"envs", "policies", "replay", "weights"},
    "algorithms.configs": set(),
    "algorithms.registry": {"algorithms.configs"},
    "algorithms": {"algorithms.configs"},
    "learn": {"algorithms", "algorithms.configs", "algorithms.registry"},
    "observe": {"yamltext"},
    "deploy": {"policies", "weights"},
    "yamltext": set(),
    "keys": set(),
    "settings": {"keys", "algorithms.configs", "algorithms.registry", "settings_page", "yamltext"},
    "settings_page": {"algorithms.configs", "algorithms.registry", "settings"},
    "flags": {"algorithms.configs", "settings", "yamltext"},
    "help_groups": {"settings"},
    "presets": {"algorithms.configs", "settings", "yamltext"},
    "run": {
        "envs",
        "policies",
        "replay",
        "weights",
        "collect",
        "algorithms",
        "algorithms.configs",
        "algorithms.registry",
        "learn",
        "observe",
        "deploy",
        "settings",
        "presets",
    },
}

# The front doors, which may import everything and which nothing may import.
DOORS = {"", "cli", "training_commands", "__main__", "compat"}

# Parts and modules that never load a backend: not themselves, and not through what they import when they are imported.
WITHOUT_BACKEND = {
    *("run", "collect", "replay", "algorithms.configs", "algorithms.registry", "presets"),
    *("learn.learner", "learn.backend", "learn.schedules", "learn.statistics", "learn.rollout_columns"),
    "learn.transfer",
}

# Everything else treats the settings of each algorithm alike: what differs is in the algorithm's record.
KNOW_CONFIGS = {"algorithms.configs", "algorithms.torch", "algorithms.jax", "algorithms.registry"}


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


def is_in(module: str, prefixes: set[str]) -> bool:
    """Whether a module is one of these, or below one."""
    return any(module == each or module.startswith(each + ".") for each in prefixes)


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
        part, bare = part_of(module), is_in(module, WITHOUT_BACKEND)
        if part in DOORS:
            continue
        if part not in ALLOWED and part not in BASE:
            found.append(f"{modules[module].relative_to(root)}: {part} is not in the table of parts")
        for each in its_imports:
            where = f"{modules[module].relative_to(root)}:{each.line}"
            target = part_of(each.target)
            if each.target.startswith("~"):
                if bare and each.target[1:].split(".")[0] in BACKENDS:
                    found.append(f"{where}: {part} imports {each.target[1:]}")
            elif target != part and target not in BASE | ALLOWED.get(part, set()):
                found.append(f"{where}: {part} imports {target or 'offbeat itself'}")
            elif bare and not each.late and (chain := way_to_backend(each.target, imports)):
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
        "learn/torch.py": "import torch\nfrom offbeat.algorithms.torch.sac import update",
        "learn/learner.py": "from offbeat.learn.torch import TorchBackend",
        "learn/backend.py": "def late():\n    import torch",
        "observe/plot.py": "from offbeat.cli import main",
        "replay/uniform.py": "from torch import Tensor",
        "run/api.py": "import offbeat.collect",
        "run/training.py": "import torch\nfrom offbeat.learn.torch import TorchBackend",
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
        "learn/backend.py:2: learn imports torch",
        "learn/learner.py:1: learn loads torch through learn.torch",
        "observe/plot.py:1: observe imports cli",
        "policies/__init__.py:2: policies imports offbeat itself",
        "policies/sly.py:3: policies imports offbeat itself",
        "replay/__init__.py:2: replay imports algorithms.configs",
        "replay/uniform.py:1: replay imports torch",
        "run/api.py:1: run loads torch.nn through collect -> policies.heavy",
        "run/training.py:1: run imports torch",
        "run/training.py:2: run loads torch through learn.torch",
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
        "learn/torch.py": "import torch",
        "learn/learner.py": "if TYPE_CHECKING:\n    import torch\nfrom offbeat.learn.torch_free import rates",
        "learn/torch_free.py": "def make():\n    from offbeat.learn.torch import TorchBackend",
        "run/api.py": "from offbeat.observe import plot\nfrom offbeat.learn import learner",
    }
    assert wrong_arrows(write_tree(tmp_path, tree)) == []


def test_importing_offbeat_loads_no_heavy_library() -> None:
    heavy = "{'torch', 'jax', 'gymnasium', 'matplotlib', 'rich', 'ray'}"
    script = f"import sys, offbeat; print(*sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def test_ray_is_imported_where_a_run_connects_to_it_and_nowhere_else() -> None:
    modules = modules_of(PACKAGE)
    found = {
        (module, each.late)
        for module in modules
        for each in imports_of(module, modules)
        if each.target == "~ray" or each.target.startswith("~ray.")
    }
    assert found == {("collect.ray_cluster", True)}


def config_classes(root: Path) -> set[str]:
    """The settings classes by name, without `Config`, which every algorithm has."""
    configs = [path for name, path in modules_of(root).items() if is_in(name, {"algorithms.configs"})]
    nodes = (node for path in configs for node in ast.parse(path.read_text()).body)
    return {node.name for node in nodes if isinstance(node, ast.ClassDef)} - {"Config"}


def imported_configs(tree: ast.Module, classes: set[str]) -> set[str]:
    """What a module calls the settings classes, and the modules that have them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("offbeat.algorithms"):
            found |= {each.asname or each.name for each in node.names if each.name in classes or each.name == "configs"}
        elif isinstance(node, ast.Import):
            found |= {each.asname or each.name for each in node.names if "algorithms.configs" in each.name}
    return found


def kinds_asked(tree: ast.Module) -> Iterator[tuple[int, ast.AST]]:
    """Line and classes of each question for the class of a value: isinstance, issubclass, `type(...) is`, `case`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            yield node.lineno, node.args[1]
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
            yield node.lineno, node
        elif isinstance(node, ast.MatchClass):
            yield node.lineno, node.cls


def questions_for_configs(root: Path) -> list[str]:
    """Every question for the class of settings outside the modules that may ask, as `file:line: classes`."""
    found, classes = [], config_classes(root)
    for module, path in modules_of(root).items():
        if is_in(module, KNOW_CONFIGS):
            continue
        tree = ast.parse(path.read_text())
        known = imported_configs(tree, classes)
        for line, asked in kinds_asked(tree):
            names = {ast.unparse(each) for each in ast.walk(asked) if isinstance(each, ast.Name | ast.Attribute)}
            if names & known or any(name.rpartition(".")[0] in known for name in names):
                found.append(f"{path.relative_to(root)}:{line}: {ast.unparse(asked)}")
    return found


def test_settings_are_asked_for_their_class_only_where_algorithms_are_defined() -> None:
    assert {"PPO", "SAC", "Learned", "Collection"} <= config_classes(PACKAGE)
    assert questions_for_configs(PACKAGE) == []


def test_each_question_for_the_class_of_settings_is_found(tmp_path: Path) -> None:
    tree = {
        "algorithms/configs/__init__.py": "from .on_policy import PPO\nclass Config: ...",
        "algorithms/configs/on_policy.py": "class PPO: ...\nclass APPO(PPO): ...\nisinstance(0, PPO)",
        "algorithms/registry.py": "from offbeat.algorithms.configs import PPO\nissubclass(int, PPO)",
        "algorithms/torch/ppo.py": "from offbeat.algorithms.configs import PPO\nisinstance(0, PPO)",
        "run/a.py": "from offbeat.algorithms.configs import PPO as Own\nisinstance(0, int | Own)",
        "run/b.py": "from offbeat.algorithms import configs\nissubclass(int, (configs.on_policy.APPO, str))",
        "run/c.py": "import offbeat.algorithms.configs.on_policy as p\ntype(0) is p.PPO",
        "run/d.py": "from offbeat.algorithms.configs import APPO\nmatch 0:\n    case APPO(): ...",
        "run/good.py": "from offbeat.algorithms.configs import PPO, Config\nisinstance(0, Config)\nPPO()",
        "replay/good.py": "from offbeat.replay.queue import PPO\nisinstance(0, PPO)",
    }
    assert questions_for_configs(write_tree(tmp_path, tree)) == [
        "run/a.py:2: int | Own",
        "run/b.py:2: (configs.on_policy.APPO, str)",
        "run/c.py:2: type(0) is p.PPO",
        "run/d.py:3: APPO",
    ]


def members_of(source: str, name: str) -> set[str]:
    """The methods and attributes that a class declares."""
    (own,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    fields = {ast.unparse(node.target) for node in own.body if isinstance(node, ast.AnnAssign)}
    return fields | {node.name for node in own.body if isinstance(node, ast.FunctionDef)}


def knowledge_of_collectors(source: str, members: set[str]) -> list[str]:
    """What a module knows of its collector beyond the protocol, as `line: what`. members: those of the protocol."""
    tree, found = ast.parse(source), []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("offbeat.collect"):
            if node.module != "offbeat.collect.collector":
                found.append((line, f"imports {node.module}"))
        elif isinstance(node, ast.Import):
            found += [(line, f"imports {each.name}") for each in node.names if each.name.startswith("offbeat.collect")]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "hasattr", "getattr", "type"):
            if ast.unparse(node.func) == "isinstance" or "collector" in ast.unparse(node.args[0]):
                found.append((line, ast.unparse(node)))
        elif isinstance(node, ast.Match):
            found.append((line, f"match {ast.unparse(node.subject)}"))
        elif isinstance(node, ast.Attribute):
            of_collector = ast.unparse(node.value).rpartition(".")[2] == "collector"
            if node.attr == "collectors" or (of_collector and node.attr not in members):
                found.append((line, ast.unparse(node)))
    return [f"{line}: {what}" for line, what in sorted(found)]


def test_the_runner_does_not_know_which_kind_of_collector_it_drives() -> None:
    members = members_of((PACKAGE / "collect" / "collector.py").read_text(), "Collector")
    assert members >= {"num_envs", "publish", "allow", "poll", "snapshot", "restore", "report", "close"}
    assert knowledge_of_collectors((PACKAGE / "run" / "runner.py").read_text(), members) == []


def test_each_branch_on_the_kind_of_collector_is_found() -> None:
    bad = """
from offbeat.collect.in_process import InProcess
from offbeat.collect.collector import Collector
import offbeat.collect.processes
if isinstance(self.collector, InProcess) or hasattr(self.collector, "slots"): ...
self.collector.poll(0.0)
self.collector.processes
collector.slots
self.collector.report().processes
if run.collection.collectors: ...
match self.collector:
    case InProcess(): ...
type(collector)
"""
    assert knowledge_of_collectors(bad, {"poll", "report"}) == [
        "2: imports offbeat.collect.in_process",
        "4: imports offbeat.collect.processes",
        "5: hasattr(self.collector, 'slots')",
        "5: isinstance(self.collector, InProcess)",
        "7: self.collector.processes",
        "8: collector.slots",
        "10: run.collection.collectors",
        "11: match self.collector",
        "13: type(collector)",
    ]
