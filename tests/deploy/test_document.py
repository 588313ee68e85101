"""policy.json is validated before use: every edit is refused with a CheckpointError."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import offbeat
from offbeat.deploy import LoadedPolicy, document, export_policy, load_policy
from offbeat.errors import CheckpointError
from offbeat.types import EnvSpec, Layout, Leaf
from offbeat.weights.publication import Publication
from specs import choice_spec, vector_spec

DICT = Layout((Leaf(("gear",), "discrete", (3,), "int64"), Leaf(("speed",), "box", (2,), "float32")))
BOX = Layout((Leaf((), "box", (4,), "float32"),))
MULTI = EnvSpec("test", BOX, (0.0, 1.0), (2.0, 4.0), (2,), "int64", branches=(3, 4))
POLICIES: dict[str, tuple[str, EnvSpec, dict[str, Any]]] = {
    "sac": ("sac", vector_spec(4, 2), {"normalise_observations": True, "layer_norm": True}),
    "sac, Dict": ("sac", EnvSpec("car", DICT, (-1.0,), (1.0,), (1,)), {}),
    "sac, Discrete": ("sac", choice_spec(4, 3), {}),
    "sac, state": ("sac", vector_spec(4, 2, state=3), {}),
    "td3": ("td3", vector_spec(4, 2), {}),
    "ddpg": ("ddpg", vector_spec(4, 2), {"exploration": "ornstein_uhlenbeck"}),
    "dqn": ("dqn", choice_spec(4, 3), {"dueling": True}),
    "ppo": ("ppo", vector_spec(4, 2), {"squash": True}),
    "ppo, own deviation": ("ppo", vector_spec(4, 2), {"state_dependent_std": True}),
    "ppo, Discrete": ("ppo", choice_spec(4, 3), {}),
    "ppo, MultiDiscrete": ("ppo", MULTI, {}),
}
OTHERS: list[Any] = [
    *(None, True, -1, 0, 7, 10**30, 0.5, "", "x", "float64", "gaussian", "module", [], [1], [-1, "a"], {}, {"a": 1}),
    *([10**6] * 3, [[0]], {"leaves": []}, "../../x", "os:system"),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("policies")
    for name, (algorithm, spec, settings) in POLICIES.items():
        agent = offbeat.Agent(algorithm, spec, hidden=(4,), **settings)
        notes = {"algorithm": algorithm, "env": "test", "step": 10, "versions": {"offbeat": "0"}}
        export_policy(root / name, agent.publication(), agent.training.policy_description(), spec, notes)
    return {name: root / name for name in POLICIES}


def paths(content: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, entry in items:
        yield (*before, key)
        yield from paths(entry, (*before, key))


def edits(whole: Any) -> Iterator[Any]:
    """Variants of the document: each value deleted or replaced by another one, or an additional key."""
    for path in paths(whole):
        for value in ["deleted", "further", *OTHERS]:
            edited = copy.deepcopy(whole)
            inner = edited
            for key in path[:-1]:
                inner = inner[key]
            if value == "deleted":
                del inner[path[-1]]
            elif value == "further":
                if not isinstance(inner[path[-1]], dict):
                    continue
                inner[path[-1]]["further"] = 1
            else:
                inner[path[-1]] = value
            if json.dumps(edited) != json.dumps(whole):
                yield edited


def sign(whole: dict[str, Any]) -> dict[str, Any]:
    """The content with a correct hash, as after a deliberate edit."""
    content = {key: value for key, value in whole.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return {**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def observation(spec: EnvSpec, rows: int) -> Any:
    """Zeros, stacked as by an environment with such a space."""
    whole: Any = {}
    for leaf in spec.layout.vectors:
        zeros, inner = np.zeros((rows, *(() if leaf.kind == "discrete" else leaf.shape))), whole
        if not leaf.path:
            return zeros
        for part in leaf.path[:-1]:
            inner = inner.setdefault(part, {})
        inner[leaf.path[-1]] = zeros
    return whole


@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_every_edit_is_noticed(name: str, exported: dict[str, Path], tmp_path: Path) -> None:
    directory = shutil.copytree(exported[name], tmp_path / "policy")
    whole = json.loads((directory / "policy.json").read_text())
    assert load_policy(directory).version == 0
    count = 0
    for edited in edits(whole):
        (directory / "policy.json").write_text(json.dumps(edited))
        with pytest.raises(CheckpointError, match=r"policy\.json: .*export the policy again"):
            load_policy(directory)
        count += 1
    assert count > 500


@pytest.mark.parametrize("name", POLICIES)
def test_an_edit_with_a_right_hash_is_refused_or_acts_as_a_policy_does(name: str, exported: dict[str, Path]) -> None:
    whole, weights = document.read(exported[name])
    del whole["sha256"]
    publication = Publication(0, weights)
    refused = accepted = 0
    for edited in edits(whole):
        try:
            document.check(edited, weights)
        except document.InvalidDocument:
            refused += 1
            continue
        policy = LoadedPolicy(edited, publication, None, "numpy")
        for deterministic in (True, False):
            with np.errstate(all="ignore"):
                action = policy.act(observation(policy.spec, 2), deterministic)
            assert action.shape == (2, *policy.spec.action_shape), edited
            assert np.isfinite(action).all(), edited
        accepted += 1
    assert refused > 2 * accepted > 0


def test_weights_of_another_file_or_another_size_are_refused(exported: dict[str, Path], tmp_path: Path) -> None:
    directory = shutil.copytree(exported["sac"], tmp_path / "policy")
    content = json.loads((directory / "policy.json").read_text())
    weights = safetensors.numpy.load((directory / "weights.safetensors").read_bytes())
    (directory / "weights.safetensors").write_bytes((exported["td3"] / "weights.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="does not match the hash"):
        load_policy(directory)
    nan = {**weights, "actor/0/bias": np.full_like(weights["actor/0/bias"], np.nan)}
    cut = {**weights, "actor/1/weight": weights["actor/1/weight"][:-1]}
    for changed, words in (
        (nan, "not finite"),
        (cut, r"'actor/1/weight' is \(3, 4\), but by policy.json it must be \(4, 4\)"),
        ({name: array for name, array in weights.items() if "1/bias" not in name}, "'actor/1/bias' is missing"),
        ({**weights, "actor/9/other": np.zeros(3, np.float32)}, "by policy.json it must be absent"),
        ({name: array for name, array in weights.items() if "actor" not in name}, "no layer of an actor"),
        ({name: array for name, array in weights.items() if "clip" not in name}, "'normaliser/clip' is missing"),
    ):
        data = safetensors.numpy.save(changed)
        (directory / "weights.safetensors").write_bytes(data)
        signed = sign({**content, "weights_sha256": hashlib.sha256(data).hexdigest()})
        (directory / "policy.json").write_text(json.dumps(signed))
        with pytest.raises(CheckpointError, match=words):
            load_policy(directory)


def test_a_policy_of_an_earlier_format_is_named_with_the_remedy(exported: dict[str, Path], tmp_path: Path) -> None:
    directory = shutil.copytree(exported["sac"], tmp_path / "policy")
    content = json.loads((directory / "policy.json").read_text())
    (directory / "policy.json").write_text(json.dumps({**content, "format": 1}))
    with pytest.raises(CheckpointError, match=r"has format 1, but this version of Offbeat reads format 2; export"):
        load_policy(directory)


def test_the_same_content_in_another_layout_is_the_same_policy(exported: dict[str, Path], tmp_path: Path) -> None:
    directory = shutil.copytree(exported["sac"], tmp_path / "policy")
    content = json.loads((directory / "policy.json").read_text())
    (directory / "policy.json").write_text(json.dumps(dict(reversed(content.items())), separators=(",", ":")))
    assert load_policy(directory).version == 0
