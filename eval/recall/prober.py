"""Long-memory probes put to the sessions of several methods over one engine."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from eval.recall.cells import Answer, Cell, Make, Probe
from keep_agent.config.planner_factory import make_method
from keep_agent.errors import CapacityError, ConfigError
from memory.segments.sentence_encoder import make_encoder
from memory.session import MemorySession
from planners.training.recall_probes import filler, make_probe

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from memory.engine.base import Engine
    from memory.prompt.report import Prefill


class Format(Protocol):
    """How the texts of a probe become token ids; a part of `planners.prompts.formats.Format`."""

    def context(self) -> list[int]: ...
    def line(self, text: str) -> list[int]: ...
    def stops(self) -> set[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


CHUNK = 200  # lines of filler in a turn


class Prober:
    """Sessions by method name, for probes of one family. Every probe begins and ends with an empty memory."""

    def __init__(
        self,
        engine: Engine,
        format: Format,
        configs: Mapping[str, DictConfig],
        quiet: int = 0,
        make: Make = make_probe,
        aside: int = 0,
    ) -> None:
        """``quiet``: steps between the lines and the question, in which KEEP's groups may become static.

        ``aside``: lines told between them that are beside the question. They are more than a prompt may hold, so all
        methods must be such as choose among stored blocks.
        """
        self._budget = max(config.prompt.budget for config in configs.values())
        self._format, self._make, self._quiet = format, make, quiet
        self._positions = engine.info.max_positions
        encoder, context = make_encoder(next(iter(configs.values())).prompt.encoder), format.context()
        self._sessions = {
            name: MemorySession(engine, make_method(config.memory), encoder, format.line, config.prompt.budget, context)
            for name, config in configs.items()
        }
        self._aside = aside
        whole = [name for name, one in self._sessions.items() if not one.method.capabilities.latent]
        if aside and whole:
            raise ConfigError(
                f"--filler={aside} is told to methods that choose among stored blocks, such as memart, not {whole[0]}"
            )

    def check(self, cell: Cell, seed: int) -> None:
        """Does the first probe of a cell fit, with its answer? Raises `CapacityError` or `ConfigError` if not."""
        self._check(cell, cell.probe(0, seed, self._make))

    def _check(self, cell: Cell, probe: Probe) -> None:
        for name in self._sessions:
            self._check_pool(name, probe)
        lengths = sorted(self._length(fact.text) for fact in probe.facts)[-self._budget :]
        ends = len(self._format.context()) + self._length(probe.front) + self._length(probe.question)
        tokens = ends + sum(lengths) + probe.room(self._length)
        if tokens > self._positions:
            raise CapacityError(
                f"a {cell.kind} probe takes {tokens} tokens with its answer ({len(lengths)} segments), but the model "
                f"has {self._positions} positions; use fewer --segments or a smaller --segment-tokens"
            )

    @property
    def methods(self) -> list[str]:
        return list(self._sessions)

    def ask(self, cell: Cell, trial: int, seed: int, methods: Collection[str] | None = None) -> Iterator[Answer]:
        """The answers of all ``methods`` to one probe, in the order in which they were configured."""
        probe = cell.probe(trial, seed, self._make)
        self._check(cell, probe)  # documents differ in length
        for name in self._sessions if methods is None else [name for name in self._sessions if name in methods]:
            yield self._answer(cell, trial, name, probe)

    def _answer(self, cell: Cell, trial: int, name: str, probe: Probe) -> Answer:
        session = self._sessions[name]
        try:
            prefill = self.prefill(session, probe)
            said = session.generate(prefill, probe.room(self._length), self._format.stops())
        finally:
            self._forget(session, probe)  # so that there is only one probe's and one method's memory at a time
        counts = prefill.counts
        return Answer(
            cell,
            trial,
            name,
            probe.grade(self._format.decode(said)),
            counts.memory_tokens,
            counts.token_layers / counts.layers,
            counts.computed_ratio,
            counts.recomputed_ratio,
        )

    def _length(self, text: str) -> int:
        return len(self._format.line(text))

    def prefill(self, session: MemorySession, probe: Probe) -> Prefill:
        """Tell the lines, wait, and put the question."""
        session.reset()
        for fact in probe.facts:
            session.store.put(fact.id, "object", fact.text, fact.parent)
        front, question = (self._format.line(text) for text in (probe.front, probe.question))
        self._told_before(session, probe)
        self._tell_filler(session)
        for _ in range(self._quiet):
            session.advance()
        return session.prefill(probe.question, question, front_ids=front)

    def _told_before(self, session: MemorySession, probe: Probe) -> None:
        """Methods that harvest what they computed meet the lines once before the question."""
        if session.method.layout == "append":
            session.prefill("", self._format.line("\n"))
        elif _pins(session):
            for fact in probe.facts:
                session.pin(self._format.line(fact.text))

    def _forget(self, session: MemorySession, probe: Probe) -> None:
        """Delete pinned lines, which outlive a session's reset, and would push the next probe's lines out."""
        session.reset()
        if _pins(session):
            for fact in probe.facts:
                session.unpin(self._format.line(fact.text))

    def _check_pool(self, name: str, probe: Probe) -> None:
        """A pool too small would drop lines without a word, and they would be computed anew. Raises `ConfigError`."""
        session = self._sessions[name]
        if not _pins(session):
            return
        pool, lines = session.method.pinned, {tuple(self._format.line(fact.text)) for fact in probe.facts}
        nbytes = session.engine.info.bytes_per_token * sum(map(len, lines))
        if nbytes > pool.watermark * pool.capacity_bytes:
            raise ConfigError(
                f"{name} stores the lines of a probe one by one, {nbytes} bytes, more than {pool.watermark:g} of its "
                f"pool of {pool.capacity_bytes}; add +memory.pinned.capacity_bytes={math.ceil(nbytes / pool.watermark)}"
                " or more to the method, or use fewer --segments"
            )

    def _tell_filler(self, session: MemorySession) -> None:
        """In turns of `CHUNK` lines."""
        lines = filler(self._aside, random.Random(0))
        for start in range(0, len(lines), CHUNK):
            session.advance()
            for number, text in enumerate(lines[start : start + CHUNK], start):
                session.store.put(f"filler_{number}", "object", text)
            session.prefill("", self._format.line("\n"))


def _pins(session: MemorySession) -> bool:
    """Is a line found by its tokens, so that it may be stored by itself before the question?"""
    return session.method.layout != "append" and session.method.construction.capabilities.pins
