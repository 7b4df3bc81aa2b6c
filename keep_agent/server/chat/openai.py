"""OpenAI's API: ``/v1/chat/completions`` and ``/v1/models``, with a subset of the API's fields."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from secrets import token_hex
from typing import Any, ClassVar, Literal, Self

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator
from starlette.responses import Response

from keep_agent.server.auth.access_rules import Caller
from keep_agent.server.chat import request_fields as fields
from keep_agent.server.chat.conversations import Conversations, Generation
from keep_agent.server.chat.request_fields import ANY_VALUE, AgentHeader, VendorModel
from keep_agent.server.chat.server_sent_events import DONE, KEEP_ALIVE, SSE, event, reply
from keep_agent.server.limits.strict_models import Items

PATH, MODELS = "/v1/chat/completions", "/v1/models"
ROLES = {"developer": "system"}  # newer name of the role "system"
EXAMPLE = {"model": "planner-tiny", "messages": [{"role": "user", "content": "go to fridge_1"}], "max_tokens": 8}


class TextPart(VendorModel):
    ignored_values: ClassVar = {"annotations": ([],)}
    type: Literal["text"]
    text: str


class CompletionMessage(VendorModel):
    """A message of the conversation. Only text is supported."""

    ignored_values: ClassVar = {"tool_calls": ([],), "annotations": ([],)}
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Items[TextPart] | None = Field(None, description="May be null in an assistant's message only")

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of role {self.role} needs content: give a text")
        return self

    @property
    def text(self) -> str:
        return fields.join_text(self.content or "")


class StreamOptions(VendorModel):
    ignored_values: ClassVar = {"include_obfuscation": (ANY_VALUE,)}
    include_usage: StrictBool = False


class Completion(VendorModel):
    """A request. Decoding is greedy; a field that asks for another decoding is rejected with an error that names it."""

    ignored_values: ClassVar = {
        "temperature": (0,), "n": (1,), "top_p": (1,), "frequency_penalty": (0,), "presence_penalty": (0,),
        "logprobs": (False,), "top_logprobs": (0,), "logit_bias": ({},), "tools": ([],), "functions": ([],),
        "tool_choice": ("none", "auto"), "function_call": ("none", "auto"), "parallel_tool_calls": (True, False),
        "response_format": ({"type": "text"},), "modalities": (["text"],), "store": (False,), "seed": (ANY_VALUE,),
        "metadata": (ANY_VALUE,), "service_tier": ("auto", "default"), "reasoning_effort": ("none",),
        "verbosity": ("medium",), "prompt_cache_retention": (ANY_VALUE,),
    }  # fmt: skip
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    model: str
    messages: Items[CompletionMessage] = Field(min_length=1, max_length=10_000)
    max_tokens: StrictInt | None = Field(None, ge=1)
    max_completion_tokens: StrictInt | None = Field(None, ge=1)
    stop: str | Items[str] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="The agent whose memory is used, unless the header X-Agent-ID names one")
    prompt_cache_key: str | None = Field(
        None, description="The agent, if neither the header nor user names one; ignored if it cannot be an agent's id"
    )
    safety_identifier: str | None = Field(
        None, description="The agent, if nothing else names one; ignored if it cannot be an agent's id"
    )


class CachedTokens(BaseModel):
    cached_tokens: int


class CompletionUsage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class Choice(BaseModel):
    index: int = 0
    message: AssistantMessage
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class Completed(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "keep-agent"


class Models(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


def openai_router(conversations: Conversations) -> APIRouter:
    router, name, limits = APIRouter(tags=["chat"]), conversations.model, conversations.limits

    @router.post(PATH, responses=SSE, response_model=Completed, summary="Continue a conversation (OpenAI)")
    async def complete(request: Request, body: Completion, caller: Caller, agent_id: AgentHeader = None) -> Response:
        """Answer greedily. The agent is the first of X-Agent-ID, ``user``, ``prompt_cache_key``, ``safety_identifier``.

        The last two are skipped unless they are valid ids of agents that the access token may use. If no field names an
        agent, the access token's only agent is used.
        """
        hints = body.prompt_cache_key, body.safety_identifier
        agent = fields.agent_of(caller, agent_id, body.user, hints=hints)
        fields.check_model(body.model, name)
        most = fields.most_tokens(limits, body.max_completion_tokens, body.max_tokens)
        messages = [(ROLES.get(message.role, message.role), message.text) for message in body.messages]
        generation = conversations.chat(agent, messages, most, fields.stops_of(limits, body.stop))

        def answer(text: str) -> Completed:
            choice = Choice(message=AssistantMessage(content=text), finish_reason=_finish_reason(generation))
            return Completed(**_head("chat.completion", name), choices=[choice], usage=_usage(generation))

        usage = body.stream_options is not None and body.stream_options.include_usage
        return await reply(request, PATH, generation, _chunks(generation, name, usage) if body.stream else None, answer)

    @router.get(MODELS, summary="List the served models")
    async def models() -> Models:
        return Models(data=[Model(id=name)])

    @router.get(f"{MODELS}/{{model:path}}", summary="Look up a model")
    async def model(model: str) -> Model:
        fields.check_model(model, name)
        return Model(id=model)

    return router


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}


async def _chunks(generation: Generation, model: str, with_usage: bool) -> AsyncIterator[bytes]:
    head = _head("chat.completion.chunk", model) | ({"usage": None} if with_usage else {})
    yield event(head | {"choices": [_delta({"role": "assistant", "content": ""})]})
    async for piece in generation.pieces():
        yield KEEP_ALIVE if piece is None else event(head | {"choices": [_delta({"content": piece})]})
    yield event(head | {"choices": [_delta({}, _finish_reason(generation))]})
    if with_usage:
        yield event(head | {"choices": [], "usage": _usage(generation).model_dump()})
    yield DONE


def _usage(generation: Generation) -> CompletionUsage:
    assert generation.prefilled is not None and generation.end is not None
    prompt, generated = generation.prefilled.kept + generation.prefilled.new, generation.end.generated
    return CompletionUsage(
        prompt_tokens=prompt, completion_tokens=generated, total_tokens=prompt + generated,
        prompt_tokens_details=CachedTokens(cached_tokens=generation.prefilled.kept),
    )  # fmt: skip


def _finish_reason(generation: Generation) -> Any:
    assert generation.end is not None
    return "length" if generation.end.reason == "length" else "stop"


def _delta(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": reason}
