"""Console: text of files and models is never interpreted as markup, and the packages print with no other console."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.table import Table

from keep_agent.console import make_console
from tests.test_imports import ROOMS, ROOT

FOREIGN = "/runs/[e]/[bold]x[/bold] :key: \\[y]"
SOURCES = [path for room in (*ROOMS, "benchmarks") for path in sorted((ROOT / room).rglob("*.py"))]


def printed(thing: object) -> str:
    out = io.StringIO()
    make_console(200, file=out).print(thing)
    return out.getvalue()


def test_lines_and_all_parts_of_a_table_are_printed_as_they_are() -> None:
    table = Table(title=FOREIGN, caption=FOREIGN)
    table.add_column(FOREIGN)
    table.add_row(FOREIGN)
    assert FOREIGN in printed(FOREIGN) and printed(table).count(FOREIGN) == 4


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "id", getattr(node.func, "attr", "")), node


def constant(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant)


def faults(source: str) -> list[str]:
    """Return the calls and imports by which rich would interpret foreign text."""
    tree, problems = ast.parse(source), []
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
             if (node.module or "").split(".")[0] == "rich"}  # fmt: skip
    problems += sorted(names & {"print", "RichHandler", "escape", "render", "inspect"})
    for name, call in calls(tree):
        markup = next((word.value for word in call.keywords if word.arg == "markup"), None)
        if markup is not None and not (constant(markup) and markup.value is False):
            problems.append("markup=")
        if name == "Console" or name == "from_markup":
            problems.append(name)
        if name == "TextColumn" and markup is None and (not constant(call.args[0]) or "{" in call.args[0].value):
            problems.append(name)
        if name == "add_task" and not constant(call.args[0]) and "TextColumn" not in source:
            problems.append(name)  # rich's default columns of a bar interpret markup
    return problems


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_console_and_no_markup_in_the_packages(path: Path) -> None:
    if path != ROOT / "keep_agent" / "console.py":
        assert faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "Console().print(path)", "console.print(path, markup=True)", "Text.from_markup(path)", "from rich import print",
        "from rich.markup import escape", "TextColumn('{task.description}')", "TextColumn(noun)",
        "Progress().add_task(path)",
    ],
)  # fmt: skip
def test_the_check_finds_each_problem(source: str) -> None:
    assert faults(source)
