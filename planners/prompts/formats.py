"""Prompt formats: how the parts of a prompt become token ids for a given model.

A prompt is ``[context][memory segments][query]``; the parts are encoded one by one and spliced as ids, never joined
as text and re-tokenised. Each segment ends with a newline that is its own token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from keep_agent.errors import ConfigError, ModelError, check_choice
from memory.engine.models.chat_template import parts_around
from planners.prompts.text import (
    CUE,
    FOCUS,
    PROGRESS,
    TYPE_LEVEL,
    Turn,
    candidate_text,
    clean,
    goal_query,
    query_text,
    reason,
    task_line,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMATS = ("default", "lota")
HERE = "\u241f"  # stands for the memory while a chat template is rendered; never reaches the model


@dataclass(frozen=True, slots=True)
class Example:
    """An in-context example: an instruction and the skills that carried it out."""

    instruction: str
    skills: tuple[str, ...]


class Format(Protocol):
    name: str
    progress: int  # turns of a task that a query tells; what came before is memory

    def context(self) -> list[int]:
        """Token ids before the memory: the context prefix every block is encoded after."""
        ...

    def line(self, text: str) -> list[int]:
        """Token ids of one segment."""
        ...

    def goal(self, skills: str, instruction: str) -> list[int]:
        """The end of a prompt behind which the model says what an instruction asks for; empty: it is not asked.

        A query tells what it says in the instruction's place, a transcript behind it (`planners.prompts.text`).
        """
        ...

    def opening(self, skills: str, instruction: str, now: str = "", again: bool = False) -> list[int]:
        """What a task adds to an `append` transcript after the memory, up to its first cue.

        ``now`` is the agent's own line; ``again``: behind an earlier task.
        """
        ...

    def query(self, skills: str, instruction: str, turns: Sequence[Turn], now: str = "", before: int = 0) -> list[int]:
        """The fresh end of a prompt in the `memory` layout, up to the place where a skill is expected.

        ``turns`` are the last of the task, ``before`` how many came before them; ``now`` is the agent's own line.
        """
        ...

    def cue(self, number: int, now: str = "") -> list[int]:
        """What asks for skill ``number`` (from 1) in an `append` transcript; ``now`` is the agent's own line."""
        ...

    def focus(self, skills: str) -> int:
        """How many tokens the model writes before a skill of this set, to say what the skill is for."""
        ...

    def candidate(self, skill: str) -> list[int]:
        """What a candidate skill adds to the prompt, its end mark included."""
        ...

    def answer(self, turn: Turn, focus: Sequence[int] = ()) -> list[int]:
        """What an `append` transcript keeps of a turn after its cue: focus, skill, and why it failed."""
        ...

    def stops(self) -> set[int]:
        """Tokens that end a generated skill."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Splicer:
    """Encodes pieces of text without special tokens; a trailing newline is always a token of its own."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        newline = self.raw("\n")
        if len(newline) != 1:
            raise ModelError(f"the tokenizer has no single newline token (got {newline}); units cannot be spliced")
        self.newline = newline[0]

    def raw(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False) if text else []

    def lines(self, text: str) -> list[int]:
        """Ids of text made of whole lines, plus an unfinished last one if there is any."""
        *whole, rest = text.split("\n")
        ids: list[int] = []
        for line in whole:
            ids += [*self.raw(line), self.newline]
        return ids + self.raw(rest)

    def token(self, name: str) -> int:
        """Id of a token by name. Raises ConfigError if the tokenizer has no such token."""
        if name not in self.tokenizer.get_vocab():
            raise ConfigError(f"prompt.start={name!r} is no token of this model; name one, such as {self._some()}")
        return self.tokenizer.convert_tokens_to_ids(name)

    def _some(self) -> str:
        return ", ".join(self.tokenizer.all_special_tokens[:3]) or "its end of text"


class PlainFormat:
    """planner-tiny's own format: nothing but lines.

    Prompts begin with the tokenizer's start token, or with the one named ``start`` where it has none. ``goals``: the
    model says first what an instruction asks for.
    """

    name = "default"
    progress = PROGRESS

    def __init__(self, tokenizer: PreTrainedTokenizerBase, start: str | None = None, goals: bool = False) -> None:
        self._splice, self._goals = Splicer(tokenizer), goals
        self._start = tokenizer.bos_token_id if start is None else self._splice.token(start)

    def context(self) -> list[int]:
        """The start token, if there is any."""
        return [] if self._start is None else [self._start]

    def line(self, text: str) -> list[int]:
        return self._splice.lines(text)

    def goal(self, skills: str, instruction: str) -> list[int]:
        return self._splice.lines(goal_query(skills, instruction)) if self._goals else []

    def opening(self, skills: str, instruction: str, now: str = "", again: bool = False) -> list[int]:
        return self._splice.lines(task_line(skills, instruction) + now)

    def query(self, skills: str, instruction: str, turns: Sequence[Turn], now: str = "", before: int = 0) -> list[int]:
        return self._splice.lines(query_text(skills, instruction, turns, now))

    def cue(self, number: int, now: str = "") -> list[int]:
        return self._splice.lines(now + CUE)

    def focus(self, skills: str) -> int:
        return 0 if skills == TYPE_LEVEL else FOCUS

    def candidate(self, skill: str) -> list[int]:
        return self._splice.lines(candidate_text(skill))

    def answer(self, turn: Turn, focus: Sequence[int] = ()) -> list[int]:
        return [*focus, *self._splice.lines(turn.text.removeprefix(CUE))]

    def stops(self) -> set[int]:
        return {self._splice.newline}

    def decode(self, ids: Sequence[int]) -> str:
        return self._splice.tokenizer.decode(ids)


def template_parts(tokenizer: PreTrainedTokenizerBase, *contents: str, **values: bool) -> list[str]:
    """What the chat template puts around and between the places marked ``HERE`` in turns of user and model.

    Raises ModelError as `parts_around` does.
    """
    turns = [(("user", "assistant")[i % 2], content) for i, content in enumerate(contents)]
    return parts_around(tokenizer, HERE, turns, **values)


INTRODUCTION = (
    "You control a robot in a household. You are shown worked examples, then what is known about the house, one fact "
    "per line (type, name, place, states), then an instruction. Write the next skill of the plan.\n"
)


@dataclass
class LotaFormat:
    """LoTA-Bench's prompt (arXiv 2402.08178) for instruct models: chat template, examples, numbered skills.

    The introduction and the examples stand before the memory, so that they belong to the context prefix. The template
    says how a prompt begins; a token named ``start`` goes before that.
    """

    tokenizer: PreTrainedTokenizerBase
    examples: Sequence[Example] = ()
    start: str | None = None
    name: str = "lota"
    progress: int = 16  # its examples show plans, not memories of them
    _splice: Splicer = field(init=False)
    _before: str = field(init=False)
    _after: str = field(init=False)
    _next_turn: str = field(init=False)  # ends the model's turn, begins the user's

    def __post_init__(self) -> None:
        if not getattr(self.tokenizer, "chat_template", None):
            raise ConfigError("prompt=lota needs a model with a chat template; use prompt=default for this one")
        self._splice = Splicer(self.tokenizer)
        shown = "".join(f"Human: {clean(e.instruction)}\nRobot: {_numbered(e.skills)}\n" for e in self.examples)
        self._before, self._after = template_parts(self.tokenizer, f"{INTRODUCTION}{shown}Known facts:\n{HERE}")
        _, self._next_turn, _ = template_parts(self.tokenizer, "Human:", HERE, HERE)

    def context(self) -> list[int]:
        start = [] if self.start is None else [self._splice.token(self.start)]
        return start + self._splice.lines(self._before)

    def line(self, text: str) -> list[int]:
        return self._splice.lines(text)

    def goal(self, skills: str, instruction: str) -> list[int]:
        return []

    def opening(self, skills: str, instruction: str, now: str = "", again: bool = False) -> list[int]:
        turn = f"{now}Human: {clean(instruction)}{self._after}Robot:"
        return self._splice.lines(self._next_turn + turn if again else turn)

    def query(self, skills: str, instruction: str, turns: Sequence[Turn], now: str = "", before: int = 0) -> list[int]:
        ids = self.opening(skills, instruction, now)
        for number, turn in enumerate(turns, before + 1):
            ids += self.cue(number) + self.answer(turn)
        return ids + self.cue(before + len(turns) + 1)

    def cue(self, number: int, now: str = "") -> list[int]:
        news = [self._splice.newline, *self._splice.lines(now)] if now else []  # on a line of its own
        return news + self._splice.raw(f" {number}.")

    def focus(self, skills: str) -> int:
        return 0

    def candidate(self, skill: str) -> list[int]:
        return self._splice.raw(f" {skill},")

    def answer(self, turn: Turn, focus: Sequence[int] = ()) -> list[int]:
        return [*focus, *self._splice.raw(f" {_done(turn)},")]

    def stops(self) -> set[int]:
        ends = {self._splice.newline, self._splice.raw("a,")[-1], self.tokenizer.eos_token_id}
        return {token for token in ends if token is not None}

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def _done(turn: Turn) -> str:
    return turn.skill if turn.ok else f"{turn.skill} (this action failed: {reason(turn.message)})"


def _numbered(skills: Sequence[str]) -> str:
    return ", ".join(f"{number}. {skill}" for number, skill in enumerate(skills, 1)) + "."


def make_format(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example] = (),
    start: str | None = None,
    goals: bool = False,
) -> Format:
    """A prompt format by name; raises `ConfigError` naming the known ones, or for examples it has no place for."""
    check_choice("prompt.format", name, FORMATS)
    if name == "lota":
        return LotaFormat(tokenizer, examples, start)
    if examples:
        raise ConfigError(f"prompt=default shows no examples, {len(examples)} were given; use prompt=lota or 0")
    return PlainFormat(tokenizer, start, goals)
