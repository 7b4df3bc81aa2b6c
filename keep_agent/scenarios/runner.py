"""Player of a scenario: turn by turn it opens an agent's prompt in its memory, computes what is new, and answers."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keep_agent.scenarios.scenario import Phase, Scenario
from keep_agent.scenarios.transcript import Story
from keep_agent.scenarios.turn_records import Cost, Turn
from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenText
from memory.engine.base import ChunkSchedule
from memory.engine.models.chat_template import SpecialTokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REUSE = 0.0  # AgentMemories.threshold: a scenario that begins again keeps whatever its prompts begin with


@dataclass(frozen=True, kw_only=True)
class Answer(Cost):
    """Model's words to a prompt, as it wrote them, and their cost."""

    text: str


@dataclass(frozen=True)
class Player:
    """One scenario on one engine. ``stops`` are tokens that end a turn; ``run_id`` names what is kept for this run.

    Within a run every prompt but an agent's first goes on behind what its memory holds.
    """

    scenario: Scenario
    memories: AgentMemories
    stops: Collection[int]
    run_id: str
    max_tokens: int | None = None  # of a turn; None: what the phase says

    def play(self, story: Story | None = None) -> Generator[Turn, None, None]:
        """Yields each turn as it is done. Permanent agents' rows go to the disk, if there is one, phase by phase."""
        story = story or Story(self.scenario)
        index = 0
        for phase in self.scenario.phases:
            story.begin(phase)
            try:
                for number in range(1, phase.rounds + 1):
                    for speaker in phase.speakers:
                        yield self._turn(story, phase, number, speaker, index)
                        index += 1
            finally:
                self._forget(phase)
            self.memories.flush({self.scenario.memory_key(agent, self.run_id) for agent in self.scenario.agents})

    def _turn(self, story: Story, phase: Phase, number: int, speaker: str, index: int) -> Turn:
        memory = self.scenario.memory_key(speaker, self.run_id)
        answer = self._answer(memory, story.prompt(speaker), self.max_tokens or phase.max_tokens)
        message = story.say(phase, speaker, answer.text)
        return Turn(
            index=index,
            id=f"{phase.name}/{number}/{speaker}",
            phase=phase.name,
            round=number,
            agent=speaker,
            name=self.scenario.agents[speaker].name,
            text=message.text,
            audience=message.audience,
            memory=memory,
            **answer.costs,
        )

    def _answer(self, memory: str, text: str, max_tokens: int) -> Answer:
        """Open a prompt, compute what is new of it, go on, and put the rows away. Others may do so elsewhere."""
        engine, began = self.memories.engine, time.perf_counter()
        prompt = self.memories.open(memory, text)
        logits = engine.extend(prompt.cache, prompt.new, ChunkSchedule()).logits.cpu()  # so the device is waited for
        computed = time.perf_counter()
        room = engine.info.max_positions - prompt.cache.next_position
        ids = engine.generate(prompt.cache, logits, min(max_tokens, room), self.stops)
        end = time.perf_counter()
        self.memories.finish(prompt, ids, persist=False)
        return Answer(
            text=self._words(ids),
            kind=prompt.kind,
            origin=prompt.origin,
            kept=prompt.reused,
            new=len(prompt.new),
            generated=len(ids),
            ttft_ms=1e3 * (computed - began),
            decode_ms=1e3 * (end - computed),
        )

    def _words(self, ids: Sequence[int]) -> str:
        """What generated tokens say, as the memory has it: without a character whose last bytes are missing."""
        text = TokenText.of("", self.memories.coder)
        text.extend(ids, self.memories.coder)
        return text.text

    def _forget(self, phase: Phase) -> None:
        for agent in phase.participants:
            if not self.scenario.agents[agent].permanent:
                self.memories.forget(self.scenario.memory_key(agent, self.run_id))


def stop_tokens(tokenizer: PreTrainedTokenizerBase, special: SpecialTokens) -> frozenset[int]:
    """Tokens that end a turn, which is one line of text: those that hold a newline, and all that are special."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    return (special.ends | special.hidden).union(token for token, text in enumerate(texts) if "\n" in text)


def start_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token in front of every prompt, where the model wants one."""
    return [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
