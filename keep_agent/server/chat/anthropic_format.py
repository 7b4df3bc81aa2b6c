"""The part of Anthropic's messages that is spoken here."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from keep_agent.server.chat.neutral import ANY

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "temperature": (0,), "top_p": (1,), "top_k": (1,), "tools": ([],), "tool_choice": ({"type": "none"},),
    "thinking": ({"type": "disabled"},), "service_tier": ("auto", "standard_only"), "cache_control": (ANY,),
}  # fmt: skip
EXAMPLE = {"model": "planner-tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "go to fridge_1"}]}


class TextBlock(BaseModel):
    """What is said of caching is heeded anyway: all is cached."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = None


def joined(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


class Message(BaseModel):
    """Only text is understood."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["user", "assistant"]
    content: str | list[TextBlock]


class Metadata(BaseModel):
    model_config = ConfigDict(extra="forbid")
    user_id: str | None = Field(None, description="The agent whose memory it is, unless the header X-Agent-ID says")


class Messages(BaseModel):
    """A request. Answers are greedy; fields that would change that are refused by name."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [EXAMPLE]})
    model: str
    max_tokens: StrictInt = Field(ge=1)
    messages: list[Message] = Field(min_length=1, max_length=10_000)
    system: str | list[TextBlock] | None = None
    stop_sequences: list[str] | None = None
    stream: StrictBool | None = None
    metadata: Metadata | None = None


class Usage(BaseModel):
    """``input_tokens`` are those that are neither read from the rows nor become part of them: none."""

    input_tokens: int = 0
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Answer(BaseModel):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence"] | None
    stop_sequence: str | None
    usage: Usage
