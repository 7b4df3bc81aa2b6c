"""Language lint: ``python -m tests.language [FOLDER ...]`` lists openings, words and names that CONTRIBUTING rules out.

A module's docstring begins with the noun that the file is, a function's with a verb. Names are nouns and verbs of the
field: no pronouns, and no participles without their noun (`found`, `given`).
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("keep_agent", "envs", "planners", "memory", "configs", "eval", "tests", "benchmarks", "docs")
PAGES = ("README.md", "CONTRIBUTING.md")
OPENINGS = frozenset(
    "are as because can did do does how if is it may of so that these they this those was what whatever when "
    "where which who whoever whom whose why".split()
)
VERB_OPENINGS = frozenset(
    "adds asks begins brings builds checks computes counts decides does draws ends executes finds follows gives "
    "goes infers keeps lays lets loads looks makes measures moves names plays puts reads runs says shows starts "
    "takes talks tells turns updates uses writes".split()
)
NAMES = frozenset(
    "anew another answered anybody anyone arrived aside asked asking begun behind both brought carried chosen "
    "claimed coded coming counted described drawn each ended fed found gathered given gone grown handed heard "
    "held here hers him his its kept laid left listed listening lost made mine mined moved named nobody nothing "
    "now one ones opened other others our ours own painted placed played reached refused riding said seen served "
    "shown somebody someone sought spared spoken stolen stood such taken their theirs them there thrown told torn "
    "tried turned used waited wanted whatever whoever written yours".split()
)
FIXED = {  # names that JSON formats and configs contain
    "envs/fact.py": {"gone"},
    "keep_agent/agent/prefetch.py": {"left"},
    "keep_agent/scenarios/turn_records.py": {"kept"},
    "keep_agent/server/chat/generate.py": {"kept"},
    "keep_agent/server/chat/turn.py": {"kept"},
    "keep_agent/server/error_handlers.py": {"refused"},
    "keep_agent/server/planning/routes.py": {"gone"},
    "keep_agent/server/scenarios/routes.py": {"kept", "played"},
    "keep_agent/viewer/segments.py": {"written"},
    "memory/recompute/none.py": {"nothing"},
    "planners/prompts/styles.py": {"gone"},
    "planners/training/rollout_files.py": {"gone"},
}
SPEECH = "configs/phases/"  # texts of scenarios
WORDS = {
    re.compile(r"\banew\b", re.I): "again",
    re.compile(r"\bwho(?:so)?ever\b", re.I): "the caller, any reader",
    re.compile(r"\b(?:nobody|somebody|anybody|everybody)\b", re.I): "no caller, another user, ...",
    re.compile(r"\bby then\b", re.I): "until that step",
    re.compile(r"\bin vain\b", re.I): "without effect",
    re.compile(r"\bwhat became of\b", re.I): "the result of",
    re.compile(r"\bwhose turn\b", re.I): "the next",
    re.compile(r"\b(?:is|are|was|were) told\b", re.I): "receives, is informed",
    re.compile(r"\b(?:thence|hence|thereof|thereby|whereby|wherein|therein)\b", re.I): "plain words",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One place that breaks a rule."""

    path: Path
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}"


def findings(folders: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield every problem in the tracked files of ``folders`` (default: all)."""
    patterns = [*(folders or FOLDERS), *(() if folders else PAGES)]
    listed_files = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed_files.stdout.split():
        path = ROOT / name
        if path == Path(__file__).resolve() or name.startswith(SPEECH) or not path.exists():
            continue
        if path.suffix == ".py":
            yield from _python(path)
        elif path.suffix in (".md", ".yaml", ".js") and "CHANGELOG" not in name:
            yield from _text(path, path.read_text(encoding="utf-8"), 1)


def _python(path: Path) -> Iterator[Finding]:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        yield from _opening(path, node)
        yield from _name(path, node)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            yield from _text(path, token.string, token.start[0])


def _opening(path: Path, node: ast.AST) -> Iterator[Finding]:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    text = ast.get_docstring(node) or ""
    match = re.match(r"\W*([A-Za-z']+)", text)
    word = match[1].lower() if match else ""
    line = getattr(node, "lineno", 1)
    if word in OPENINGS:
        yield Finding(
            path, line, f"a docstring begins with {word!r}: begin with a noun (module, class) or a verb (function)"
        )
    if isinstance(node, ast.Module) and word in VERB_OPENINGS:
        yield Finding(path, line, f"module docstring begins with {word!r}: begin with the noun that the file is")


def _name(path: Path, node: ast.AST) -> Iterator[Finding]:
    name = ""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        name = node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        name = node.attr
    elif isinstance(node, ast.arg):
        name = node.arg
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        name = node.name
    if name.strip("_").lower() in NAMES - FIXED.get(str(path.relative_to(ROOT)), set()):
        yield Finding(path, node.lineno, f"name {name!r} is a pronoun or participle: use a noun or verb of the field")


def _text(path: Path, text: str, first: int) -> Iterator[Finding]:
    for pattern, remedy in WORDS.items():
        for match in pattern.finditer(text):
            line = first + text.count("\n", 0, match.start())
            yield Finding(path, line, f"{match[0]!r} is not plain: write {remedy}")


def main() -> None:
    problems = list(findings(sys.argv[1:]))
    sys.stdout.write("".join(f"{problem}\n" for problem in [*problems, f"{len(problems)} problems"]))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
