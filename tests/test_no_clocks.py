"""No test measures time: clocks are read in `tests/waiting.py` alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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


def test_clocks_are_read_where_conditions_are_waited_for_and_nowhere_else() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        if str(path.relative_to(ROOT)) not in ALLOWED
        for line in readings(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "wait for a condition with tests/waiting.py instead of reading a clock: " + ", ".join(found)


def test_the_check_sees_clocks() -> None:
    assert [*readings(ast.parse("import time\nbegan = time.monotonic()\nfrom time import perf_counter"))] == [3, 2]
