"""The part of OpenAI's chat completions that is spoken here."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from keep_agent.server.chat.neutral import ANY

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "temperature": (0,), "n": (1,), "top_p": (1,), "frequency_penalty": (0,), "presence_penalty": (0,),
    "logprobs": (False,), "top_logprobs": (0,), "logit_bias": ({},), "tools": ([],), "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False), "response_format": ({"type": "text"},), "modalities": (["text"],),
    "store": (False,), "seed": (ANY,), "metadata": (ANY,), "service_tier": ("auto", "default"),
}  # fmt: skip
EXAMPLE = {"model": "planner-tiny", "messages": [{"role": "user", "content": "go to fridge_1"}], "max_tokens": 8}


class TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """Only text is understood."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")
    include_usage: StrictBool = False


class Completion(BaseModel):
    """A request. Answers are greedy; fields that would change that are refused by name."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [EXAMPLE]})
    model: str
    messages: list[Message] = Field(min_length=1, max_length=10_000)
    max_tokens: StrictInt | None = Field(None, ge=1)
    max_completion_tokens: StrictInt | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="The agent whose memory it is, where the header X-Agent-ID does not say")


class CachedTokens(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str


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
    usage: Usage


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "keep-agent"


class Models(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]
