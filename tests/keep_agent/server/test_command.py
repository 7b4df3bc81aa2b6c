"""``keep-agent serve`` and ``view``: invalid addresses and files are refused before a model is loaded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from keep_agent.agent.durable import lock_folder
from keep_agent.server.auth.tokens import TOKEN_VARIABLE
from keep_agent.server.command import _config
from keep_agent.server.limits.uvicorn_protocols import RefusableSocket, TimedProtocol
from keep_agent.server.settings import Settings
from tests.keep_agent.viewer.traces import opening, write

HEAVY = ("torch", "transformers", "nicegui", "keep_agent.config.planner_factory", "keep_agent.server.service")
RUN = f"""
import sys
sys.modules.update(dict.fromkeys({HEAVY!r}))  # importing one of these fails
from keep_agent.cli import main
sys.argv[0] = "keep-agent"
main()
"""


def refusal(*arguments: str) -> str:
    """Return the error message of a command for which none of `HEAVY` can be imported."""
    environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    done = subprocess.run([sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_the_server_uses_the_projects_protocols() -> None:
    config = _config(FastAPI(), Settings())
    assert (config.http, config.ws) == (TimedProtocol, RefusableSocket)


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_in_use_is_refused_without_heavy_imports(used_port: int, tmp_path: Path) -> None:
    write(tmp_path, [opening()])
    for command in (("serve", "--folder", str(tmp_path / "server")), ("view", str(tmp_path), "--no-browser")):
        assert f"127.0.0.1:{used_port} cannot be used" in refusal(*command, "--port", str(used_port))
    assert not (tmp_path / "server").exists()


def test_invalid_options_are_refused_without_heavy_imports(tmp_path: Path) -> None:
    file, port = tmp_path / "tokens.json", ("--port", "0")
    assert "no token is needed" in refusal("serve", "--host", "0.0.0.0", *port)
    assert f"{file} does not exist" in refusal("serve", "--tokens", str(file), *port)
    file.write_text("{")
    assert f"{file} is not JSON" in refusal("serve", "--tokens", str(file), *port)
    assert "requests=0 does not work; give a number above 0" in refusal("serve", "--requests", "0", *port)
    assert "env.thor=5 replaces a group of settings" in refusal("serve", "env.thor=5", *port)
    with lock_folder(tmp_path / "server"):
        assert "another server or agent uses" in refusal("serve", "--folder", str(tmp_path / "server"), *port)
    write(tmp_path, [opening()])
    assert "without a password" in refusal("view", str(tmp_path), "--host", "0.0.0.0")
