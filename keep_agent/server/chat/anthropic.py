"""Routes for Anthropic's clients: ``/v1/messages``, and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from keep_agent.server.auth.access_rules import Caller
from keep_agent.server.chat.anthropic_format import (
    MessageAnswer,
    MessagePrompt,
    Messages,
    MessageUsage,
    TokenCount,
    joined,
)
from keep_agent.server.chat.caller import HEADER, agent_of
from keep_agent.server.chat.conversations import Conversations, Generation
from keep_agent.server.chat.ignored_fields import check_model
from keep_agent.server.chat.openai import SSE
from keep_agent.server.chat.prompts import ChatMessage
from keep_agent.server.chat.request_fields import most_tokens, stops_of
from keep_agent.server.chat.server_sent_events import event, failed, pieces, reply, telling
from keep_agent.server.error_handlers import ANTHROPIC_PATH as PATH

COUNT = f"{PATH}/count_tokens"
PING = event({"type": "ping"}, "ping")


class AnthropicRoutes:
    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
        self.router = APIRouter(tags=["chat"])
        self.router.add_api_route(
            PATH, self.answer, methods=["POST"], responses=SSE,
            response_model=MessageAnswer, summary="Go on with a conversation (Anthropic)",
        )  # fmt: skip
        self.router.add_api_route(COUNT, self.count, methods=["POST"], summary="Count the tokens of a prompt")

    async def answer(
        self, request: Request, body: Messages, caller: Caller,
        agent_id: Annotated[str | None, Header(alias=HEADER)] = None,
    ) -> Response:  # fmt: skip
        """The agent is named by the header, else by ``metadata.user_id``, else it is the token's only one.

        Where the last message is the assistant's, the answer goes on with it.
        """
        agent = agent_of(caller, agent_id, body.metadata and body.metadata.user_id)
        check_model(body.model, self._conversations.model)
        generation = self._begin(agent, body)
        events = telling(PATH, self._events(generation), failed) if body.stream else None
        return await reply(request, generation, events, partial(self._whole, generation))

    async def count(self, body: MessagePrompt) -> TokenCount:
        """Count what the messages are for an agent without a memory; none is asked, or changed."""
        check_model(body.model, self._conversations.model)
        messages = said_in(body)
        return TokenCount(input_tokens=await self._conversations.count(messages, goes_on(messages)))

    def _begin(self, agent: str, body: Messages) -> Generation:
        limits = self._conversations.limits
        messages = said_in(body)
        most, stops = most_tokens(limits, body.max_tokens), stops_of(limits, body.stop_sequences)
        return self._conversations.chat(agent, messages, most, stops, goes_on(messages))

    def _whole(self, generation: Generation, text: str) -> MessageAnswer:
        content = {"content": [_block(text)], **_end(generation), "usage": _usage(generation)}
        return MessageAnswer(**self._head(), **content)

    def _head(self) -> dict[str, Any]:
        model = self._conversations.model
        return {"id": f"msg_{token_hex(12)}", "type": "message", "role": "assistant", "model": model}

    async def _events(self, generation: Generation) -> AsyncIterator[bytes]:
        start = self._head() | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(generation)}
        yield _event({"type": "message_start", "message": start})
        yield _event({"type": "content_block_start", "index": 0, "content_block": _block("")})
        yield PING
        async for piece in pieces(generation):
            delta = {"type": "text_delta", "text": piece}
            yield PING if piece is None else _event({"type": "content_block_delta", "index": 0, "delta": delta})
        yield _event({"type": "content_block_stop", "index": 0})
        yield _event({"type": "message_delta", "delta": _end(generation), "usage": _usage(generation)})
        yield _event({"type": "message_stop"})


def said_in(body: MessagePrompt) -> list[ChatMessage]:
    """The messages, with the system's text as the first of them."""
    messages = [ChatMessage(message.role, joined(message.content)) for message in body.messages]
    return [ChatMessage("system", joined(body.system)), *messages] if body.system else messages


def goes_on(messages: Sequence[ChatMessage]) -> bool:
    """Whether the answer continues the last message."""
    return messages[-1].role == "assistant"


def _block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _end(generation: Generation) -> dict[str, Any]:
    end = generation.ended
    assert end is not None
    if end.stopped_by is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stopped_by}
    return {"stop_reason": "max_tokens" if end.reason == "length" else "end_turn", "stop_sequence": None}


def _usage(generation: Generation) -> dict[str, int]:
    """Everything a prompt computes is kept for the next one."""
    assert generation.prefilled is not None
    generated = 0 if generation.ended is None else generation.ended.generated
    prefilled = generation.prefilled
    usage = MessageUsage(
        cache_creation_input_tokens=prefilled.new, cache_read_input_tokens=prefilled.kept, output_tokens=generated
    )
    return usage.model_dump()


def _event(data: Mapping[str, Any]) -> bytes:
    return event(data, data["type"])
