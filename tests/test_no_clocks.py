"""No test measures time: clocks are read in `tests/waiting.py` alone, and who waits has the patience that is there."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).parent
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time"}
ALLOWED = {
    "waiting.py",  # waits for conditions
    "memory/agents/test_expiry.py",  # a clock that runs ahead of the files' times
    "memory/agents/test_crash.py",  # places a kill somewhere within a turn
    "memory/test_session.py",  # the processor time of this process, whose parts add up
}


def readings(tree: ast.AST) -> Iterator[int]:
    """Lines that call a clock of the module ``time``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS:
            value = node.func.value
            if isinstance(value, ast.Name) and value.id == "time":
                yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "time" and CLOCKS & {name.name for name in node.names}:
            yield node.lineno


def found(lines: Callable[[ast.AST], Iterator[int]], allowed: Collection[str] = ()) -> list[str]:
    """FILE:LINE of all tests but those in ``allowed``."""
    return [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        if str(path.relative_to(ROOT)) not in allowed
        for line in lines(ast.parse(path.read_text(encoding="utf-8")))
    ]


def test_clocks_are_read_where_conditions_are_waited_for_and_nowhere_else() -> None:
    clocks = found(readings, ALLOWED)
    assert not clocks, "wait for a condition with tests/waiting.py instead of reading a clock: " + ", ".join(clocks)


def test_the_check_sees_clocks() -> None:
    assert [*readings(ast.parse("import time\nbegan = time.monotonic()\nfrom time import perf_counter"))] == [3, 2]


def waits(tree: ast.AST) -> Iterator[int]:
    """Lines with a number of seconds, one at least, after which somebody does not wait any longer."""
    for node in ast.walk(tree):
        limits: list[ast.expr] = []
        if isinstance(node, ast.Dict):
            named = zip(node.keys, node.values, strict=True)
            limits = [value for key, value in named if isinstance(key, ast.Constant) and _limits(key.value)]
        if isinstance(node, ast.Call):
            limits = [word.value for word in node.keywords if _limits(word.arg)]
            if isinstance(node.func, ast.Attribute) and node.func.attr in {"wait", "join"}:
                limits += node.args[-1:]
        for limit in limits:
            if isinstance(limit, ast.Constant) and type(limit.value) in {int, float} and limit.value >= 1:
                yield limit.lineno


def _limits(name: object) -> bool:
    return isinstance(name, str) and name.endswith("timeout")


def test_whoever_waits_does_so_as_long_as_a_busy_machine_needs() -> None:
    limits = found(waits)
    assert not limits, "wait as long as PATIENCE of tests/waiting.py says: " + ", ".join(limits)


def test_the_check_sees_limits() -> None:
    text = "start(timeout=20)\nlimits = {'server_timeout': 20}\nevent.wait(5.0)\nevent.wait(0.1)\nthread.join(PATIENCE)"
    assert sorted(waits(ast.parse(text))) == [1, 2, 3]
