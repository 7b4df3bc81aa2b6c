"""``/v1/chat/completions`` and ``/v1/models`` for OpenAI's clients."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from secrets import token_hex
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from keep_agent.server.auth.access_rules import Caller
from keep_agent.server.chat.caller import HEADER, agent_of
from keep_agent.server.chat.conversations import Conversations, Generation
from keep_agent.server.chat.ignored_fields import check_model
from keep_agent.server.chat.openai_format import (
    AssistantMessage,
    CachedTokens,
    Choice,
    Completed,
    Completion,
    CompletionUsage,
    Model,
    Models,
)
from keep_agent.server.chat.prompts import ChatMessage
from keep_agent.server.chat.request_fields import most_tokens, stops_of
from keep_agent.server.chat.server_sent_events import ALIVE, DONE, event, pieces, reply, telling

PATH, MODELS = "/v1/chat/completions", "/v1/models"
ROLES = {"developer": "system"}  # their newer word for the same
SSE = {200: {"content": {"text/event-stream": {}}, "description": "The answer, or its parts if ``stream`` is true"}}


class OpenAIRoutes:
    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
        self.router = APIRouter(tags=["chat"])
        self.router.add_api_route(
            PATH, self.complete, methods=["POST"], responses=SSE,
            response_model=Completed, summary="Go on with a conversation (OpenAI)",
        )  # fmt: skip
        self.router.add_api_route(MODELS, self.models, methods=["GET"], summary="The models that are served")
        model_path = f"{MODELS}/{{model:path}}"
        self.router.add_api_route(model_path, self.model, methods=["GET"], summary="Whether a model is served")

    async def models(self) -> Models:
        return Models(data=[Model(id=self._conversations.model)])

    async def model(self, model: str) -> Model:
        check_model(model, self._conversations.model)
        return Model(id=model)

    async def complete(
        self, request: Request, body: Completion, caller: Caller,
        agent_id: Annotated[str | None, Header(alias=HEADER)] = None,
    ) -> Response:  # fmt: skip
        """Answer greedily. The agent is named by the header, else by ``user``.

        Where neither is given it is ``prompt_cache_key``, else ``safety_identifier``, if that can be an agent's id and
        the token may use that agent, else the token's only agent.
        """
        hints = body.prompt_cache_key, body.safety_identifier
        agent = agent_of(caller, agent_id, body.user, hints=hints)
        check_model(body.model, self._conversations.model)
        generation = self._begin(agent, body)
        usage = body.stream_options is not None and body.stream_options.include_usage
        chunks = telling(PATH, self._chunks(generation, usage)) if body.stream else None
        return await reply(request, generation, chunks, partial(completed, generation, self._conversations.model))

    def _begin(self, agent: str, body: Completion) -> Generation:
        limits = self._conversations.limits
        most = most_tokens(limits, body.max_completion_tokens, body.max_tokens)
        messages = [ChatMessage(ROLES.get(message.role, message.role), message.text) for message in body.messages]
        return self._conversations.chat(agent, messages, most, stops_of(limits, body.stop))

    async def _chunks(self, generation: Generation, with_usage: bool) -> AsyncIterator[bytes]:
        head = _head("chat.completion.chunk", self._conversations.model)
        if with_usage:
            head["usage"] = None
        yield event(head | {"choices": [_delta({"role": "assistant", "content": ""})]})
        async for piece in pieces(generation):
            yield ALIVE if piece is None else event(head | {"choices": [_delta({"content": piece})]})
        yield event(head | {"choices": [_delta({}, finish(generation))]})
        if with_usage:
            yield event(head | {"choices": [], "usage": usage_of(generation).model_dump()})
        yield DONE


def completed(generation: Generation, model: str, text: str) -> Completed:
    choice = Choice(message=AssistantMessage(content=text), finish_reason=finish(generation))
    return Completed(**_head("chat.completion", model), choices=[choice], usage=usage_of(generation))


def usage_of(generation: Generation) -> CompletionUsage:
    assert generation.prefilled is not None and generation.ended is not None
    prompt, generated = generation.prefilled.kept + generation.prefilled.new, generation.ended.generated
    return CompletionUsage(
        prompt_tokens=prompt, completion_tokens=generated, total_tokens=prompt + generated,
        prompt_tokens_details=CachedTokens(cached_tokens=generation.prefilled.kept),
    )  # fmt: skip


def finish(generation: Generation) -> Any:
    assert generation.ended is not None
    return "length" if generation.ended.reason == "length" else "stop"


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}


def _delta(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": reason}
