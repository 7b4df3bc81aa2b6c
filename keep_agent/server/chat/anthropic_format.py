"""The part of Anthropic's messages that is supported, as pydantic models."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from keep_agent.server.chat.ignored_fields import ANY, VendorModel
from keep_agent.server.limits.strict_models import Items

EXAMPLE = {"model": "planner-tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "go to fridge_1"}]}


class TextBlock(VendorModel):
    """A piece of text. ``cache_control`` is accepted and ignored: everything is cached."""

    neutral: ClassVar = {"cache_control": (ANY,), "citations": ([],)}
    type: Literal["text"]
    text: str


def joined(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


class MessageParam(VendorModel):
    """A message of the conversation. Only text is supported."""

    role: Literal["user", "assistant"]
    content: str | Items[TextBlock]


class Metadata(VendorModel):
    user_id: str | None = Field(None, description="The agent whose memory it is, unless the header X-Agent-ID says")


class MessagePrompt(VendorModel):
    """What a prompt is made of."""

    neutral: ClassVar = {
        "tools": ([],), "tool_choice": ({"type": "none"}, {"type": "auto"}), "mcp_servers": ([],),
        "thinking": ({"type": "disabled"},), "cache_control": (ANY,),
    }  # fmt: skip
    model: str
    messages: Items[MessageParam] = Field(min_length=1, max_length=10_000)
    system: str | Items[TextBlock] | None = None


class Messages(MessagePrompt):
    """A request. Answers are greedy; fields that would change that are refused by name."""

    neutral: ClassVar = {
        **MessagePrompt.neutral, "temperature": (0,), "top_p": (1,), "top_k": (1,),
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
    """``input_tokens`` are those that are neither read from the rows nor become part of them: none."""

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
