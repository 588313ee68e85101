"""policy.json: what is in it, its hash, and the check of every part before anything acts by it."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import durable
from offbeat.errors import CheckpointError
from offbeat.policies.exploration import DISTURBANCES
from offbeat.policies.heads import HEADS
from offbeat.policies.mlp import NUMPY_ACTIVATIONS
from offbeat.types import EnvSpec, Weights

FORMAT = 2
DOCUMENT, WEIGHTS = "policy.json", "weights.safetensors"
_LARGEST = 16 << 20
_MOST = 1 << 62
_LARGEST_SHAPE = 1 << 31
_DTYPES = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
)
REMEDY = "export the policy again (a run writes it with each checkpoint: `offbeat resume RUN` does)"


class Wrong(Exception):
    """A part of a document that is not what it must be; the reader knows the file and says so."""


def encode(content: Mapping[str, Any], weights: bytes) -> bytes:
    """The document with the hash of the weights' file and one of itself."""
    whole = {"format": FORMAT, **content, "weights_sha256": hashlib.sha256(weights).hexdigest()}
    return json.dumps(whole | {"sha256": _digest(whole)}, indent=2, allow_nan=False).encode() + b"\n"


def _digest(content: Mapping[str, Any]) -> str:
    """SHA-256 over canonical JSON: the same content has the same hash, however it is laid out."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read(directory: Path) -> tuple[dict[str, Any], Weights]:
    """The checked document in a directory and the weights that belong to it."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = directory / DOCUMENT
    try:
        document = json.loads(durable.read_file(path, _LARGEST), parse_constant=_refuse)
        if not isinstance(document, dict):
            raise Wrong("it is not a JSON object")
        if document.get("format") != FORMAT:
            raise Wrong(f"it has format {document.get('format')!r:.40}, and this version of Offbeat reads {FORMAT}")
        unsigned = {key: value for key, value in document.items() if key != "sha256"}
        if _digest(unsigned) != document.get("sha256"):
            raise Wrong("it does not match its own hash: it was changed")
        data = durable.read_file(directory / WEIGHTS)
        if hashlib.sha256(data).hexdigest() != document.get("weights_sha256"):
            raise Wrong(f"{WEIGHTS} beside it is not the file that it was written for")
        weights = {str(name): array for name, array in load(data).items()}
        check(unsigned, weights)
    except (Wrong, OSError, ValueError, RecursionError, OverflowError, SafetensorError, KeyError) as error:
        raise CheckpointError(f"{path}: {error}; {REMEDY}") from error
    return document, weights


def _refuse(constant: str) -> Any:
    raise Wrong(f"{constant} is not JSON")


# Parts: each check names what it looked at.

Check = Callable[[Any], bool]


def _whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value < _MOST


def _number(value: Any) -> bool:
    return (type(value) is int and abs(value) < 2**53) or (type(value) is float and math.isfinite(value))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _list_of(each: Check) -> Check:
    return lambda value: isinstance(value, list) and all(each(entry) for entry in value)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _positive(value: Any) -> bool:
    return _whole(value, 1)


def _flag(value: Any) -> bool:
    return type(value) is bool


def _one_of(*choices: Any) -> Check:
    return lambda value: any(type(value) is type(choice) and value == choice for choice in choices)


def _has(what: str, value: Any, required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> None:
    """Whether a mapping has exactly these keys, each with a value that its check takes."""
    known = {**required, **(optional or {})}
    if not isinstance(value, dict):
        raise Wrong(f"{what} is {value!r:.60}, not a mapping")
    if strange := [key for key in value if key not in known]:
        raise Wrong(f"{what} has a key {strange[0]!r:.60} that is not known")
    if missing := [key for key in required if key not in value]:
        raise Wrong(f"{what} has no {missing[0]!r}")
    for key, entry in value.items():
        if not known[key](entry):
            raise Wrong(f"{what} has {key}={entry!r:.60}, which is not possible there")


def _any(value: Any) -> bool:
    return True


_LEAF: dict[str, Check] = {
    "path": _list_of(lambda part: _text(part) or _whole(part)),
    "kind": _one_of("box", "discrete", "image"),
    "shape": lambda shape: _list_of(_positive)(shape) and len(shape) <= 8 and math.prod(shape) < _LARGEST_SHAPE,
    "dtype": _one_of(*_DTYPES),
    "start": lambda value: type(value) is int and abs(value) < _MOST,
}
_ORIGIN = _one_of(None, "observation", "info")
_SPEC: dict[str, Check] = {
    "name": _text,
    "layout": _any,
    "action_low": lambda value: _list_of(_number)(value) and bool(value),
    "action_high": lambda value: _list_of(_number)(value) and bool(value),
    "action_shape": _list_of(_positive),
    "action_dtype": _one_of(*_DTYPES),
    "state_key": _or_none(_text),
    "state_from": _ORIGIN,
    "state": _any,
    "max_episode_steps": _or_none(_positive),
    "choices": _or_none(_positive),
    "branches": _list_of(_positive),
    "mask_key": _or_none(_text),
    "mask_from": _ORIGIN,
}
_NOISE: dict[str, dict[str, Check]] = {
    "gaussian": {"scale": _number, "spread": _number},
    "ornstein_uhlenbeck": {"scale": _number, "spread": _number, "pull": _number, "time_step": _number},
    "epsilon_greedy": {
        "initial": lambda value: _number(value) and 0 <= value <= 1,
        "final": lambda value: _number(value) and 0 <= value <= 1,
        "steps": _positive,
        "decay": _one_of("linear", "exponential"),
    },
}
_HEAD: dict[str, dict[str, Check]] = {
    "squashed_gaussian": {"action_size": _positive, "log_std_min": _number, "log_std_max": _number},
    "gaussian": {"action_size": _positive, "squashed": _flag, "state_dependent_std": _flag},
    "deterministic": {},
    "greedy": {"dueling": _flag},
    "categorical": {},
    "multi_categorical": {"branches": _list_of(_positive)},
}


def check(content: Any, weights: Weights) -> None:
    """Raises Wrong for the first part that is not possible, or does not fit the others."""
    hexadecimal: Check = lambda value: _text(value) and len(value) == 64  # noqa: E731
    parts = {"policy": _any, "spec": _any, "notes": lambda value: isinstance(value, dict)}
    _has("the document", content, {"format": _whole, "version": _whole, "weights_sha256": hexadecimal, **parts})
    if not _whole(content["notes"].get("step", 0)):
        raise Wrong(f"notes has step={content['notes']['step']!r:.60}, which is not possible there")
    spec = _spec(content["spec"])
    head = _policy(content["policy"], spec)
    for name, array in weights.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Wrong(f"{WEIGHTS} has numbers in {name!r:.60} that are not finite")
    _normaliser(weights, spec)
    if content["policy"]["kind"] != "module":
        _layers(content["policy"], head, spec, weights)
    elif head == "gaussian" and not content["policy"]["state_dependent_std"]:
        _sizes(weights, {"actor/log_std": (spec.action_size,)}, {"actor/log_std"} & weights.keys())


def _spec(value: Any) -> EnvSpec:
    _has("spec", value, _SPEC)
    for name in ("layout", "state"):
        if name == "layout" or value[name] is not None:
            _layout(f"spec.{name}", value[name])
    spec = EnvSpec.from_json(value)
    size, low, high = len(spec.action_low), spec.action_low, spec.action_high
    in_order = len(high) == size and all(a <= b for a, b in zip(low, high, strict=True))
    one = size == 1 and spec.action_shape == () and not spec.branches
    if not in_order or not (one if spec.choices is not None else math.prod(spec.action_shape) == size):
        raise Wrong(f"spec has actions of shape {spec.action_shape!r:.60} between {low!r:.60} and {high!r:.60}")
    if spec.branches and len(spec.branches) != size:
        raise Wrong(f"spec has {len(spec.branches)} branches for {size} actions")
    if spec.counts and np.dtype(spec.action_dtype).kind == "f":
        raise Wrong(f"spec has action_dtype={spec.action_dtype!r}, which does not suit its actions")
    for name, source in (("state", spec.state_from), ("mask", spec.mask_from)):
        if (source is None) != (value[f"{name}_key"] is None):
            raise Wrong(
                f"spec has {name}_key={value[f'{name}_key']!r:.60} and {name}_from={source!r}, which do not fit"
            )
    if (spec.state is None) != (spec.state_key is None):
        raise Wrong("spec has one of state and state_key without the other")
    return spec


def _layout(what: str, value: Any) -> None:
    _has(what, value, {"leaves": _list_of(_any)})
    for leaf in value["leaves"]:
        _has(f"{what}.leaves", leaf, _LEAF)
        if leaf["kind"] == "discrete" and len(leaf["shape"]) != 1:
            raise Wrong(f"{what}.leaves has a discrete one with shape {leaf['shape']!r:.60}")
    paths = [leaf["path"] for leaf in value["leaves"]]
    if any(one == other[: len(one)] for one, other in itertools.permutations(paths, 2)):
        raise Wrong(f"{what}.leaves has two at one place: {paths!r:.60}")


def _policy(value: Any, spec: EnvSpec) -> str:
    """Checks what the policy says of itself; returns its head."""
    kind = value.get("kind") if isinstance(value, dict) else None
    head = value.get("head", kind) if isinstance(value, dict) else None
    if not _text(head) or head not in HEADS or kind not in (head, "module"):
        raise Wrong(f"policy has kind={kind!r:.60} and head={head!r:.60}, which this version of Offbeat does not know")
    required = {"kind": _text, **_HEAD[head]}
    required |= {"actor": _or_none(_text)} if kind == "module" else {"activation": _one_of(*NUMPY_ACTIVATIONS)}
    _has("policy", value, required, {"head": _text, "exploration": _or_none(_exploration), "log_prob": _flag})
    if value.get("action_size", spec.action_size) != spec.action_size:
        raise Wrong(f"policy has action_size={value['action_size']}, and spec {spec.action_size} actions")
    if value.get("log_std_min", 0) > value.get("log_std_max", 0):
        raise Wrong("policy has a log_std_min above its log_std_max")
    if tuple(value.get("branches", spec.branches)) != spec.branches:
        raise Wrong(f"policy has branches={value['branches']!r:.60}, and spec {spec.branches!r:.60}")
    wants = {"greedy": "choices", "categorical": "choices", "multi_categorical": "branches"}.get(head, "neither")
    has = "choices" if spec.choices is not None else "branches" if spec.branches else "neither"
    if wants != has:
        raise Wrong(f"policy has the head {head}, which does not suit the actions of spec")
    noise = value.get("exploration")
    if noise is not None and (noise["kind"] == "epsilon_greedy") != (has == "choices"):
        raise Wrong(f"policy explores by {noise['kind']}, which does not suit the actions of spec")
    return str(head)


def _exploration(value: Any) -> bool:
    if not isinstance(value, dict) or not _one_of(*DISTURBANCES)(value.get("kind")):
        return False
    _has("policy.exploration", value, {"kind": _text, **_NOISE[value["kind"]]})
    if value["kind"] != "epsilon_greedy":
        held = value["scale"] >= 0 and value["spread"] > 0
        return bool(held and value.get("pull", 0) >= 0 and value.get("time_step", 1) > 0)
    return value["decay"] == "linear" or min(value["initial"], value["final"]) > 0


def _normaliser(weights: Weights, spec: EnvSpec) -> None:
    parts = {name for name in weights if name.startswith("normaliser/")}
    if not parts:
        return
    wanted = {"mean": (spec.observation_size,), "scale": (spec.observation_size,), "clip": ()}
    _sizes(weights, {f"normaliser/{name}": shape for name, shape in wanted.items()}, parts)


def _layers(policy: Mapping[str, Any], head: str, spec: EnvSpec, weights: Weights) -> None:
    """Whether the layers lead from the observation to what the head takes."""
    count = sum(name.startswith("actor/") and name.endswith("/weight") for name in weights)
    wanted: dict[str, tuple[int, ...]] = {}
    size, doubled = spec.observation_size, head == "squashed_gaussian" or policy.get("state_dependent_std")
    for layer in range(count):
        found = weights.get(f"actor/{layer}/weight")
        last = layer == count - 1
        out = 0 if found is None or found.ndim != 2 else found.shape[1]
        if last:
            choices = sum(spec.counts) + bool(policy.get("dueling"))
            out = choices if spec.counts else spec.action_size * (2 if doubled else 1)
        wanted |= {f"actor/{layer}/weight": (size, out), f"actor/{layer}/bias": (out,)}
        if f"actor/{layer}/norm/scale" in weights:
            wanted |= {f"actor/{layer}/norm/{part}": (out,) for part in ("scale", "offset")}
        size = out
    if head == "gaussian" and not doubled:
        wanted["actor/log_std"] = (spec.action_size,)
    if not count:
        raise Wrong(f"{WEIGHTS} holds no layer of an actor")
    _sizes(weights, wanted, {name for name in weights if not name.startswith("normaliser/")})


def _sizes(weights: Weights, wanted: Mapping[str, tuple[int, ...]], there: set[str]) -> None:
    for name in sorted(there | wanted.keys()):
        found = weights[name].shape if name in there else "missing"
        if found != wanted.get(name, "not in it"):
            raise Wrong(f"{WEIGHTS}: {name!r:.60} is {found}, and by the document {wanted.get(name, 'not in it')}")
