"""JSON routes of the viewer: episodes, steps, pictures. The module needs the extra `server`.

Requests name runs and episodes by key, never by path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, HTTPException
from fastapi.responses import FileResponse, JSONResponse, Response

from keep_agent.errors import DataError
from keep_agent.viewer.episode_filters import episode_rows
from keep_agent.viewer.runs import MEDIA_TYPES, RunLibrary, picture
from keep_agent.viewer.step_model import overview, step_json


def data_router(library: RunLibrary, prefix: str) -> APIRouter:
    """Return the routes ``episodes``, ``episode``, ``step`` and ``picture`` below ``prefix``. Unknown keys: 404."""
    router = APIRouter(prefix=prefix, include_in_schema=False, dependencies=[Depends(_answer_404)])

    @router.get("/episodes")
    def episodes() -> list[dict[str, Any]]:
        return [asdict(row) for row in episode_rows(library.runs())]

    @router.get("/episode")
    def episode(run: str, episode: str, since: int = 0) -> JSONResponse:
        source = library.run(run)
        return JSONResponse(dict(overview(source, source.index.episode(episode), max(since, 0))))

    @router.get("/step")
    def step(run: str, episode: str, step: int) -> Response:
        source = library.run(run)
        return Response(step_json(source, source.index.episode(episode), step), media_type="application/json")

    @router.get("/picture")
    def picture_of(run: str, episode: str, step: int) -> FileResponse:
        source = library.run(run)
        name = source.index.episode(episode).frames.get(step)
        if name is None:
            raise DataError(f"step {step} of episode {episode!r} has no picture")
        path = picture(source.path, name)
        return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], headers={"X-Content-Type-Options": "nosniff"})

    return router


def _answer_404() -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise HTTPException(404, detail=str(error)) from None
