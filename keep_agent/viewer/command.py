"""``keep-agent view RUN``: look into a run in the browser, or write one of its episodes into a file."""

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
from keep_agent.server.address import address_of, is_loopback, listening
from keep_agent.viewer.runs import Library, Run, check_root
from keep_agent.viewer.trace_index import EpisodeIndex

PATH = "/viewer"


def main(arguments: Sequence[str], console: Console) -> None:
    """Raises DataError for a folder without runs, ConfigError for a host or port it cannot have, or a missing extra."""
    given = _parser().parse_args(arguments)
    check_root(given.run)
    if given.html or given.rrd:
        _export(given, console)
    else:
        _serve(given, console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keep-agent view", description=__doc__)
    parser.add_argument("run", type=Path, help="a run folder, or a folder that holds some; it may still grow")
    parser.add_argument("--host", default="127.0.0.1", help="of this machine only: the pages have no password")
    parser.add_argument("--port", type=int, default=8088)
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one episode as a page that needs no server")
    parser.add_argument("--rrd", type=Path, metavar="FILE", help="write one episode for Rerun's viewer (extra: rerun)")
    parser.add_argument("--episode", help="which one to open or to write (the first)")
    return parser


def _export(given: argparse.Namespace, console: Console) -> None:
    run, episode = _chosen(given.run, given.episode)
    if given.html:
        from keep_agent.viewer.export.html import write_html

        console.print(f"page: {write_html(run, episode, given.html)}", soft_wrap=True)
    if given.rrd:
        from keep_agent.viewer.export.rrd import write_rrd

        console.print(f"recording: {write_rrd(run, episode, given.rrd)}", soft_wrap=True)


def _chosen(root: Path, key: str | None) -> tuple[Run, EpisodeIndex]:
    """The episode of that key, or the first one, with its run."""
    runs = list(Library(root).runs())
    found = [(run, each) for run in runs for each in run.index.refresh().values()]
    for run, episode in found:
        if key in (None, episode.key):
            return run, episode
    known = ", ".join(episode.key for _, episode in found[:10])
    problems = "".join(f"; {run.index.problem}" for run in runs if run.index.problem)
    wanted = "episode" if key is None else f"episode {key!r}"
    raise DataError(f"no {wanted} under {root}; there are: {known or 'none'}{problems}")


def _serve(given: argparse.Namespace, console: Console) -> None:
    if not is_loopback(given.host):
        raise ConfigError(
            f"--host {given.host} would show every run to the network without a password: use 127.0.0.1 "
            "and a tunnel (ssh -L), or keep-agent's server, which asks for a token"
        )
    with closing(listening(given.host, given.port)) as listener:
        from keep_agent.viewer.server import application  # names the extra that is missing, which uvicorn would not

        app = application(given.run, PATH)
        import uvicorn

        from keep_agent.server.limits.refusable_socket import RefusableSocket

        address = address_of(listener, given.host) + _page(given)
        console.print(f"viewer: {address} (Ctrl-C ends it)", soft_wrap=True, highlight=False, markup=False)
        if not given.no_browser:
            threading.Timer(1.0, webbrowser.open, [address]).start()
        uvicorn.Server(uvicorn.Config(app, log_level="warning", ws=RefusableSocket)).run(sockets=[listener])


def _page(given: argparse.Namespace) -> str:
    """Path and query of the list, or of the episode that is asked for."""
    if given.episode is None:
        return f"{PATH}/"
    run, episode = _chosen(given.run, given.episode)
    return f"{PATH}/episode?{urlencode({'run': run.key, 'episode': episode.key})}"
