"""Clocks in tests: only `tests/waiting.py` reads them, and every wait has PATIENCE as its timeout."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent
Check = Callable[[ast.AST], Iterator[int]]
REQUESTS = ("Client", "AsyncClient", "delete", "get", "head", "post", "put", "request", "stream")
ASKS = {"case.call_and_validate", *(f"httpx.{name}" for name in REQUESTS)}
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time"}
ALLOWED = {
    "waiting.py",  # waits for conditions
    "memory/agents/test_budgets.py",  # a clock that is ahead of the files' times
    "memory/agents/test_crash.py",  # kills within a turn
}


def readings(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that call a clock of the module ``time``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS:
            value = node.func.value
            if isinstance(value, ast.Name) and value.id == "time":
                yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "time" and CLOCKS & {name.name for name in node.names}:
            yield node.lineno


def places(lines: Check, allowed: Collection[str] = ()) -> list[str]:
    """List FILE:LINE for all tests except those in ``allowed``."""
    return [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        if str(path.relative_to(ROOT)) not in allowed
        for line in lines(ast.parse(path.read_text(encoding="utf-8")))
    ]


def waits(tree: ast.AST) -> Iterator[int]:
    """Yield the lines with a timeout of one second or more."""
    for node in ast.walk(tree):
        limits: list[ast.expr] = []
        if isinstance(node, ast.Dict):
            entries = zip(node.keys, node.values, strict=True)
            limits = [value for key, value in entries if isinstance(key, ast.Constant) and _limits(key.value)]
        if isinstance(node, ast.Call):
            limits = [word.value for word in node.keywords if _limits(word.arg)]
            if isinstance(node.func, ast.Attribute) and node.func.attr in {"join", "poll", "wait"}:
                limits += node.args[-1:]
        for limit in limits:
            if isinstance(limit, ast.Constant) and type(limit.value) in {int, float} and limit.value >= 1:
                yield limit.lineno


def _limits(name: object) -> bool:
    return isinstance(name, str) and name.endswith("timeout")


def answers(tree: ast.AST) -> Iterator[int]:
    """Yield the lines with a short limit for answers in a robot's session, some of which must arrive."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or not function.name.startswith("test_"):
            continue
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        if any(ast.unparse(call.func) == "limited" for call in calls):
            continue
        for call in calls:
            if ast.unparse(call.func) in {"Limits", "limits", "replace"}:
                yield from (word.value.lineno for word in call.keywords if word.arg == "answer" and _short(word.value))


def _short(value: ast.expr) -> bool:
    """Return whether a value may be below one second."""
    numbers = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)]
    return any(type(number) is float and number < 1 for number in numbers)


def haste(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that use a library's own timeout of a few seconds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in {"websockets.sync.client", "websockets.sync.server"}:
            hasty = bool({"connect", "serve"} & {name.name for name in node.names})
        elif isinstance(node, ast.Call):
            hasty = ast.unparse(node.func) in ASKS and "timeout" not in {word.arg for word in node.keywords}
        else:
            continue
        if hasty:
            yield node.lineno


def test_no_example_is_too_slow() -> None:
    profile = settings()
    assert profile.deadline is None and HealthCheck.too_slow in profile.suppress_health_check


def exceptions(tree: ast.AST) -> Iterator[int]:
    """Yield the lines in which a test replaces the settings of `tests/conftest.py`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "settings":
            words = {word.arg for word in node.keywords}
            if words & {"deadline", "suppress_health_check"}:
                yield node.lineno


def states(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that compare a file's whole state, which includes its access time."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(_is_state(value) for value in (node.left, *node.comparators)):
            yield node.lineno


def _is_state(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).endswith((".stat", ".lstat"))


def measures(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that compare a measured duration with a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops
        ):
            sides = node.left, *node.comparators
            if any(map(_took, sides)) and any(isinstance(side, ast.Constant) and side.value for side in sides):
                yield node.lineno


def _took(value: ast.expr) -> bool:
    return isinstance(value, ast.Attribute) and (value.attr.endswith("_ms") or value.attr in {"flops", "seconds"})


CHECKS = [
    (readings, ALLOWED, "wait for a condition with tests/waiting.py instead of reading a clock", [2, 3],
     "import time\nbegan = time.monotonic()\nfrom time import perf_counter"),
    (waits, (), "use PATIENCE of tests/waiting.py as the timeout", [1, 2, 3],
     "start(timeout=20)\nlimits = {'server_timeout': 20}\nevent.wait(5.0)\nevent.wait(0.1)\nthread.join(PATIENCE)"),
    (answers, (), "name the part that does not answer with `limited` of tests/keep_agent/robots/robots.py", [2, 3],
     "def test_it():\n limits(answer=0.1)\n Limits(answer=0.2 if late else WAIT)\n limits(answer=WAIT, skill=0.1)"),
    (answers, (), "", [], "def test_it():\n with limited('plan'): run(limits(answer=0.1))"),
    (haste, (), "connect with tests/sockets.py, and give httpx PATIENCE", [1, 2],
     "from websockets.sync.client import connect\nhttpx.get(url)\nhttpx.get(url, timeout=PATIENCE)"),
    (exceptions, {"keep_agent/server/test_schema.py"}, "leave these settings to tests/conftest.py", [2],
     "settings(max_examples=3)\nsettings(deadline=20)"),
    (states, (), "compare st_ino or the field that is meant", [1, 3],
     "file.stat() == before\nfile.stat().st_ino == before\nbefore != os.stat(file)"),
    (measures, (), "measure on a clock of the test, FakeTime of tests/waiting.py", [1, 3],
     "prefill.after_ms < 50\n0 < step.ttft_ms\nassert found.flops > 1e8 and found.carried is None"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "allowed", "remedy", "lines", "example"), CHECKS)
def test_no_test_measures_time(
    check: Check, allowed: Collection[str], remedy: str, lines: list[int], example: str
) -> None:
    """Every check passes on all tests, and detects the lines of its example."""
    violations = places(check, allowed)
    assert not violations, f"{remedy}: {', '.join(violations)}"
    assert sorted(check(ast.parse(example))) == lines
