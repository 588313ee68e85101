"""No default test depends on how fast or busy the machine is: bounds of time are for `make soak` and `make slow`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time", "time_ns"}
TIMED = ("elapsed", "seconds", "unattributed", "duration", "latency", "per_second", "wall", "waits", "took")
LEAST_SECONDS = 60
"""A deadline is no shorter: then only what is broken exceeds it."""


def complaints(source: str) -> list[str]:
    """Lines of a test file whose outcome may depend on the machine, and why."""
    tree = ast.parse(source)
    if any(re.match(r"pytestmark = .*pytest\.mark\.slow", ast.unparse(node)) for node in tree.body):
        return []
    timers = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_") and CLOCKS & set(_names(node))
    }
    return [f"{line}: {why}" for node in tree.body for line, why in sorted(_of(node, timers))]


def _of(node: ast.AST, timers: set[str]) -> Iterator[tuple[int, str]]:
    """timers: functions of the file that read a clock."""
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            yield from _of(member, timers)
        return
    marks = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
    if any(mark == "pytest.mark.slow" or "soak.FULL" in mark for mark in marks):
        return
    yield from _bounds(node, timers)
    yield from _deadlines(node)


def _bounds(function: ast.AST, timers: set[str]) -> Iterator[tuple[int, str]]:
    """Asserts that hold a time, a rate or a share of time to a number; the order of two times is no matter of speed."""
    measured = _measured(function, timers)
    for check in (each for each in ast.walk(function) if isinstance(each, ast.Assert)):
        for compared in (each for each in ast.walk(check.test) if isinstance(each, ast.Compare)):
            ordered = any(isinstance(each, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for each in compared.ops)
            if ordered and _is_time(compared, measured) and _has_number(compared):
                yield check.lineno, f"a bound of time: {ast.unparse(compared)}"


def _measured(function: ast.AST, timers: set[str]) -> set[str]:
    """Names of what was read from a clock, or computed from that."""
    found = set(timers)
    for _ in range(3):  # one name may be computed from another that stands further down, in a loop
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.NamedExpr) and _is_time(node.value, found):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
            if isinstance(node, ast.For | ast.comprehension) and _is_time(node.iter, found):
                found |= set(_names(node.target))
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".append"):
                added = node.func.value if isinstance(node.func, ast.Attribute) else None
                if isinstance(added, ast.Name) and any(_is_time(each, found) for each in node.args):
                    found.add(added.id)
    return found


def _is_time(node: ast.AST, measured: set[str]) -> bool:
    return any(name in measured | CLOCKS or name.endswith(TIMED) for name in _names(node))


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant):
            yield str(each.slice.value)


def _has_number(node: ast.AST) -> bool:
    keys = {each.slice for each in ast.walk(node) if isinstance(each, ast.Subscript)}
    return any(
        (isinstance(each, ast.Constant) and isinstance(each.value, int | float) and each.value and each not in keys)
        or (isinstance(each, ast.Name) and each.id.isupper())
        for each in ast.walk(node)
    )


def _deadlines(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Waiting that gives up early."""
    for each in ast.walk(node):
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Add) and _is_clock(each.left):
            if _is_short(each.right):
                yield each.lineno, f"a deadline below {LEAST_SECONDS} s: {ast.unparse(each)}"
        elif isinstance(each, ast.Call):
            name, arguments = ast.unparse(each.func).rpartition(".")[2], {key.arg: key.value for key in each.keywords}
            waits = name in ("wait", "join", "communicate", "run", "check_output", "get", "wait_until")
            limit = arguments.get("timeout", arguments.get("seconds"))
            if limit is None and name in ("wait", "join") and each.args:
                limit = each.args[0]
            if waits and limit is not None and _is_short(limit):
                yield each.lineno, f"a timeout below {LEAST_SECONDS} s: {ast.unparse(each)}"
            if "deadline" in arguments and getattr(arguments["deadline"], "value", 0) is not None:
                yield each.lineno, f"a deadline for an example: {ast.unparse(each)}"


def _is_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in {"monotonic", "perf_counter"}


def _is_short(node: ast.AST) -> bool:
    """From a second on: what is shorter is a pause, and not how long anybody waits for a result."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and 1 <= node.value < LEAST_SECONDS


@pytest.mark.parametrize("file", sorted(TESTS.rglob("*.py")), ids=lambda file: str(file.relative_to(TESTS)))
def test_no_default_test_depends_on_how_fast_the_machine_is(file: Path) -> None:
    assert complaints(file.read_text()) == []


@pytest.mark.parametrize(
    "body",
    [
        "begun = time.monotonic(); assert time.monotonic() - begun < 10",
        "start = perf_counter(); work(); took = perf_counter() - start; assert took <= LIMIT",
        "times = []; times.append(time.perf_counter() - start); assert min(times) < 2e-6",
        "assert all(1 < score['rounds'][0] < 5_000 for score in record['steps_per_second'])",
        "assert track.unattributed / track.wall <= 0.05",
        "assert summary['steps_per_second'] > 100",
        "assert summary['policy_lag']['seconds_p50'] > 0 and waits['learner_seconds'] < 3",
        "until = time.monotonic() + 5",
        "process.communicate(timeout=20)",
        "assert process.wait(10) == 0",
    ],
)
def test_bounds_of_time_are_found(body: str) -> None:
    assert complaints(f"def test_it():\n    {body}")
    assert not complaints(f"@pytest.mark.slow\ndef test_it():\n    {body}")
    assert not complaints(f"pytestmark = pytest.mark.slow\n\ndef test_it():\n    {body}")
    some = "pytest.mark.parametrize('x', [1, pytest.param(2, marks=pytest.mark.slow)])"
    assert complaints(f"@{some}\ndef test_it(x):\n    {body}")
    assert complaints(f"some = {some}\n\ndef test_it():\n    {body}")
    assert not complaints(f"@pytest.mark.skipif(not soak.FULL, reason='')\ndef test_it():\n    {body}")


@pytest.mark.parametrize(
    "body",
    [
        "before = time.monotonic_ns(); publish(); assert before <= rollout.time <= time.monotonic_ns()",
        "assert summary['policy_lag']['updates_p50'] <= 3",
        "assert waits['learner_seconds'] > 0",
        "process.communicate(timeout=120)",
        "until = time.monotonic() + 300",
        "assert text_of(seconds=3) == '0:00:03'",
        "time.sleep(1)",
    ],
)
def test_orders_counts_and_patience_are_not(body: str) -> None:
    assert complaints(f"def test_it():\n    {body}") == []
