"""Vendors' endpoints that are not served: 404 with a sentence that names the one to use."""

from __future__ import annotations

from fastapi import APIRouter, Request

from keep_agent.server.error_handlers import NotFound

METHODS = ["GET", "POST", "DELETE"]
INSTEAD = {
    "/v1/responses": "use POST /v1/chat/completions",
    "/v1/completions": "use POST /v1/agents/ID/generate, or POST /v1/chat/completions for messages",
    "/v1/complete": "use POST /v1/messages",
    "/v1/messages/batches": "use POST /v1/messages, once for each request",
    "/v1/embeddings": "use a server of an embedding model; this one generates text",
}


def unsupported_router() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    for path in INSTEAD:
        for pattern in (path, f"{path}/{{rest:path}}"):
            router.add_api_route(pattern, _refuse, methods=METHODS)
    return router


async def _refuse(request: Request) -> None:
    url = f"{request.scope['path']}/"
    path, remedy = next((path, remedy) for path, remedy in INSTEAD.items() if url.startswith(f"{path}/"))
    raise NotFound(f"{path} is not served here: {remedy}")
