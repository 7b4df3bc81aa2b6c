"""Long-memory probes put to the sessions of several methods over one engine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keep_agent.brain import make_method
from memory.encoder import make_encoder
from memory.session import MemorySession
from planners.formats import make_format
from planners.recall import Probe, make_probe

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from transformers import PreTrainedTokenizerBase

    from memory.engine.engine import Engine
    from memory.report import Prefill

SETUP = 12  # room for an answer, in tokens


@dataclass(frozen=True, slots=True)
class Cell:
    """Probes of one kind: what is asked, where the cue stands, and how many lines there are."""

    kind: str
    cue: str
    segments: int

    def probe(self, trial: int, seed: int) -> Probe:
        return make_probe(self.kind, self.segments, self.cue, random.Random(f"{seed}/{self}/{trial}"))


@dataclass(frozen=True, slots=True)
class Answer:
    """One method's answer to one probe, and what its question turn computed."""

    cell: Cell
    trial: int
    method: str
    right: bool
    memory_tokens: int
    prefill_tokens: float  # rows computed for the question, mean over the layers
    computed_ratio: float
    recomputed_ratio: float


class Prober:
    """Sessions by method name. Every probe begins with an empty memory."""

    def __init__(
        self, engine: Engine, tokenizer: PreTrainedTokenizerBase, configs: Mapping[str, DictConfig], quiet: int = 0
    ) -> None:
        """``quiet``: steps between the lines and the question, in which KEEP's groups may become static."""
        prompt = next(iter(configs.values())).prompt
        self._format = make_format(prompt.format, tokenizer, (), prompt.start)
        encoder, context = make_encoder(prompt.encoder), self._format.context()
        self._quiet = quiet
        self._sessions = {
            name: MemorySession(
                engine, make_method(config.memory), encoder, self._format.line, config.prompt.budget, context
            )
            for name, config in configs.items()
        }

    def ask(self, cell: Cell, trial: int, seed: int) -> Iterator[Answer]:
        """The answers of all methods to one probe."""
        probe = cell.probe(trial, seed)
        for name, session in self._sessions.items():
            prefill = self.prefill(session, probe)
            room = max(SETUP, 2 * len(self._format.line(probe.answer)))
            said = session.generate(prefill, room, self._format.stops())
            counts = prefill.counts
            yield Answer(
                cell,
                trial,
                name,
                self._format.decode(said).split() == probe.answer.split(),
                counts.memory_tokens,
                counts.token_layers / counts.layers,
                counts.computed_ratio,
                counts.recomputed_ratio,
            )

    def prefill(self, session: MemorySession, probe: Probe) -> Prefill:
        """Tell the lines, wait, and put the question."""
        session.reset()
        for fact in probe.facts:
            session.store.put(fact.id, "object", fact.text, fact.parent)
        front, question = (self._format.line(text) for text in (probe.front, probe.question))
        self._told_before(session, probe)
        for _ in range(self._quiet):
            session.advance()
        return session.prefill(probe.question, question, front_ids=front)

    def _told_before(self, session: MemorySession, probe: Probe) -> None:
        """Methods that harvest what they computed meet the lines once before the question."""
        assembly = session.method.construction.assembly
        if session.method.layout == "append":
            session.prefill("", self._format.line("\n"))
        elif assembly == "reuse":
            for fact in probe.facts:
                session.freeze(self._format.line(fact.text))


def ask_all(prober: Prober, cells: Sequence[Cell], trials: int, seed: int) -> Iterator[list[Answer]]:
    """The answers to every probe of every cell, probe by probe."""
    for cell in cells:
        for trial in range(trials):
            yield list(prober.ask(cell, trial, seed))
