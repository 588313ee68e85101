"""Names and shapes of the arrays that a learner saves."""

from __future__ import annotations

from collections.abc import Mapping

from offbeat.types import Array

_COUNTERS = ("updates", "observed", "rate_factor", "progress")
_STATISTICS = ("observations", "states", "returns")


def arrays_of_backend(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Of a learner's saved arrays, those that its backend saved."""
    return {
        name: array
        for name, array in arrays.items()
        if name not in _COUNTERS and name.partition("/")[0] not in _STATISTICS
    }


def below(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """The arrays whose names begin with the prefix, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def shape_differences(saved: Mapping[str, Array], own: Mapping[str, Array]) -> list[str]:
    """How saved arrays differ from one's own, in names and shapes."""
    there, here = ({name: array.shape for name, array in each.items()} for each in (saved, own))
    return [
        f"{name} is {there.get(name, 'missing')} there and {here.get(name, 'missing')} here"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]
