"""Prober: runs long-memory probes in one memory session per method; all sessions share one engine."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping

from omegaconf import DictConfig

from eval.recall.cells import Cell, Probe, ProbeAnswer, ProbeMaker
from eval.recall.ruler_probes import TextFormat
from keep_agent.config.planner_factory import make_method
from keep_agent.errors import CapacityError, ConfigError
from memory.engine.base import Engine
from memory.prompt.report import Prefill
from memory.segments.sentence_encoder import make_encoder
from memory.session import MemorySession
from planners.prompts.formats import Format
from planners.training.recall_probes import filler, make_probe

CHUNK = 200  # filler lines per turn
PIECE = 8  # tokens after which an answer is graded


class Prober:
    """Memory sessions by method name, for one family of probes. Every probe starts and ends with an empty memory."""

    def __init__(
        self, engine: Engine, format: Format | TextFormat, configs: Mapping[str, DictConfig], quiet: int = 0,
        make: ProbeMaker = make_probe, filler_lines: int = 0,
    ) -> None:  # fmt: skip
        """Create one session per method.

        :param quiet: steps between the lines and the question, in which KEEP's groups may become static
        :param filler_lines: irrelevant lines stored before the question; with them the memory exceeds a prompt's
            budget, so that every method must retrieve stored blocks
        """
        self._budget = max(config.prompt.budget for config in configs.values())
        self._format, self._make, self._quiet, self._filler_lines = format, make, quiet, filler_lines
        self._positions = engine.info.max_positions
        encoder, context = make_encoder(next(iter(configs.values())).prompt.encoder), format.context()
        self._sessions = {
            name: MemorySession(engine, make_method(config.memory), encoder, format.line, config.prompt.budget, context)
            for name, config in configs.items()
        }
        unfit = [name for name, session in self._sessions.items() if not session.method.capabilities.latent]
        if filler_lines and unfit:
            raise ConfigError(
                f"--filler={filler_lines} needs methods that retrieve stored blocks, such as memart, not {unfit[0]}; "
                "use other --methods, or omit it"
            )

    def check(self, cell: Cell, trial: int, seed: int) -> Probe:
        """Return a trial's probe. Raises `CapacityError` or `ConfigError` if probe and answer do not fit."""
        probe = cell.probe(trial, seed, self._make)
        for name in self._sessions:
            self._check_pool(name, probe)
        lengths = sorted(self._length(fact.text) for fact in probe.facts)[-self._budget :]
        ends = len(self._format.context()) + self._length(probe.front) + self._length(probe.question)
        tokens = ends + sum(lengths) + probe.max_answer_tokens(self._length)
        if tokens > self._positions:
            raise CapacityError(
                f"a {cell.kind} probe takes {tokens} tokens including its answer ({len(lengths)} segments); the model "
                f"has {self._positions} positions; use fewer --segments or a smaller --segment-tokens"
            )
        return probe

    @property
    def methods(self) -> list[str]:
        return list(self._sessions)

    def ask(self, cell: Cell, trial: int, seed: int, methods: Collection[str] | None = None) -> Iterator[ProbeAnswer]:
        """Yield the answers of ``methods`` (default: all) to one probe, in the order of the configs."""
        probe = self.check(cell, trial, seed)  # probes of a cell differ in length
        for name in self._sessions:
            if methods is None or name in methods:
                yield self._answer(cell, trial, name, probe)

    def _answer(self, cell: Cell, trial: int, name: str, probe: Probe) -> ProbeAnswer:
        session = self._sessions[name]
        try:
            prefill = self.prefill(session, probe)
            grade = self._grade(session, prefill, probe)
        finally:  # free this method's memory before the next method runs
            session.reset()
            if _can_pin(session):  # pinned blocks survive a reset, and outlast the next probe's lines
                for fact in probe.facts:
                    session.unpin(self._format.line(fact.text))
        counts = prefill.counts
        sizes = counts.memory_tokens, counts.token_layers / counts.layers
        return ProbeAnswer(cell, trial, name, grade, *sizes, counts.computed_ratio, counts.recomputed_ratio)

    def _grade(self, session: MemorySession, prefill: Prefill, probe: Probe) -> float:
        """Decode the answer greedily and grade it. It ends early once no further token can lower the grade."""
        answer: list[int] = []
        most, ends = probe.max_answer_tokens(self._length), False
        while not ends:
            count = min(PIECE, most - len(answer)) if probe.grade_never_falls else most
            piece = session.generate(prefill, count, self._format.stops(), keep=True)
            answer += piece
            grade = probe.grade(self._format.decode(answer))
            ends = len(piece) < count or len(answer) >= most or grade == 1
        return grade

    def _length(self, text: str) -> int:
        return len(self._format.line(text))

    def prefill(self, session: MemorySession, probe: Probe) -> Prefill:
        """Store the lines, run the quiet steps, and prefill the question."""
        session.reset()
        for fact in probe.facts:
            session.store.put(fact.id, "object", fact.text, fact.parent)
        front, question = (self._format.line(text) for text in (probe.front, probe.question))
        if session.method.layout == "append":  # an earlier prompt stores the lines
            session.prefill("", self._format.line("\n"))
        elif _can_pin(session):
            for fact in probe.facts:
                session.pin(self._format.line(fact.text))
        lines = filler(self._filler_lines, random.Random(0))
        for start in range(0, len(lines), CHUNK):
            session.advance()
            for number, text in enumerate(lines[start : start + CHUNK], start):
                session.store.put(f"filler_{number}", "object", text)
            session.prefill("", self._format.line("\n"))
        for _ in range(self._quiet):
            session.advance()
        return session.prefill(probe.question, question, front_ids=front)

    def _check_pool(self, name: str, probe: Probe) -> None:
        """Raise `ConfigError` if the method's pool cannot hold all lines, since it would silently evict some."""
        session = self._sessions[name]
        if not _can_pin(session):
            return
        pool, lines = session.method.pinned, {tuple(self._format.line(fact.text)) for fact in probe.facts}
        nbytes = session.engine.info.bytes_per_token * sum(map(len, lines))
        if nbytes > pool.watermark * pool.capacity_bytes:
            raise ConfigError(
                f"{name} stores the lines of a probe one by one, {nbytes} bytes, more than {pool.watermark:g} of its "
                f"pool of {pool.capacity_bytes}; add +memory.pinned.capacity_bytes={math.ceil(nbytes / pool.watermark)}"
                " or more to the method, or use fewer --segments"
            )


def _can_pin(session: MemorySession) -> bool:
    """Return whether the method looks up lines by token ids, so that each can be stored before the question."""
    return session.method.layout != "append" and session.method.construction.capabilities.pins
