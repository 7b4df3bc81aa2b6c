"""Documentation: examples print the text beside them, and no link is broken."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", re.DOTALL)
NEEDS_A_RUN = "sys.argv"
PAGES = [ROOT / "README.md", ROOT / "planners/planner_tiny/README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    pytest.param(code, printed, id=f"{path.relative_to(ROOT)}-{number}")
    for path in PAGES
    for number, (code, printed) in enumerate(EXAMPLE.findall(path.read_text(encoding="utf-8")), 1)
    if NEEDS_A_RUN not in code
]


@pytest.mark.parametrize(("code", "printed"), EXAMPLES)
def test_examples_print_the_documented_text(code: str, printed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    output = io.StringIO()
    with redirect_stdout(output):
        exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    assert output.getvalue() == printed


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocstrings") is None, reason="needs the extra docs: pip install 'keep-agent[docs]'")
def test_the_site_builds_and_no_link_is_broken(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    agent = (tmp_path / "reference/agent/index.html").read_text(encoding="utf-8")
    assert 'id="keep_agent.Agent.plan"' in agent and (tmp_path / "CONTRIBUTING/index.html").is_file()
