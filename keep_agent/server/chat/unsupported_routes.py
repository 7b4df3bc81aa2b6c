"""Endpoints of vendors that are not served: 404 with a sentence that names the one to use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter

from keep_agent.server.error_handlers import NotFound

METHODS = ["GET", "POST", "DELETE"]
INSTEAD = {
    "/v1/responses": "use POST /v1/chat/completions",
    "/v1/completions": "use POST /v1/agents/ID/generate, or POST /v1/chat/completions for messages",
    "/v1/complete": "use POST /v1/messages",
    "/v1/messages/batches": "use POST /v1/messages, once for each request",
    "/v1/embeddings": "use a server of an embedding model; this one generates text",
}


def elsewhere_router() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    for path, remedy in INSTEAD.items():
        for served in (path, f"{path}/{{rest:path}}"):
            router.add_api_route(served, _refusal(f"{path} is not served here: {remedy}"), methods=METHODS)
    return router


def _refusal(sentence: str) -> Callable[[], Awaitable[None]]:
    async def refuse() -> None:
        raise NotFound(sentence)

    return refuse
