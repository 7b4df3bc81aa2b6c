"""Language: openings, names and words that CONTRIBUTING rules out occur nowhere."""

from __future__ import annotations

from tests.language import findings


def test_the_language_lint_finds_no_problem() -> None:
    assert [str(finding) for finding in findings()] == []
