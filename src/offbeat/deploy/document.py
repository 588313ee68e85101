"""policy.json: its format, its hash, and the validation of every part before the policy is used."""

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
from offbeat.policies.heads import HEADS
from offbeat.policies.mlp import NUMPY_ACTIVATIONS
from offbeat.policies.recurrent import CELLS, TRUNK, trunk_shapes
from offbeat.types import EnvSpec, Weights

FORMAT = 2
DOCUMENT, WEIGHTS = "policy.json", "weights.safetensors"
_MAX_BYTES = 16 << 20
_MAX_INTEGER = 1 << 62
_MAX_ELEMENTS = 1 << 31
_DTYPES = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
)
REMEDY = "export the policy again (a run writes it with each checkpoint: `offbeat resume RUN` does)"


class InvalidDocument(Exception):
    """A part of policy.json is invalid; `read` adds the file's name."""


def encode(content: Mapping[str, Any], weights: bytes) -> bytes:
    """The bytes of policy.json, with the hash of the weights' file and a hash of its own content."""
    whole = {"format": FORMAT, **content, "weights_sha256": hashlib.sha256(weights).hexdigest()}
    return json.dumps(whole | {"sha256": _digest(whole)}, indent=2, allow_nan=False).encode() + b"\n"


def _digest(content: Mapping[str, Any]) -> str:
    """SHA-256 over canonical JSON: equal content has an equal hash, whatever its formatting."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read(directory: Path) -> tuple[dict[str, Any], Weights]:
    """Reads and validates policy.json and the weights in a directory."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = directory / DOCUMENT
    try:
        document = json.loads(durable.read_file(path, _MAX_BYTES), parse_constant=_refuse_constant)
        if not isinstance(document, dict):
            raise InvalidDocument("it is not a JSON object")
        if document.get("format") != FORMAT:
            raise InvalidDocument(
                f"it has format {document.get('format')!r:.40}, but this version of Offbeat reads format {FORMAT}"
            )
        unsigned = {key: value for key, value in document.items() if key != "sha256"}
        if _digest(unsigned) != document.get("sha256"):
            raise InvalidDocument("its content does not match its hash: the file was changed")
        data = durable.read_file(directory / WEIGHTS)
        if hashlib.sha256(data).hexdigest() != document.get("weights_sha256"):
            raise InvalidDocument(f"{WEIGHTS} in the same directory does not match the hash in it")
        weights = {str(name): array for name, array in load(data).items()}
        check(unsigned, weights)
    except (InvalidDocument, OSError, ValueError, RecursionError, OverflowError, SafetensorError, KeyError) as error:
        raise CheckpointError(f"{path}: {error}; {REMEDY}") from error
    return document, weights


def _refuse_constant(constant: str) -> Any:
    raise InvalidDocument(f"{constant} is not JSON")


Check = Callable[[Any], bool]


def _is_integer(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value < _MAX_INTEGER


def _is_number(value: Any) -> bool:
    return (type(value) is int and abs(value) < 2**53) or (type(value) is float and math.isfinite(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list_of(each: Check) -> Check:
    return lambda value: isinstance(value, list) and all(each(entry) for entry in value)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _is_positive(value: Any) -> bool:
    return _is_integer(value, 1)


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_one_of(*choices: Any) -> Check:
    return lambda value: any(type(value) is type(choice) and value == choice for choice in choices)


def _check_mapping(
    what: str, value: Any, required: Mapping[str, Check], optional: Mapping[str, Check] | None = None
) -> None:
    """Raises InvalidDocument unless the mapping has all required keys, no unknown key, and only valid values."""
    known = {**required, **(optional or {})}
    if not isinstance(value, dict):
        raise InvalidDocument(f"{what} is {value!r:.60}, not a mapping")
    if unknown := [key for key in value if key not in known]:
        raise InvalidDocument(f"{what} has an unknown key {unknown[0]!r:.60}")
    if missing := [key for key in required if key not in value]:
        raise InvalidDocument(f"{what} has no {missing[0]!r}; it needs {', '.join(required)}")
    for key, entry in value.items():
        if not known[key](entry):
            raise InvalidDocument(f"{what} has {key}={entry!r:.60}, which is not a valid value")


def _accept_any(value: Any) -> bool:
    return True


_LEAF: dict[str, Check] = {
    "path": _is_list_of(lambda part: _is_text(part) or _is_integer(part)),
    "kind": _is_one_of("box", "discrete", "image"),
    "shape": lambda shape: _is_list_of(_is_positive)(shape) and len(shape) <= 8 and math.prod(shape) < _MAX_ELEMENTS,
    "dtype": _is_one_of(*_DTYPES),
    "start": lambda value: type(value) is int and abs(value) < _MAX_INTEGER,
}
_ORIGIN = _is_one_of(None, "observation", "info")
_SPEC: dict[str, Check] = {
    "name": _is_text,
    "layout": _accept_any,
    "action_low": lambda value: _is_list_of(_is_number)(value) and bool(value),
    "action_high": lambda value: _is_list_of(_is_number)(value) and bool(value),
    "action_shape": _is_list_of(_is_positive),
    "action_dtype": _is_one_of(*_DTYPES),
    "state_key": _or_none(_is_text),
    "state_from": _ORIGIN,
    "state": _accept_any,
    "max_episode_steps": _or_none(_is_positive),
    "choices": _or_none(_is_positive),
    "branches": _is_list_of(_is_positive),
    "mask_key": _or_none(_is_text),
    "mask_from": _ORIGIN,
}
_NOISE: dict[str, dict[str, Check]] = {
    "gaussian": {"scale": _is_number, "spread": _is_number},
    "ornstein_uhlenbeck": {"scale": _is_number, "spread": _is_number, "pull": _is_number, "time_step": _is_number},
    "epsilon_greedy": {
        "initial": lambda value: _is_number(value) and 0 <= value <= 1,
        "final": lambda value: _is_number(value) and 0 <= value <= 1,
        "steps": _is_positive,
        "decay": _is_one_of("linear", "exponential"),
    },
    "own": {"make": _or_none(_is_text)},
}
_HEAD: dict[str, dict[str, Check]] = {
    "squashed_gaussian": {"action_size": _is_positive, "log_std_min": _is_number, "log_std_max": _is_number},
    "gaussian": {"action_size": _is_positive, "squashed": _is_flag, "state_dependent_std": _is_flag},
    "deterministic": {},
    "greedy": {"dueling": _is_flag},
    "categorical": {},
    "multi_categorical": {"branches": _is_list_of(_is_positive)},
}


def check(content: Any, weights: Weights) -> None:
    """Raises InvalidDocument for the first part that is invalid, or that does not match the other parts."""
    hexadecimal: Check = lambda value: _is_text(value) and len(value) == 64  # noqa: E731
    parts = {"policy": _accept_any, "spec": _accept_any, "notes": lambda value: isinstance(value, dict)}
    _check_mapping(
        "the document", content, {"format": _is_integer, "version": _is_integer, "weights_sha256": hexadecimal, **parts}
    )
    if not _is_integer(content["notes"].get("step", 0)):
        raise InvalidDocument(f"notes has step={content['notes']['step']!r:.60}, which is not a valid value")
    spec = _check_spec(content["spec"])
    for name, array in weights.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidDocument(f"{WEIGHTS} has numbers in {name!r:.60} that are not finite")
    check_policy(content["policy"], spec, weights)


def check_policy(policy: Any, spec: EnvSpec, weights: Weights) -> None:
    """Raises InvalidDocument where a policy's description is invalid, or does not match the spec or the weights."""
    head = _check_description(policy, spec)
    _check_normaliser(weights, spec)
    if policy["kind"] != "module":
        _check_layers(policy, head, spec, weights)
    elif head == "gaussian" and not policy["state_dependent_std"]:
        _check_shapes(weights, {"actor/log_std": (spec.action_size,)}, {"actor/log_std"} & weights.keys())


def _check_spec(value: Any) -> EnvSpec:
    _check_mapping("spec", value, _SPEC)
    for name in ("layout", "state"):
        if name == "layout" or value[name] is not None:
            _check_layout(f"spec.{name}", value[name])
    spec = EnvSpec.from_json(value)
    size, low, high = len(spec.action_low), spec.action_low, spec.action_high
    in_order = len(high) == size and all(a <= b for a, b in zip(low, high, strict=True))
    one = size == 1 and spec.action_shape == () and not spec.branches
    if not in_order or not (one if spec.choices is not None else math.prod(spec.action_shape) == size):
        raise InvalidDocument(
            f"spec has actions of shape {spec.action_shape!r:.60} with bounds {low!r:.60} and {high!r:.60}"
        )
    if spec.branches and len(spec.branches) != size:
        raise InvalidDocument(f"spec has {len(spec.branches)} branches for {size} actions")
    if spec.counts and np.dtype(spec.action_dtype).kind == "f":
        raise InvalidDocument(f"spec has action_dtype={spec.action_dtype!r}, which does not match its actions")
    for name, source in (("state", spec.state_from), ("mask", spec.mask_from)):
        if (source is None) != (value[f"{name}_key"] is None):
            raise InvalidDocument(
                f"spec has {name}_key={value[f'{name}_key']!r:.60} and {name}_from={source!r}, which do not match"
            )
    if (spec.state is None) != (spec.state_key is None):
        raise InvalidDocument("spec has only one of state and state_key, but both belong together")
    return spec


def _check_layout(what: str, value: Any) -> None:
    _check_mapping(what, value, {"leaves": _is_list_of(_accept_any)})
    for leaf in value["leaves"]:
        _check_mapping(f"{what}.leaves", leaf, _LEAF)
        if leaf["kind"] == "discrete" and len(leaf["shape"]) != 1:
            raise InvalidDocument(f"{what}.leaves has a discrete leaf with shape {leaf['shape']!r:.60}")
    paths = [leaf["path"] for leaf in value["leaves"]]
    if any(one == other[: len(one)] for one, other in itertools.permutations(paths, 2)):
        raise InvalidDocument(f"{what}.leaves has two leaves with the same path: {paths!r:.60}")


def _check_description(value: Any, spec: EnvSpec) -> str:
    """Checks the policy's description; returns the name of its head."""
    kind = value.get("kind") if isinstance(value, dict) else None
    head = value.get("head", kind) if isinstance(value, dict) else None
    if not _is_text(head) or head not in HEADS or kind not in (head, "module"):
        raise InvalidDocument(
            f"policy has kind={kind!r:.60} and head={head!r:.60}, which this version of Offbeat does not know; "
            f"it knows {', '.join(HEADS)}, and module with one of them as its head"
        )
    required = {"kind": _is_text, **_HEAD[head]}
    required |= {"actor": _or_none(_is_text)} if kind == "module" else {"activation": _is_one_of(*NUMPY_ACTIVATIONS)}
    optional = {"head": _is_text, "exploration": _or_none(_is_exploration), "log_prob": _is_flag}
    optional |= {"backend": _is_one_of("torch", "jax")} if kind == "module" else {"recurrent": _is_trunk}
    _check_mapping("policy", value, required, {**optional, "preprocessor": _or_none(_is_text)})
    if value.get("action_size", spec.action_size) != spec.action_size:
        raise InvalidDocument(f"policy has action_size={value['action_size']}, but spec has {spec.action_size} actions")
    if value.get("log_std_min", 0) > value.get("log_std_max", 0):
        raise InvalidDocument("policy has a log_std_min greater than its log_std_max")
    if tuple(value.get("branches", spec.branches)) != spec.branches:
        raise InvalidDocument(f"policy has branches={value['branches']!r:.60}, but spec has {spec.branches!r:.60}")
    needed = {"greedy": "choices", "categorical": "choices", "multi_categorical": "branches"}.get(head, "neither")
    has = "choices" if spec.choices is not None else "branches" if spec.branches else "neither"
    if needed != has:
        raise InvalidDocument(f"policy has the head {head}, which does not match the action space of spec")
    noise = value.get("exploration")
    if noise is not None and noise["kind"] != "own" and (noise["kind"] == "epsilon_greedy") != (has == "choices"):
        raise InvalidDocument(f"policy explores by {noise['kind']}, which does not match the action space of spec")
    return str(head)


def _is_trunk(value: Any) -> bool:
    """Whether this describes a recurrent trunk: a built-in one, or a user's own."""
    own = isinstance(value, dict) and value.get("kind") == "own"
    sizes: dict[str, Check] = {"make": _or_none(_is_text)} if own else {"size": _is_positive, "layers": _is_positive}
    optional = {"backend": _is_one_of("torch", "jax")} if own else {}
    _check_mapping("policy.recurrent", value, {"kind": _is_one_of(*CELLS, "own"), **sizes}, optional)
    return own or value["layers"] * value["size"] < _MAX_ELEMENTS


def _is_exploration(value: Any) -> bool:
    if not isinstance(value, dict) or not _is_one_of(*_NOISE)(value.get("kind")):
        return False
    _check_mapping("policy.exploration", value, {"kind": _is_text, **_NOISE[value["kind"]]})
    if value["kind"] == "own":
        return True  # only a name, which nothing imports: a loaded policy acts without it
    if value["kind"] != "epsilon_greedy":
        scaled = value["scale"] >= 0 and value["spread"] > 0
        return bool(scaled and value.get("pull", 0) >= 0 and value.get("time_step", 1) > 0)
    return value["decay"] == "linear" or min(value["initial"], value["final"]) > 0


def _check_normaliser(weights: Weights, spec: EnvSpec) -> None:
    parts = {name for name in weights if name.startswith("normaliser/")}
    if not parts:
        return
    wanted = {"mean": (spec.observation_size,), "scale": (spec.observation_size,), "clip": ()}
    _check_shapes(weights, {f"normaliser/{name}": shape for name, shape in wanted.items()}, parts)


def _check_layers(policy: Mapping[str, Any], head: str, spec: EnvSpec, weights: Weights) -> None:
    """Checks that the layers' shapes lead from the observation's size to the head's input size."""
    above = [name for name in weights if name.startswith("actor/") and not name.startswith(TRUNK)]
    count = sum(name.endswith("/weight") for name in above)
    size, wanted = _check_trunk(policy.get("recurrent"), spec, weights)
    doubled = head == "squashed_gaussian" or policy.get("state_dependent_std")
    for layer in range(count):
        found = weights.get(f"actor/{layer}/weight")
        last = layer == count - 1
        out = 0 if found is None or found.ndim != 2 else found.shape[1]
        if last:
            choices = sum(spec.counts) + bool(policy.get("dueling"))
            out = choices if spec.counts else spec.action_size * (2 if doubled else 1)
            if found is not None and found.ndim == 2 and found.shape[1] != out:
                raise InvalidDocument(
                    f"the last layer has {found.shape[1]} outputs, but {head} needs {out} for {spec.name}"
                )
        wanted |= {f"actor/{layer}/weight": (size, out), f"actor/{layer}/bias": (out,)}
        if f"actor/{layer}/norm/scale" in weights:
            wanted |= {f"actor/{layer}/norm/{part}": (out,) for part in ("scale", "offset")}
        size = out
    if head == "gaussian" and not doubled:
        wanted["actor/log_std"] = (spec.action_size,)
    if not count:
        raise InvalidDocument(f"{WEIGHTS} has no layer of an actor: no 'actor/0/weight'")
    beside: tuple[str, ...] = ("normaliser/", "preprocessor/") if "preprocessor" in policy else ("normaliser/",)
    if policy.get("recurrent", {}).get("kind") == "own":
        beside += (TRUNK,)  # they are compared with the user's module when it loads them
    _check_shapes(weights, wanted, {name for name in weights if not name.startswith(beside)})


def _check_trunk(
    recurrent: Mapping[str, Any] | None, spec: EnvSpec, weights: Weights
) -> tuple[int, dict[str, tuple[int, ...]]]:
    """The input size of the first layer above a trunk, or without one, and the shapes of the trunk's weights."""
    if recurrent is None:
        return spec.observation_size, {}
    if recurrent["kind"] != "own":
        return recurrent["size"], trunk_shapes(recurrent, spec.observation_size)
    first = weights.get("actor/0/weight")
    return (0 if first is None or first.ndim != 2 else first.shape[0]), {}


def _check_shapes(weights: Weights, wanted: Mapping[str, tuple[int, ...]], there: set[str]) -> None:
    for name in sorted(there | wanted.keys()):
        found, expected = weights[name].shape if name in there else "missing", wanted.get(name, "absent")
        if found != expected:
            raise InvalidDocument(f"{WEIGHTS}: {name!r:.60} is {found}, but by {DOCUMENT} it must be {expected}")
