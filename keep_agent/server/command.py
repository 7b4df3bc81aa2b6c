"""``keep-agent serve``: planning agents and conversations over HTTP."""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import platformdirs
import uvicorn
from fastapi import FastAPI
from rich.console import Console

from keep_agent.agent.durable import lock_folder
from keep_agent.config.compose import compose_agent
from keep_agent.server.address import address_of, listen
from keep_agent.server.auth.token_file import load_tokens
from keep_agent.server.auth.tokens import TOKEN_VARIABLE, check_bind
from keep_agent.server.limits.request_limits import RequestLimits
from keep_agent.server.limits.uvicorn_protocols import RefusableSocket, TimedProtocol
from keep_agent.server.settings import AgentLimits, Settings

TOKEN = re.compile(r"(token=)[^&\s\"']+", re.IGNORECASE)
QUERY = re.compile(r"(/[^\s?]*\?)\S+?(?=[\"']?(?:\s|$))")  # the query string of a URL
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SHUTDOWN_SECONDS = 30  # seconds that a shutdown waits for running requests
MAX_HEADER_BYTES = 64 << 10  # maximum size of a request line with its headers


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="keep-agent serve",
        description="Serve planning agents and conversations. Without tokens only programs on this machine have "
        f"access. The variable {TOKEN_VARIABLE} may hold a token for all agents; keep-agent token makes other tokens.",
    )
    overrides = "settings: planner=keep, model=NAME, prompt.style=linked, ..."
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=overrides)
    p.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    p.add_argument("--port", type=int, default=8000, help="port to listen on; 0 chooses a free one (%(default)s)")
    default = Path(platformdirs.user_data_dir("keep-agent")) / "server"
    p.add_argument("--folder", type=Path, default=default, help="folder for the agents' memories (%(default)s)")
    p.add_argument("--tokens", type=Path, metavar="FILE", help="file of tokens, written by keep-agent token")
    p.add_argument("--agents", type=int, default=AgentLimits.agents, help="maximum number of agents (%(default)s)")
    awake = "maximum number of agents in memory (%(default)s); beyond it the least recently used are unloaded to disk"
    p.add_argument("--awake", type=int, default=AgentLimits.awake, help=awake)
    things = "maximum objects and receptacles per agent (%(default)s)"
    p.add_argument("--things", type=int, default=AgentLimits.things, help=things)
    parallel = "maximum concurrent requests (%(default)s)"
    p.add_argument("--requests", type=int, default=RequestLimits.requests, help=parallel)
    size = "maximum request body, in KiB (%(default)s)"
    p.add_argument("--body-kilobytes", type=int, default=RequestLimits.body_bytes >> 10, help=size)
    p.add_argument("--no-trace", action="store_true", help="write no run folders for the viewer")
    p.add_argument("--no-viewer", action="store_true", help="do not serve the viewer")
    return p


def main(arguments: Sequence[str], console: Console) -> None:
    """Run the command. Raises KeepError, or a Hydra error. Checks run before torch and the model are loaded."""
    options = parser().parse_intermixed_args(arguments)
    config = compose_agent(options.overrides)
    tokens = load_tokens(options.tokens)
    check_bind(options.host, tokens)
    limits = replace(Settings().limits, body_bytes=options.body_kilobytes << 10, requests=options.requests)
    agents = AgentLimits(options.agents, options.awake, options.things)
    settings = Settings(limits, agents, trace=not options.no_trace, viewer=not options.no_viewer)
    with closing(listen(options.host, options.port)) as listener:
        lock_folder(options.folder).close()  # fails if another server uses the folder; `AgentRegistry` locks it again
        set_up_log()
        from keep_agent.config.planner_factory import agent_resources  # lazy: these load torch
        from keep_agent.server.service import make_service

        app = make_service(agent_resources(config), options.folder, tokens, settings)
        server = uvicorn.Server(_config(app, settings))
        url = address_of(listener, options.host)
        clients = f"clients with one of {len(tokens.entries)} token(s)"
        clients = "this machine, without a token" if tokens.open else clients
        viewer = "" if options.no_viewer else f"; viewer: {url}/viewer/"
        text = f"{url} for {clients}; memories in {options.folder}{viewer}"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
        with suppress(KeyboardInterrupt):  # raised by uvicorn after a shutdown by Ctrl-C
            server.run(sockets=[listener])


def _config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app, http=TimedProtocol, ws=RefusableSocket, log_config=None, access_log=False, server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS, h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws_max_size=settings.limits.body_bytes,
    )  # fmt: skip


class WithoutTokens(logging.Filter):
    """Log filter: puts ``***`` in place of URL queries and of values after ``token=``."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        redacted = TOKEN.sub(r"\1***", QUERY.sub(r"\1***", text))
        if redacted != text:
            record.msg, record.args = redacted, ()
        return True


def set_up_log() -> None:
    """Write all log records of level INFO and above to standard error, one line each, without tokens."""
    handler = logging.StreamHandler()
    handler.addFilter(WithoutTokens())
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, handlers=[handler])
