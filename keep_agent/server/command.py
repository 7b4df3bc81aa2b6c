"""``keep-agent serve``: planning agents and conversations over HTTP."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import platformdirs
import uvicorn
from fastapi import FastAPI
from omegaconf import DictConfig
from rich.console import Console

from keep_agent.config.compose import compose_agent
from keep_agent.server.address import address_of, listening
from keep_agent.server.auth.token_file import load_tokens
from keep_agent.server.auth.tokens import VARIABLE, TokenSource, check_bind
from keep_agent.server.folder_lock import claimed
from keep_agent.server.limits.refusable_socket import RefusableSocket
from keep_agent.server.limits.request_limits import Limits
from keep_agent.server.limits.timed_protocol import TimedProtocol
from keep_agent.server.logs import set_up
from keep_agent.server.settings import AgentLimits, Settings

GRACE = 30  # seconds for requests in the works when the server is to end
HEADERS = 64 << 10  # bytes of a request's head


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="keep-agent serve",
        description="Serve planning agents and conversations. Without tokens only this machine may ask; "
        f"{VARIABLE} holds one for all agents, keep-agent token makes others.",
    )
    p.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="planner=keep, model=NAME, prompt.style=linked, ..."
    )
    p.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    p.add_argument("--port", type=int, default=8000, help="0: any that is free (%(default)s)")
    default = Path(platformdirs.user_data_dir("keep-agent")) / "server"
    p.add_argument("--folder", type=Path, default=default, help="what agents remember is kept here (%(default)s)")
    p.add_argument("--tokens", type=Path, metavar="FILE", help="of tokens, as keep-agent token writes it")
    p.add_argument("--agents", type=int, default=AgentLimits.agents, help="there are at most (%(default)s)")
    p.add_argument("--awake", type=int, default=AgentLimits.awake, help="of them in memory (%(default)s)")
    p.add_argument("--things", type=int, default=AgentLimits.things, help="an agent remembers (%(default)s)")
    p.add_argument("--requests", type=int, default=Limits.requests, help="in the works at once (%(default)s)")
    p.add_argument("--body-kilobytes", type=int, default=Limits.body_bytes >> 10, help="of a request (%(default)s)")
    p.add_argument("--no-trace", action="store_true", help="leave no run folders for the viewer")
    p.add_argument("--no-viewer", action="store_true", help="serve no pages")
    return p


def main(arguments: Sequence[str], console: Console) -> None:
    """Raises KeepError, or what Hydra raises for a setting it does not know.

    Whatever can be checked without the model is, before anything that takes a while is imported or loaded.
    """
    given = parser().parse_intermixed_args(arguments)
    config = compose_agent(given.overrides)
    tokens = load_tokens(given.tokens)
    check_bind(given.host, tokens)
    settings = _settings(given)
    with closing(listening(given.host, given.port)) as listener:
        claimed(given.folder).close()  # the registry claims it again when the model is there
        set_up()
        server = uvicorn.Server(_config(_service(config, given.folder, tokens, settings), settings))
        _announce(console, given, address_of(listener, given.host), tokens)
        with suppress(KeyboardInterrupt):  # which is how it is asked to end, and has by then
            server.run(sockets=[listener])


def _service(config: DictConfig, folder: Path, tokens: TokenSource, settings: Settings) -> FastAPI:
    from keep_agent.config.planner_factory import agent_brain  # here: these load torch
    from keep_agent.server.service import make_service

    return make_service(agent_brain(config), folder, tokens, settings)


def _settings(given: argparse.Namespace) -> Settings:
    limits = replace(Settings().limits, body_bytes=given.body_kilobytes << 10, requests=given.requests)
    agents = AgentLimits(given.agents, given.awake, given.things)
    return Settings(limits, agents, trace=not given.no_trace, viewer=not given.no_viewer)


def _config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app, http=TimedProtocol, log_config=None, access_log=False, server_header=False,
        timeout_graceful_shutdown=GRACE,
        h11_max_incomplete_event_size=HEADERS, ws_max_size=settings.limits.body_bytes, ws=RefusableSocket,
    )  # fmt: skip


def _announce(console: Console, given: argparse.Namespace, url: str, tokens: TokenSource) -> None:
    who = "this machine, without a token" if tokens.open else f"those with one of {len(tokens.entries)} token(s)"
    viewer = "" if given.no_viewer else f"; viewer: {url}/viewer/"
    text = f"{url} for {who}; memories in {given.folder}{viewer}"
    console.print(text, soft_wrap=True, highlight=False, markup=False)
