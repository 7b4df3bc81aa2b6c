"""The examples in the documentation print what they say they print."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", re.DOTALL)
NEEDS_A_RUN = "sys.argv"
EXAMPLES = [
    pytest.param(code, printed, id=f"{path.name}-{number}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for number, (code, printed) in enumerate(EXAMPLE.findall(path.read_text(encoding="utf-8")), 1)
    if NEEDS_A_RUN not in code
]


@pytest.mark.parametrize(("code", "printed"), EXAMPLES)
def test_examples_print_what_they_say(code: str, printed: str) -> None:
    said = io.StringIO()
    with redirect_stdout(said):
        exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    assert said.getvalue() == printed


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5
