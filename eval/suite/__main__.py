"""Pages of results: ``python -m eval.suite [PAGE ...] [--data FOLDER] [KEY=VALUE ...]``.

PAGE (one of eval/suite/pages, or a .yaml file) names rows, such as planners, and settings, such as ALFRED's valid_seen.
Every row is run in every setting; finished runs are kept, interrupted runs are resumed. A Markdown page is written
with paired differences, their intervals, and the commands that made them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from eval.common.options import command_parser
from eval.suite.page import check_page, play_page, render_page
from eval.suite.plan import pages, read_page
from keep_agent.console import make_console
from keep_agent.errors import ConfigError
from keep_agent.guard import guarded
from memory.files.atomic import write_atomic


def parser() -> argparse.ArgumentParser:
    p, default = command_parser(__doc__, "keep-eval-suite"), os.environ.get("KEEP_AGENT_DATA")
    add, words = p.add_argument, f"pages: {', '.join(pages())}; or overrides of all runs"
    data = "folder with alfred/ and wah/ (default: $KEEP_AGENT_DATA)"
    add("words", nargs="*", metavar="PAGE | KEY=VALUE", help=words)
    add("--data", type=os.path.abspath, default=default, help=data)
    add("--out", type=Path, default=Path("outputs/suite"), help="folder for the run folders")
    add("--pages", type=Path, default=Path("docs/results"), help="folder for the Markdown pages")
    add("--show", action="store_true", help="play nothing; write the pages from the finished runs")
    add("--list", action="store_true", help="list the pages and their numbers of runs")
    return p


def run(arguments: argparse.Namespace) -> None:
    console = make_console()
    extra = [word for word in arguments.words if "=" in word]
    names = [word for word in arguments.words if "=" not in word]
    if arguments.list:
        for name in pages():
            page = read_page(name, arguments.data or "DATA")
            console.print(f"{name}: {page.title} ({len(page.runs())} runs, {len(page.commands)} commands)")
        return
    if not names:
        raise ConfigError(f"name a page: {', '.join(pages())}; --list describes them")
    plans = [(name, read_page(name, arguments.data)) for name in names]
    for _, page in plans:  # before the first run
        check_page(page, arguments.out / page.name, extra)
    for name, page in plans:
        out = arguments.out / page.name
        if not arguments.show:
            play_page(page, out, extra, console)
        data = ["--data", str(page.data)] if page.data else []
        text = render_page(page, out, shlex.join(["python", "-m", "eval.suite", name, *data, *extra]))
        text = text.replace(page.data, "/path/to/data") if page.data else text
        arguments.pages.mkdir(parents=True, exist_ok=True)
        write_atomic(file := arguments.pages / f"{page.name}.md", text)
        console.print(f"page: {file}", highlight=False)


def main() -> None:
    """Run the command. Exit code 0: done; 2: bad input or failed run; 130: interrupted, run again to continue."""
    arguments = parser().parse_intermixed_args()  # overrides may follow options
    sys.exit(guarded(lambda: run(arguments)))


if __name__ == "__main__":
    main()
