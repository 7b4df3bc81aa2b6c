"""``keep-agent view RUN``: show a run in the browser, or export one of its episodes to a file."""

from __future__ import annotations

import argparse
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

from rich.console import Console

from keep_agent.errors import ConfigError, DataError
from keep_agent.server.address import address_of, is_loopback, listen
from keep_agent.viewer.runs import Run, RunLibrary, check_root
from keep_agent.viewer.trace_index import EpisodeIndex

PATH = "/viewer"


def main(arguments: Sequence[str], console: Console) -> None:
    """Run the command.

    :raises DataError: for a folder without runs
    :raises ConfigError: for an unusable host or port, or a missing extra
    """
    options = _parser().parse_args(arguments)
    check_root(options.run)
    if options.html or options.rrd:
        _export(options, console)
    else:
        _serve(options, console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keep-agent view", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder, or folder of runs, finished or not")
    host = "address to listen on; a loopback address, since the pages have no password (%(default)s)"
    parser.add_argument("--host", default="127.0.0.1", help=host)
    parser.add_argument("--port", type=int, default=8088, help="port to listen on (%(default)s)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument("--html", type=Path, metavar="FILE", help="export one episode as a self-contained page")
    parser.add_argument("--rrd", type=Path, metavar="FILE", help="export one episode for Rerun's viewer (extra: rerun)")
    parser.add_argument("--episode", help="key of the episode to open or export (default: the first)")
    return parser


def _export(options: argparse.Namespace, console: Console) -> None:
    run, episode = _episode(options.run, options.episode)
    if options.html:
        from keep_agent.viewer.export.html import write_html

        console.print(f"page: {write_html(run, episode, options.html)}", soft_wrap=True)
    if options.rrd:
        from keep_agent.viewer.export.rrd import write_rrd

        console.print(f"recording: {write_rrd(run, episode, options.rrd)}", soft_wrap=True)


def _episode(root: Path, key: str | None) -> tuple[Run, EpisodeIndex]:
    """Return the episode with this key and its run; without a key, the first episode."""
    runs = RunLibrary(root).runs()
    episodes = [(run, episode) for run in runs for episode in run.index.refresh().values()]
    for run, episode in episodes:
        if key in (None, episode.key):
            return run, episode
    known = ", ".join(episode.key for _, episode in episodes[:10])
    problems = "".join(f"; {run.index.problem}" for run in runs if run.index.problem)
    what = "episode" if key is None else f"episode {key!r}"
    raise DataError(f"no {what} under {root}; the episodes there are: {known or 'none'}{problems}")


def _serve(options: argparse.Namespace, console: Console) -> None:
    if not is_loopback(options.host):
        raise ConfigError(
            f"--host {options.host} would show every run to the network without a password: use 127.0.0.1 "
            "and a tunnel (ssh -L), or keep-agent serve, which needs a token"
        )
    with closing(listen(options.host, options.port)) as listener:
        from keep_agent.viewer.server import application  # before uvicorn: `application` reports a missing extra

        app = application(options.run, PATH)
        import uvicorn

        from keep_agent.server.limits.uvicorn_protocols import RefusableSocket

        path = f"{PATH}/"
        if options.episode is not None:
            run, episode = _episode(options.run, options.episode)
            path = f"{PATH}/episode?{urlencode({'run': run.key, 'episode': episode.key})}"
        address = address_of(listener, options.host) + path
        console.print(f"viewer: {address} (Ctrl-C ends it)", soft_wrap=True, highlight=False, markup=False)
        if not options.no_browser:
            threading.Timer(1.0, webbrowser.open, [address]).start()
        uvicorn.Server(uvicorn.Config(app, log_level="warning", ws=RefusableSocket)).run(sockets=[listener])
