"""Route ``/v1/agents/{agent}/generate``: continues a text on an agent's KV rows (one row per token)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt
from starlette.responses import Response

from keep_agent.server.auth.access_rules import Caller
from keep_agent.server.chat.conversations import Conversations, Generation
from keep_agent.server.chat.request_fields import agent_of, most_tokens, stops_of
from keep_agent.server.chat.server_sent_events import DONE, KEEP_ALIVE, SSE, event, reply
from keep_agent.server.chat.turn import GenerationRequest
from keep_agent.server.limits.strict_models import Items, Strict

PATH = "/v1/agents/{agent}/generate"
EXAMPLE = {"prompt": "task put the mug on the table\nnext", "tokens": 8, "stop": ["\n"]}


class Generate(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    prompt: str = Field(min_length=1, description="Whole text to continue; the agent's stored rows are not recomputed")
    tokens: StrictInt | None = Field(None, ge=1, description="Maximum number of tokens to generate, greedily")
    stop: Items[str] = Field([], description="Texts that end the answer, and are not included in it")
    stream: StrictBool = False


class Generated(BaseModel):
    """Answer. ``kind``, ``origin``, ``kept`` and ``new``: how KV rows were reused (docs/phases.md); times are in ms."""

    agent: str
    text: str
    finish: Literal["stop", "length"]
    kind: Literal["exact", "extend", "diverge", "miss"]
    origin: Literal["hot", "warm", "shared", "cold"]
    kept: int
    new: int
    generated: int
    ttft_ms: float | None
    decode_ms: float


def generate_router(conversations: Conversations) -> APIRouter:
    router, limits = APIRouter(tags=["chat"]), conversations.limits

    @router.post(PATH, responses=SSE, response_model=Generated, summary="Continue a text")
    async def generate(request: Request, agent: str, body: Generate, caller: Caller) -> Response:
        agent = agent_of(caller, agent)
        tokens, stops = most_tokens(limits, body.tokens), stops_of(limits, body.stop)
        generation = conversations.start_turn(GenerationRequest(agent, lambda: body.prompt, tokens, stops))

        def answer(text: str) -> Generated:
            prefilled, end = generation.prefilled, generation.end
            assert prefilled is not None and end is not None
            costs = {name: getattr(end, name) for name in ("generated", "ttft_ms", "decode_ms")}
            return Generated(agent=agent, text=text, finish=end.reason, **asdict(prefilled), **costs)

        return await reply(request, PATH, generation, _events(generation, answer) if body.stream else None, answer)

    return router


async def _events(generation: Generation, answer: Callable[[str], Generated]) -> AsyncIterator[bytes]:
    """Yield each piece as ``{"text": ...}``, then `Generated` with the whole text."""
    texts = []
    async for piece in generation.pieces():
        texts.append(piece or "")
        yield KEEP_ALIVE if piece is None else event({"text": piece})
    yield event(answer("".join(texts)).model_dump(), "end")
    yield DONE
