"""The viewer in a FastAPI application: an own one for the command, or somebody else's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from warnings import catch_warnings, simplefilter

from keep_agent.errors import ConfigError
from keep_agent.viewer.runs import Library

if TYPE_CHECKING:
    from fastapi import FastAPI

AWAY = 60.0  # seconds after which a page that is connected again is loaded anew, without what was typed and ticked
NEEDS_SERVER = "the viewer's pages need NiceGUI and FastAPI: pip install 'keep-agent[server]'"


def mount(app: FastAPI, root: Callable[[], Path] | Path, path: str = "/viewer") -> None:
    """Put the viewer's pages and data under ``path`` of an application; call it once, after the other routes.

    ``root``: a run folder, or one that holds some; asked again at every look if it can be called. All of it is shown to
    everybody who can open ``path``: access is the application's to control, by a middleware in front of the mount.
    Raises ConfigError without the extra `server`, and where the process has served a viewer before: NiceGUI can do so
    once.
    """
    try:
        from nicegui import ui

        from keep_agent.viewer.json_routes import data_router
        from keep_agent.viewer.pages import add_pages
    except ImportError as error:
        raise ConfigError(f"{NEEDS_SERVER} ({error})") from None
    base = path.rstrip("/")
    library = Library(root)
    app.include_router(data_router(library, f"{base}/data"))
    if base:
        _redirect(app, base, f"{base}/")
    try:
        with catch_warnings():  # it looks at every object there is, torch's deprecated ones among them
            simplefilter("ignore", FutureWarning)
            ui.run_with(
                app,
                mount_path=base or "/",
                title="KEEP Agent",
                reconnect_timeout=AWAY,
                tailwind=False,
                show_welcome_message=False,
            )
    except RuntimeError as error:
        raise ConfigError(
            f"this process has served a viewer already, and can serve one: start another ({error})"
        ) from None
    add_pages(library, base)


def application(root: Path, path: str = "/viewer") -> FastAPI:
    """An application that is nothing but the viewer, for programs and pages of this machine only.

    Raises ConfigError without the extra `server`.
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


def _redirect(app: FastAPI, path: str, to: str) -> None:
    """Lead from ``path`` to another one of the application; the query stays."""
    from starlette.requests import Request
    from starlette.responses import RedirectResponse

    async def onward(request: Request) -> RedirectResponse:
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{request.scope.get('root_path', '')}{to}{query}")

    app.add_route(path, onward, methods=["GET", "HEAD"], include_in_schema=False)
