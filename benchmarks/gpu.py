"""Checks and timings on one CUDA device: the laws first, then the time to the first token of large shapes.

    python -m benchmarks.gpu [--out FOLDER] [--page FILE] [--parts laws qwen2.5-7b qwen2.5-14b]

Each part is a process of its own and leaves one Markdown file in ``--out``; a part whose file is there is not repeated,
so an interrupted run goes on. A part whose command failed leaves PART.failed.md, is tried again by the next run, and
makes the exit code 1. ``--page`` joins the files to one page. No network is needed: weights are random.
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

from eval.common.tables import markdown
from eval.latency.machine import this_machine
from keep_agent.console import make_console
from keep_agent.errors import ConfigError
from memory.files.atomic import write_atomic

LAWS = "laws"
SHAPES = ("qwen2.5-7b", "qwen2.5-14b")
PLANNERS = '[full_recompute,cacheblend,sparsex,epic,keep,"apart:keep+memory=keep"]'
ABOUT = """# On a GPU

What `make gpu` (`python -m benchmarks.gpu`) measured on {machine}.

The laws are [those of the engine](../engine.md#the-laws): the engine runs on the CUDA device, references and
transformers' own forward on the CPU. Times are of [`eval.latency`](../latency.md): random weights in bfloat16, segments
of 40 tokens, embedded houses, all planners in turns. `apart` is KEEP the paper's way (`planner=keep memory=keep`)."""
PENDING = "Not measured yet."


@dataclass(frozen=True, slots=True)
class Report:
    """What a part found, in Markdown, and the exit code of its command."""

    text: str
    code: int


def laws(folder: Path, device: str) -> Report:
    """The laws on the device: a table by file, and the names of the tests that failed."""
    report = folder / "laws.xml"
    command = [sys.executable, "-m", "pytest", "tests/laws", "-n", str(min(14, os.cpu_count() or 1))]
    report.unlink(missing_ok=True)  # of an earlier try
    ran = _run([*command, f"--junitxml={report}"], {"KEEP_AGENT_LAWS_DEVICE": device})
    found = f"{markdown(_laws_table(report))}\n\n{_failures(report)}" if report.exists() else ran.text
    return Report(f"## The laws\n\n{found}", ran.code)


def latency(shape: str, folder: Path, device: str) -> Report:
    """Times of all planners for a named shape, as `eval.latency` prints them."""
    settings = [
        f"latency.models={shape}", f"latency.devices={device}", "latency.segments=[40,160]", "latency.steps=12",
        "latency.candidates=20", f"latency.planners={PLANNERS}", "latency.plot=false", "latency.markdown=true",
        "prompt.encoder=hashed", f"eval.out={folder / shape}",
    ]  # fmt: skip
    ran = _run([sys.executable, "-m", "eval.latency", *settings])
    return Report(f"## {shape}\n\n{ran.text.partition('machine:')[0].strip()}", ran.code)


PARTS: Mapping[str, Callable[[Path, str], Report]] = {
    LAWS: laws,
    **{shape: lambda folder, device, shape=shape: latency(shape, folder, device) for shape in SHAPES},
}


def play(part: str, folder: Path, device: str) -> int:
    """Run a part that has not succeeded yet and write its file; the exit code of its command."""
    file, failed = folder / f"{part}.md", folder / f"{part}.failed.md"
    if file.exists():
        return 0
    report = PARTS[part](folder, device)
    failed.unlink(missing_ok=True)
    if report.code:
        write_atomic(failed, f"{report.text}\n\nFailed with exit code {report.code}; the next run tries it again.")
    else:
        write_atomic(file, report.text)
    return report.code


def _run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> Report:
    """Standard output of a command and its exit code."""
    done = subprocess.run(
        command, env={**os.environ, **(environ or {})}, stdout=subprocess.PIPE, text=True, check=False
    )
    return Report(done.stdout, done.returncode)


def _laws_table(report: Path) -> Table:
    table = Table(title="Laws on the device, by file")
    for heading in ("file", "passed", "failed", "skipped"):
        table.add_column(heading, justify="left" if heading == "file" else "right", no_wrap=True)
    for file, counts in sorted(_counts(report).items()):
        table.add_row(f"`{file}`", *(str(counts[kind]) for kind in ("passed", "failed", "skipped")))
    return table


def _counts(report: Path) -> dict[str, Counter[str]]:
    """Outcomes of the tests of a JUnit report, by file."""
    found: dict[str, Counter[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        found.setdefault(file, Counter())[_outcome(case)] += 1
    return found


def _outcome(case: ElementTree.Element) -> str:
    """``passed``, ``failed`` (errors, too) or ``skipped``."""
    kinds = {child.tag for child in case}
    return "skipped" if "skipped" in kinds else "failed" if kinds & {"failure", "error"} else "passed"


def _failures(report: Path) -> str:
    failed = [case for case in ElementTree.parse(report).iter("testcase") if _outcome(case) == "failed"]
    lines = [f"- `{case.get('name')}`: {next(iter(case)).get('message', '').splitlines()[0][:200]}" for case in failed]
    return "\n".join(["Failed:", "", *lines]) if lines else "All that ran passed."


def _text(part: str, folder: Path) -> str:
    """What a part has left, whether it succeeded or failed."""
    for file in (folder / f"{part}.md", folder / f"{part}.failed.md"):
        if file.exists():
            return file.read_text(encoding="utf-8")
    return f"## {part}\n\n{PENDING}"


def write_page(page: Path, folder: Path, parts: Sequence[str]) -> None:
    """Join what the parts have left so far."""
    texts = [_text(part, folder) for part in parts]
    machine = this_machine()
    about = ABOUT.format(machine=f"{machine.text}, transformers {machine.transformers}")
    write_atomic(page, "\n\n".join([about, *texts]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu"), help="folder of what the parts leave")
    parser.add_argument("--page", type=Path, default=Path("docs/results/gpu.md"), help="the page to write")
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], default=[*PARTS], help="in this order")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the command")
    arguments, console = parser.parse_args(), make_console(stderr=True)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            str(ConfigError("no CUDA device is here: run this where torch.cuda.is_available(), or --device cpu"))
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    codes = []
    for part in arguments.parts:
        console.print(f"{part} ...")
        started = time.perf_counter()
        codes.append(play(part, arguments.out, arguments.device))
        ended = f"failed with exit code {codes[-1]}" if codes[-1] else "done"
        console.print(f"{part}: {ended} ({time.perf_counter() - started:.0f} s), see {arguments.page}")
        write_page(arguments.page, arguments.out, [*PARTS])
    sys.exit(int(any(codes)))


if __name__ == "__main__":
    main()
