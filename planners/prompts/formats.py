"""Prompt formats: encoders of a prompt's parts as token ids of a given model.

A prompt is ``[context][memory segments][query]`` (`memory` layout) or a growing transcript (`append` layout). Its parts
are encoded one by one and joined as ids. Each segment ends with a newline, which is a separate token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from keep_agent.errors import ConfigError, ModelError, check_choice
from memory.engine.models.chat_template import parts_around
from planners.prompts import text as texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMATS = ("default", "lota")
FOCI = {"none": 0, "words": texts.FOCUS, "line": 64}  # kinds of focus, with the maximum number of tokens
Ids = list[int]
Turns = Sequence[texts.Turn]
PLACEHOLDER = "\u241f"  # text in place of the memory while a chat template is rendered; not in any prompt


@dataclass(frozen=True, slots=True)
class Example:
    """In-context example: an instruction and the skills that carried it out."""

    instruction: str
    skills: tuple[str, ...]


class Splicer:
    """Encoder of texts as token ids; adds no special tokens. In `lines`, every newline is a separate token."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        newline = self.raw("\n")
        if len(newline) != 1:
            raise ModelError(
                f"the tokenizer encodes a newline as {newline}, not as one token; use a model with a newline token"
            )
        self.newline = newline[0]

    def raw(self, text: str) -> Ids:
        return self.tokenizer.encode(text, add_special_tokens=False) if text else []

    def lines(self, text: str) -> Ids:
        """Encode whole lines, and an unfinished last line if there is one."""
        *whole, rest = text.split("\n")
        return [token for line in whole for token in (*self.raw(line), self.newline)] + self.raw(rest)

    def token(self, name: str) -> int:
        """Return the id of a token by name. Raises ConfigError if the tokenizer has no such token."""
        if name not in self.tokenizer.get_vocab():
            examples = ", ".join(self.tokenizer.all_special_tokens[:3]) or "its end of text"
            raise ConfigError(f"prompt.start={name!r} is not a token of this model; name one, such as {examples}")
        return self.tokenizer.convert_tokens_to_ids(name)


class Format(Protocol):
    """Encoder of a prompt's parts. ``agent_line``: line about the agent, or "". A *cue* is the text before a skill."""

    name: str
    progress: int  # maximum turns in a query; earlier turns are memory segments
    has_start: bool = True  # whether the context begins with a start token
    examples: Sequence[Example] = ()  # in-context examples that are memory segments, not part of the context
    _splice: Splicer

    def context(self) -> Ids:
        """Encode the context prefix, which precedes all memory segments."""

    def line(self, text: str) -> Ids:
        """Encode one segment."""
        return self._splice.lines(text)

    def goal(self, skills: str, instruction: str) -> Ids:
        """Encode the query for which the model generates the goal of an instruction; empty for formats without goals.

        A goal is a plain restatement ("find mug put desk"). In the `memory` layout it later replaces the instruction.
        """
        return []

    def opening(self, skills: str, instruction: str, agent_line: str = "", after_task: bool = False) -> Ids:
        """Encode the start of a task, without a cue, in an `append` transcript. ``after_task``: a task precedes it."""

    def query(self, skills: str, instruction: str, turns: Turns, agent_line: str = "", earlier_turns: int = 0) -> Ids:
        """Encode the query of the `memory` layout, up to the position of the next skill.

        ``turns`` are the latest turns of the task, ``earlier_turns`` is the number of turns before them.
        """

    def cue(self, skills: str, number: int, agent_line: str = "") -> Ids:
        """Encode the cue for skill ``number`` (from 1) in an `append` transcript."""

    def focus(self, skills: str) -> int:
        """Return the maximum tokens of a focus, which names the target before each skill of the set ``skills``."""
        return 0

    def after_focus(self, skills: str) -> Ids:
        """Encode the text between a focus and its skill."""
        return []

    def candidate(self, skill: str) -> Ids:
        """Encode a candidate skill and the newline or comma that ends it."""

    def answer(self, skills: str, turn: texts.Turn, focus: Sequence[int] = ()) -> Ids:
        """Encode a turn of an `append` transcript without its cue: focus, skill, and the message of a failure."""

    def stops(self) -> set[int]:
        """Return the tokens that end a generated skill."""

    def decode(self, ids: Sequence[int]) -> str: ...


class PlainFormat(Format):
    """Format of planner-tiny: plain lines without a chat template.

    Prompts begin with the token ``start``, by default the tokenizer's BOS token.

    :param goals: the model generates the goal of an instruction before the first skill
    :param focus: ``words``: a focus of three tokens precedes an instance-level skill, as planner-tiny was trained;
        ``line``: a focus has a line of its own, for tokenizers that split words; ``none``: no focus
    :param examples: in-context examples, which a planner writes into its memory
    :param preamble: text after the start token, see `planners.prompts.preamble`
    """

    name = "default"
    progress = texts.PROGRESS

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, start: str | None = None, goals: bool = False, focus: str = "words",
        examples: Sequence[Example] = (), preamble: str = "",
    ) -> None:  # fmt: skip
        check_choice("prompt.focus", focus, FOCI)
        self._splice, self._goals, self._focus, self.examples = Splicer(tokenizer), goals, focus, examples
        self._start = tokenizer.bos_token_id if start is None else self._splice.token(start)
        self.has_start = self._start is not None
        self._preamble = self._splice.lines(preamble)

    def context(self) -> Ids:
        """Return the start token, if any, and the preamble."""
        return [*([] if self._start is None else [self._start]), *self._preamble]

    def goal(self, skills: str, instruction: str) -> Ids:
        return self._splice.lines(texts.goal_query(skills, instruction)) if self._goals else []

    def opening(self, skills: str, instruction: str, agent_line: str = "", after_task: bool = False) -> Ids:
        return self._splice.lines(texts.task_line(skills, instruction) + agent_line)

    def query(self, skills: str, instruction: str, turns: Turns, agent_line: str = "", earlier_turns: int = 0) -> Ids:
        return self._splice.lines(texts.query_text(skills, instruction, turns, agent_line)) + self.cue(skills, 1)

    def cue(self, skills: str, number: int, agent_line: str = "") -> Ids:
        return self._splice.lines(agent_line + (texts.TARGET if self._has_focus_line(skills) else texts.CUE))

    def focus(self, skills: str) -> int:
        return 0 if skills == texts.TYPE_LEVEL else FOCI[self._focus]

    def after_focus(self, skills: str) -> Ids:
        return self._splice.lines(f"\n{texts.CUE}") if self._has_focus_line(skills) else []

    def _has_focus_line(self, skills: str) -> bool:
        return self._focus == "line" and skills != texts.TYPE_LEVEL

    def candidate(self, skill: str) -> Ids:
        return self._splice.lines(texts.candidate_text(skill))

    def answer(self, skills: str, turn: texts.Turn, focus: Sequence[int] = ()) -> Ids:
        return [*focus, *self.after_focus(skills), *self._splice.lines(turn.text.removeprefix(texts.CUE))]

    def stops(self) -> set[int]:
        return {self._splice.newline}

    def decode(self, ids: Sequence[int]) -> str:
        return self._splice.tokenizer.decode(ids)


def template_parts(tokenizer: PreTrainedTokenizerBase, *contents: str, **values: bool) -> list[str]:
    """Render ``contents`` in a chat template, as turns of user and model; return the texts around `PLACEHOLDER`.

    Raises ModelError as `parts_around` does.
    """
    turns = [(("user", "assistant")[i % 2], content) for i, content in enumerate(contents)]
    return parts_around(tokenizer, PLACEHOLDER, turns, **values)


INTRODUCTION = (
    "You control a robot in a household. You are shown worked examples, then what is known about the house, one fact "
    "per line (type, name, place, states), then an instruction. Write the next skill of the plan.\n"
)


@dataclass
class LotaFormat(Format):
    """LoTA-Bench's prompt (arXiv 2402.08178) for instruct models: chat template, examples, numbered skills.

    The context prefix holds introduction and examples, and the memory follows. A prompt starts as the chat template
    prescribes; if ``start`` is given, this token comes first.
    """

    tokenizer: PreTrainedTokenizerBase
    context_examples: Sequence[Example] = ()  # in-context examples, part of the context
    start: str | None = None
    name: str = "lota"
    progress: int = 16  # maximum turns in a query: many, since the examples show whole plans
    _splice: Splicer = field(init=False)
    _prompt_start: str = field(init=False)
    _turn_end: str = field(init=False)
    _next_turn: str = field(init=False)  # text that ends the model's turn and begins the user's

    def __post_init__(self) -> None:
        if not getattr(self.tokenizer, "chat_template", None):
            raise ConfigError("prompt=lota needs a model with a chat template; use prompt=default for this model")
        self._splice = Splicer(self.tokenizer)
        examples = "".join(
            f"Human: {texts.clean(e.instruction)}\nRobot: {_numbered(e.skills)}\n" for e in self.context_examples
        )
        first = f"{INTRODUCTION}{examples}Known facts:\n{PLACEHOLDER}"
        self._prompt_start, self._turn_end = template_parts(self.tokenizer, first)
        _, self._next_turn, _ = template_parts(self.tokenizer, "Human:", PLACEHOLDER, PLACEHOLDER)

    def context(self) -> Ids:
        start = [] if self.start is None else [self._splice.token(self.start)]
        return start + self._splice.lines(self._prompt_start)

    def opening(self, skills: str, instruction: str, agent_line: str = "", after_task: bool = False) -> Ids:
        turn = f"{agent_line}Human: {texts.clean(instruction)}{self._turn_end}Robot:"
        return self._splice.lines(self._next_turn + turn if after_task else turn)

    def query(self, skills: str, instruction: str, turns: Turns, agent_line: str = "", earlier_turns: int = 0) -> Ids:
        ids = self.opening(skills, instruction, agent_line)
        for number, turn in enumerate(turns, earlier_turns + 1):
            ids += self.cue(skills, number) + self.answer(skills, turn)
        return ids + self.cue(skills, earlier_turns + len(turns) + 1)

    def cue(self, skills: str, number: int, agent_line: str = "") -> Ids:
        news = [self._splice.newline, *self._splice.lines(agent_line)] if agent_line else []  # on a new line
        return news + self._splice.raw(f" {number}.")

    def candidate(self, skill: str) -> Ids:
        return self._splice.raw(f" {skill},")

    def answer(self, skills: str, turn: texts.Turn, focus: Sequence[int] = ()) -> Ids:
        failure = "" if turn.ok else f" (this action failed: {texts.reason(turn.message)})"
        return [*focus, *self._splice.raw(f" {turn.skill}{failure},")]

    def stops(self) -> set[int]:
        ends = {self._splice.newline, self._splice.raw("a,")[-1], self.tokenizer.eos_token_id}
        return {token for token in ends if token is not None}

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def _numbered(skills: Sequence[str]) -> str:
    return ", ".join(f"{number}. {skill}" for number, skill in enumerate(skills, 1)) + "."


def make_format(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example] = (),
    start: str | None = None,
    goals: bool = False,
    focus: str = "words",
    preamble: str = "",
) -> Format:
    """Build a prompt format by name. Raises ConfigError for an unknown name."""
    check_choice("prompt.format", name, FORMATS)
    if name == "lota":
        return LotaFormat(tokenizer, examples, start)
    return PlainFormat(tokenizer, start, goals, focus, examples, preamble)
