"""Player of a scenario: each turn reuses the agent's stored KV rows, computes new prompt rows and generates text."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keep_agent.scenarios.scenario import Phase, Scenario
from keep_agent.scenarios.transcript import Transcripts
from keep_agent.scenarios.turn_records import Turn, TurnCost
from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenText
from memory.engine.base import ChunkSchedule
from memory.engine.models.chat_template import SpecialTokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REUSE = 0.0  # threshold of AgentMemories: a common prefix with the stored text is reused, however short


@dataclass(frozen=True, kw_only=True)
class GeneratedText(TurnCost):
    """Text that the model generated in a turn, and its cost."""

    text: str


@dataclass(frozen=True)
class Player:
    """Player of one scenario. Tokens ``stops`` end a turn. Memory keys of non-permanent agents contain ``run_id``."""

    scenario: Scenario
    memories: AgentMemories
    stops: Collection[int]
    run_id: str
    max_tokens: int | None = None  # maximum generated tokens per turn; None: the phase's maximum

    def play(self, transcripts: Transcripts | None = None) -> Generator[Turn, None, None]:
        """Yield each turn when it is complete. After each phase the rows of permanent agents are written to disk."""
        transcripts = transcripts or Transcripts(self.scenario)
        index = 0
        for phase in self.scenario.phases:
            transcripts.begin(phase)
            try:
                for number in range(1, phase.rounds + 1):
                    for speaker in phase.speakers:
                        yield self._turn(transcripts, phase, number, speaker, index)
                        index += 1
            finally:
                for agent in phase.participants:
                    if not self.scenario.agents[agent].permanent:
                        self.memories.forget(self.scenario.memory_key(agent, self.run_id))
            self.memories.flush({self.scenario.memory_key(agent, self.run_id) for agent in self.scenario.agents})

    def _turn(self, transcripts: Transcripts, phase: Phase, number: int, speaker: str, index: int) -> Turn:
        memory = self.scenario.memory_key(speaker, self.run_id)
        answer = self._answer(memory, transcripts.prompt(speaker), self.max_tokens or phase.max_tokens)
        message = transcripts.add_message(phase, speaker, answer.text)
        return Turn(
            index=index, id=f"{phase.name}/{number}/{speaker}", phase=phase.name, round=number, agent=speaker,
            name=self.scenario.agents[speaker].name, text=message.text, audience=message.audience, memory=memory,
            **answer.costs,
        )  # fmt: skip

    def _answer(self, memory: str, text: str, max_tokens: int) -> GeneratedText:
        """Prefill the new part of the prompt ``text``, generate, store the rows. A subclass may call a scheduler."""
        engine, start = self.memories.engine, time.perf_counter()
        prompt = self.memories.open(memory, text)
        logits = engine.extend(prompt.cache, prompt.new, ChunkSchedule()).logits.cpu()  # waits until the device is done
        computed = time.perf_counter()
        room = engine.info.max_positions - prompt.cache.next_position
        ids = engine.generate(prompt.cache, logits, min(max_tokens, room), self.stops)
        end = time.perf_counter()
        self.memories.finish(prompt, ids, persist=False)
        decoded = TokenText.of("", self.memories.coder)
        decoded.extend(ids, self.memories.coder)  # omits an incomplete last character, as the memory does
        return GeneratedText(
            text=decoded.text, kind=prompt.kind, origin=prompt.origin, kept=prompt.reused, new=len(prompt.new),
            generated=len(ids), ttft_ms=1e3 * (computed - start), decode_ms=1e3 * (end - computed),
        )  # fmt: skip


def stop_tokens(tokenizer: PreTrainedTokenizerBase, special: SpecialTokens) -> frozenset[int]:
    """Return the tokens that end a turn, which is one line: tokens with a newline, and all special tokens."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    return (special.ends | special.hidden).union(token for token, text in enumerate(texts) if "\n" in text)


def start_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the BOS token as a list; empty for models without one."""
    return [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
