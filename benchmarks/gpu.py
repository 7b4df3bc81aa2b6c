"""GPU benchmark on one CUDA device: the engine's laws (tests/laws), then the time to first token of large models.

    python -m benchmarks.gpu [--out FOLDER] [--page FILE] [--parts laws qwen2.5-7b qwen2.5-14b]

Each part runs in a separate process and writes one Markdown file into ``--out``. A part with a file is not repeated, so
that the same command resumes an interrupted run. A part whose command fails writes PART.failed.md, runs again with the
next command, and makes the exit code 1. ``--page`` joins the files to one page. No network is needed: weights are
random.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import torch
from rich.table import Table

from eval.common.tables import markdown, table_of
from eval.latency.machine import this_machine
from keep_agent.console import make_console
from keep_agent.errors import ConfigError
from memory.files.atomic import write_atomic

LAWS = "laws"
SHAPES = ("qwen2.5-7b", "qwen2.5-14b")
PLANNERS = "[full_recompute,cacheblend,sparsex,epic,keep,keep_contextual]"
ABOUT = """# On a GPU

Measurements of `make gpu` (`python -m benchmarks.gpu`) on {machine}.

The laws are [those of the engine](../engine.md#the-laws): the engine runs on the CUDA device, references and
transformers' own forward on the CPU. Times come from [`eval.latency`](../latency.md): random weights in bfloat16,
segments of 40 tokens, embedded houses, all planners in turns. `keep` is KEEP as in its paper, `keep_contextual` our
composition."""
PENDING = "Not measured yet."


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a part: Markdown text, and the exit code of its command."""

    text: str
    code: int


def laws(folder: Path, device: str) -> Report:
    """Run tests/laws on the device; report a table by file and the names of failed tests."""
    report = folder / "laws.xml"
    command = [sys.executable, "-m", "pytest", "tests/laws", "-n", str(min(14, os.cpu_count() or 1))]
    report.unlink(missing_ok=True)  # left by an earlier run
    output = _run([*command, f"--junitxml={report}"], {"KEEP_AGENT_LAWS_DEVICE": device})
    text = f"{markdown(_laws_table(report))}\n\n{_failures(report)}" if report.exists() else output.text
    return Report(f"## The laws\n\n{text}", output.code)


def latency(shape: str, folder: Path, device: str) -> Report:
    """Measure all planners on a named shape with `eval.latency`; report its tables."""
    settings = [
        f"latency.models={shape}", f"latency.devices={device}", "latency.segments=[40,160]", "latency.steps=12",
        "latency.candidates=20", f"latency.planners={PLANNERS}", "latency.plot=false", "latency.markdown=true",
        "prompt.encoder=hashed", f"eval.out={folder / shape}",
    ]  # fmt: skip
    output = _run([sys.executable, "-m", "eval.latency", *settings])
    return Report(f"## {shape}\n\n{output.text.partition('machine:')[0].strip()}", output.code)


PARTS: Mapping[str, Callable[[Path, str], Report]] = {
    LAWS: laws,
    **{shape: lambda folder, device, shape=shape: latency(shape, folder, device) for shape in SHAPES},
}


def play(part: str, folder: Path, device: str) -> int:
    """Run a part and write its file, unless an earlier run succeeded; return the exit code of its command."""
    file, failed = folder / f"{part}.md", folder / f"{part}.failed.md"
    if file.exists():
        return 0
    report = PARTS[part](folder, device)
    failed.unlink(missing_ok=True)
    if report.code:
        write_atomic(failed, f"{report.text}\n\nFailed with exit code {report.code}; the same command runs it again.")
    else:
        write_atomic(file, report.text)
    return report.code


def _run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> Report:
    """Run a command; return its standard output and exit code."""
    done = subprocess.run(
        command, env={**os.environ, **(environ or {})}, stdout=subprocess.PIPE, text=True, check=False
    )
    return Report(done.stdout, done.returncode)


def _laws_table(report: Path) -> Table:
    kinds = "passed", "failed", "skipped"
    rows = ([f"`{file}`", *(str(counts[kind]) for kind in kinds)] for file, counts in sorted(_counts(report).items()))
    return table_of("Laws on the device, by file", ["file"], kinds, rows)


def _counts(report: Path) -> dict[str, Counter[str]]:
    """Count the outcomes of the tests in a JUnit report, by file."""
    counts: dict[str, Counter[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        counts.setdefault(file, Counter())[_outcome(case)] += 1
    return counts


def _outcome(case: ElementTree.Element) -> str:
    """Return ``passed``, ``failed`` (including errors) or ``skipped``."""
    kinds = {child.tag for child in case}
    return "skipped" if "skipped" in kinds else "failed" if kinds & {"failure", "error"} else "passed"


def _failures(report: Path) -> str:
    failed = [case for case in ElementTree.parse(report).iter("testcase") if _outcome(case) == "failed"]
    lines = [f"- `{case.get('name')}`: {next(iter(case)).get('message', '').splitlines()[0][:200]}" for case in failed]
    return "\n".join(["Failed:", "", *lines]) if lines else "All tests that ran passed."


def _text(part: str, folder: Path) -> str:
    """Return the text of a part that succeeded or failed, else `PENDING`."""
    for file in (folder / f"{part}.md", folder / f"{part}.failed.md"):
        if file.exists():
            return file.read_text(encoding="utf-8")
    return f"## {part}\n\n{PENDING}"


def write_page(page: Path, folder: Path, parts: Sequence[str]) -> None:
    """Join the texts of the parts to one page."""
    texts = [_text(part, folder) for part in parts]
    machine = this_machine()
    about = ABOUT.format(machine=f"{machine.text}, transformers {machine.transformers}")
    write_atomic(page, "\n\n".join([about, *texts]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu"), help="folder of the parts' files")
    parser.add_argument("--page", type=Path, default=Path("docs/results/gpu.md"), help="the page to write")
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], default=[*PARTS], help="parts to run, in this order")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to test the command")
    arguments, console = parser.parse_args(), make_console(stderr=True)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            str(ConfigError("--device cuda: torch finds no CUDA device; use a machine with one, or --device cpu"))
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    codes = []
    for part in arguments.parts:
        console.print(f"{part} ...")
        started = time.perf_counter()
        codes.append(play(part, arguments.out, arguments.device))
        status = f"failed with exit code {codes[-1]}" if codes[-1] else "done"
        console.print(f"{part}: {status} ({time.perf_counter() - started:.0f} s), see {arguments.page}")
        write_page(arguments.page, arguments.out, [*PARTS])
    sys.exit(int(any(codes)))


if __name__ == "__main__":
    main()
