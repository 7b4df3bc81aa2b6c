"""FastAPI mount of the viewer, in an application of its own (for `keep-agent view`) or in any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from warnings import catch_warnings, simplefilter

from keep_agent.errors import ConfigError
from keep_agent.viewer.runs import RunLibrary

if TYPE_CHECKING:
    from fastapi import FastAPI

RECONNECT = 60.0  # seconds of disconnection after which a page is reloaded and loses its inputs
NEEDS_SERVER = "the viewer's pages need NiceGUI and FastAPI: pip install 'keep-agent[server]'"


def mount(app: FastAPI, root: Callable[[], Path] | Path, path: str = "/viewer") -> None:
    """Put the viewer's pages and data under ``path`` of an application; call it once, after the other routes.

    Every client that can open ``path`` sees all runs: restrict access by a middleware in front of the mount.

    :param root: a run folder, a folder of runs, or a function that returns such a folder, called at every search
    :raises ConfigError: without the extra `server`, and for a second mount in a process, which NiceGUI cannot do
    """
    try:
        from nicegui import ui

        from keep_agent.viewer.json_routes import data_router
        from keep_agent.viewer.pages import add_pages
    except ImportError as error:
        raise ConfigError(f"{NEEDS_SERVER} ({error})") from None
    base = path.rstrip("/")
    library = RunLibrary(root)
    app.include_router(data_router(library, f"{base}/data"))
    if base:
        _redirect(app, base, f"{base}/")
    try:
        with catch_warnings():  # NiceGUI inspects all objects, including deprecated ones of torch
            simplefilter("ignore", FutureWarning)
            ui.run_with(
                app, mount_path=base or "/", title="KEEP Agent", reconnect_timeout=RECONNECT, tailwind=False,
                show_welcome_message=False,
            )  # fmt: skip
    except RuntimeError as error:
        raise ConfigError(f"this process has served a viewer before: start another process ({error})") from None
    add_pages(library, base)


def application(root: Path, path: str = "/viewer") -> FastAPI:
    """Make an application with the viewer only, accessible from this machine only.

    :raises ConfigError: without the extra `server`
    """
    try:
        from fastapi import FastAPI

        from keep_agent.server.auth.access_rules import AccessMiddleware
        from keep_agent.server.auth.tokens import Tokens
    except ImportError as error:
        raise ConfigError(f"{NEEDS_SERVER} ({error})") from None
    app = FastAPI(title="KEEP Agent viewer", openapi_url=None)
    _redirect(app, "/", f"{path}/")
    mount(app, root, path)
    app.add_middleware(AccessMiddleware, tokens=Tokens(open=True))
    return app


def _redirect(app: FastAPI, path: str, target: str) -> None:
    """Redirect ``path`` to another path of the application, with its query."""
    from starlette.requests import Request
    from starlette.responses import RedirectResponse

    async def redirect(request: Request) -> RedirectResponse:
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{request.scope.get('root_path', '')}{target}{query}")

    app.add_route(path, redirect, methods=["GET", "HEAD"], include_in_schema=False)
