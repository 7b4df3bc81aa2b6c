"""Anthropic's API: ``/v1/messages`` and ``/v1/messages/count_tokens``, with a subset of its fields."""

from __future__ import annotations

from collections.abc import AsyncIterator
from secrets import token_hex
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt
from starlette.responses import Response

from keep_agent.server.auth.access_rules import Caller
from keep_agent.server.chat import request_fields as fields
from keep_agent.server.chat.conversations import ChatMessage, Conversations, Generation
from keep_agent.server.chat.request_fields import ANY_VALUE, AgentHeader, VendorModel
from keep_agent.server.chat.server_sent_events import SSE, error_event, event, reply
from keep_agent.server.error_handlers import ANTHROPIC_PATH as PATH
from keep_agent.server.limits.strict_models import Items

PING = event({"type": "ping"}, "ping")
EXAMPLE = {"model": "planner-tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "go to fridge_1"}]}


class TextBlock(VendorModel):
    """A piece of text. ``cache_control`` is accepted and ignored: everything is cached."""

    ignored_values: ClassVar = {"cache_control": (ANY_VALUE,), "citations": ([],)}
    type: Literal["text"]
    text: str


class MessageParam(VendorModel):
    """A message of the conversation. Only text is supported."""

    role: Literal["user", "assistant"]
    content: str | Items[TextBlock]


class Metadata(VendorModel):
    user_id: str | None = Field(None, description="The agent whose memory is used, unless X-Agent-ID names one")


class MessagePrompt(VendorModel):
    ignored_values: ClassVar = {
        "tools": ([],), "tool_choice": ({"type": "none"}, {"type": "auto"}), "mcp_servers": ([],),
        "thinking": ({"type": "disabled"},), "cache_control": (ANY_VALUE,),
    }  # fmt: skip
    model: str
    messages: Items[MessageParam] = Field(min_length=1, max_length=10_000)
    system: str | Items[TextBlock] | None = None

    @property
    def chat(self) -> list[ChatMessage]:
        """Role and text of each message; the system text, if any, comes first."""
        messages = [(message.role, fields.join_text(message.content)) for message in self.messages]
        return [("system", fields.join_text(self.system)), *messages] if self.system else messages

    @property
    def is_continued(self) -> bool:
        """Whether the last message is the assistant's; the answer then continues it."""
        return self.messages[-1].role == "assistant"


class Messages(MessagePrompt):
    """A request. Decoding is greedy; a field that asks for another decoding is rejected with an error that names it."""

    ignored_values: ClassVar = {
        **MessagePrompt.ignored_values, "temperature": (0,), "top_p": (1,), "top_k": (1,),
        "service_tier": ("auto", "standard_only"),
    }  # fmt: skip
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    max_tokens: StrictInt = Field(ge=1)
    stop_sequences: Items[str] | None = None
    stream: StrictBool | None = None
    metadata: Metadata | None = None


class TokenCount(BaseModel):
    input_tokens: int


class MessageUsage(BaseModel):
    """Token counts. ``input_tokens`` is 0: every prompt token is either read from the cache or added to it."""

    input_tokens: int = 0
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(BaseModel):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence"] | None
    stop_sequence: str | None
    usage: MessageUsage


def anthropic_router(conversations: Conversations) -> APIRouter:
    router, model, limits = APIRouter(tags=["chat"]), conversations.model, conversations.limits
    about = "Continue a conversation (Anthropic)"

    @router.post(PATH, responses=SSE, response_model=MessageAnswer, summary=about)
    async def answer(request: Request, body: Messages, caller: Caller, agent_id: AgentHeader = None) -> Response:
        """Answer greedily. The agent is ``X-Agent-ID``, else ``metadata.user_id``, else the access token's only agent.

        If the last message is the assistant's, the answer continues it.
        """
        agent = fields.agent_of(caller, agent_id, body.metadata and body.metadata.user_id)
        fields.check_model(body.model, model)
        most, stops = fields.most_tokens(limits, body.max_tokens), fields.stops_of(limits, body.stop_sequences)
        generation = conversations.chat(agent, body.chat, most, stops, body.is_continued)

        def answer_of(text: str) -> MessageAnswer:
            end, usage = _end(generation), _usage(generation)
            return MessageAnswer(**_head(model), content=[_block(text)], **end, usage=usage)

        events = _events(generation, model) if body.stream else None
        return await reply(request, PATH, generation, events, answer_of, error_event)

    @router.post(f"{PATH}/count_tokens", summary="Count the tokens of a prompt")
    async def count(body: MessagePrompt) -> TokenCount:
        """Count the prompt's tokens for an agent without a memory. No agent's memory is read or changed."""
        fields.check_model(body.model, model)
        return TokenCount(input_tokens=await conversations.count(body.chat, body.is_continued))

    return router


def _head(model: str) -> dict[str, Any]:
    return {"id": f"msg_{token_hex(12)}", "type": "message", "role": "assistant", "model": model}


async def _events(generation: Generation, model: str) -> AsyncIterator[bytes]:
    blank = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(generation)}
    yield _event("message_start", message=_head(model) | blank)
    yield _event("content_block_start", index=0, content_block=_block(""))
    yield PING
    async for piece in generation.pieces():
        delta = {"type": "text_delta", "text": piece}
        yield PING if piece is None else _event("content_block_delta", index=0, delta=delta)
    yield _event("content_block_stop", index=0)
    yield _event("message_delta", delta=_end(generation), usage=_usage(generation))
    yield _event("message_stop")


def _event(kind: str, **data: Any) -> bytes:
    return event({"type": kind, **data}, kind)


def _block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _end(generation: Generation) -> dict[str, Any]:
    assert generation.end is not None
    if generation.end.stopped_by is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": generation.end.stopped_by}
    return {"stop_reason": "max_tokens" if generation.end.reason == "length" else "end_turn", "stop_sequence": None}


def _usage(generation: Generation) -> dict[str, int]:
    """Return the token counts so far. Computed prompt rows count as added to the cache: the next turn reuses them."""
    prefilled, end = generation.prefilled, generation.end
    assert prefilled is not None
    return MessageUsage(
        cache_creation_input_tokens=prefilled.new, cache_read_input_tokens=prefilled.kept,
        output_tokens=0 if end is None else end.generated,
    ).model_dump()  # fmt: skip
