"""The part of OpenAI's chat completions that is supported, as pydantic models."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from keep_agent.server.chat.ignored_fields import ANY, VendorModel
from keep_agent.server.limits.strict_models import Items

EXAMPLE = {"model": "planner-tiny", "messages": [{"role": "user", "content": "go to fridge_1"}], "max_tokens": 8}


class TextPart(VendorModel):
    neutral: ClassVar = {"annotations": ([],)}
    type: Literal["text"]
    text: str


class CompletionMessage(VendorModel):
    """A message of the conversation. Only text is supported."""

    neutral: ClassVar = {"tool_calls": ([],), "annotations": ([],)}
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Items[TextPart] | None = Field(None, description="May be null in an assistant's message only")

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of role {self.role} needs content: give a text")
        return self

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(VendorModel):
    neutral: ClassVar = {"include_obfuscation": (ANY,)}
    include_usage: StrictBool = False


class Completion(VendorModel):
    """A request. Answers are greedy; fields that would change that are refused by name."""

    neutral: ClassVar = {
        "temperature": (0,), "n": (1,), "top_p": (1,), "frequency_penalty": (0,), "presence_penalty": (0,),
        "logprobs": (False,), "top_logprobs": (0,), "logit_bias": ({},), "tools": ([],), "functions": ([],),
        "tool_choice": ("none", "auto"), "function_call": ("none", "auto"), "parallel_tool_calls": (True, False),
        "response_format": ({"type": "text"},), "modalities": (["text"],), "store": (False,), "seed": (ANY,),
        "metadata": (ANY,), "service_tier": ("auto", "default"), "reasoning_effort": ("none",),
        "verbosity": ("medium",), "prompt_cache_retention": (ANY,),
    }  # fmt: skip
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    model: str
    messages: Items[CompletionMessage] = Field(min_length=1, max_length=10_000)
    max_tokens: StrictInt | None = Field(None, ge=1)
    max_completion_tokens: StrictInt | None = Field(None, ge=1)
    stop: str | Items[str] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="The agent whose memory it is, unless the header X-Agent-ID names one")
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
