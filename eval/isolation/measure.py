"""Measurements of lines that were encoded apart: deviation of their keys and values, attention, and right answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, ClassVar

import torch

from memory.loading.serial import Serial
from memory.prompt.layout import Layout, Unit, lay_out, place
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.full import Full
from memory.recompute.none import Nothing
from memory.stages import Capabilities, Probe, Recompute

if TYPE_CHECKING:
    from eval.isolation.texts import LineMemory, LineQuestion
    from memory.engine.transformers.engine import TransformersEngine
    from memory.kv_cache.block import KVBlock

Ids = list[int]
ROWS = 12  # first rows of a line whose deviation is measured one by one
EARLY = 1 / 3  # share of layers, after layer 0, in which the query's attention ranks the lines
ALONE, BOS, CONTEXT, PREAMBLE, NEIGHBOURS = "nothing", "bos", "context", "examples", "behind"


@dataclass(frozen=True)
class FixedLines:
    """Recompute stage that computes the given lines, and all new rows, from the first layer to the last."""

    lines: Sequence[int] = ()
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, repairs=True, by_mass=True)

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        selected = torch.zeros(len(layout.segments) + 1, dtype=torch.bool, device=layout.fresh.device)
        selected[list(self.lines)] = True  # the last entry is for rows of no segment
        return (layout.fresh | selected[layout.segment_of]).nonzero()[:, 0]

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        return active


@dataclass(frozen=True)
class QueryAttention(FixedLines):
    """Recompute stage that computes no stored row and records how the query's attention ranks the lines."""

    mean: list[torch.Tensor] = field(default_factory=list)  # by layer: (lines,), normalised to sum 1
    peak: list[torch.Tensor] = field(default_factory=list)
    on_first_rows: list[float] = field(default_factory=list)  # by layer: share of the attention to memory

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        mean, peak = probe.mass_from_query().double(), probe.peak_from_query().double()
        self.mean.append(mean / mean.sum())
        self.peak.append(peak / peak.sum())
        return active

    def ranking(self, kind: str) -> list[int]:
        """Return the lines in falling order of the early layers' summed attention; ``kind``: mean or peak."""
        layers = getattr(self, kind)
        return torch.stack(layers[1 : 1 + round(EARLY * len(layers))]).sum(0).argsort(descending=True).tolist()


@dataclass(frozen=True)
class Deviation:
    """Relative deviation of stored from recomputed rows, (layers, rows of a line): keys before RoPE, and values."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: how the lines were encoded, what was recomputed, and the outcome."""

    encoding: str
    repair: str
    question: int
    right: bool
    same: bool  # the answer of full recomputation
    divergence: float  # KL divergence from full recomputation over the candidates, nats
    computed: float


class Isolation:
    """One memory of lines behind a context prefix, in the engine of a model.

    :param examples: example lines in the context prefix, after BOS and the context line
    """

    def __init__(
        self, engine: TransformersEngine, memory: LineMemory, encode: Callable[[str], Ids], bos: Ids, examples: int = 0
    ) -> None:
        self.engine, self.memory, self.bos, self._encode = engine, memory, bos, encode
        self.context = self._prefix(examples)
        self.lines = list(map(encode, memory.lines))
        self.context_block = self._block(self.context)
        self._full: dict[LineQuestion, tuple[torch.Tensor, float]] = {}  # scores and computed ratio, recomputing all
        self.units = [Unit.of("segment", [(f"line_{i}", line)]) for i, line in enumerate(self.lines)]

    def _block(self, prefix: Ids) -> KVBlock | None:
        return self.engine.encode([(None, prefix)])[0] if prefix else None

    def _prefix(self, examples: int = 0) -> Ids:
        """Return BOS, the context line and the first ``examples`` example lines."""
        return self.bos + self._encode(self.memory.context + "".join(self.memory.examples[:examples]))

    def encode(self, encoding: str) -> list[KVBlock]:
        """Encode every line after one of five texts.

        ``nothing``, ``bos``, ``context``: BOS and the context line; ``examples N``: these and N examples of lines;
        ``behind N``: BOS, the context line and the N lines before the line.
        """
        name, _, number = encoding.partition(" ")
        if name != NEIGHBOURS:
            prefix = self._block({ALONE: [], BOS: self.bos}.get(name, self._prefix(int(number or 0))))
            return self.engine.encode([(prefix, line) for line in self.lines])
        blocks = []
        for place_, line in enumerate(self.lines):
            before = chain.from_iterable(self.lines[max(0, place_ - int(number)) : place_])
            blocks += self.engine.encode([(self._block([*self._prefix(), *before]), line)])
        return blocks

    def deviation(self, blocks: Sequence[KVBlock], skipped: int) -> Deviation:
        """Compare stored lines, without the first ``skipped``, with those of one pass over the prompt's memory."""
        whole = self.engine.encode([(self.context_block, list(chain.from_iterable(self.lines)))])[0]
        bounds = list(pairwise(accumulate(map(len, self.lines), initial=0)))

        def measure(kind: str) -> torch.Tensor:
            shortest = min(ROWS, *(stop - start for start, stop in bounds[skipped:]))
            wrong = right = torch.zeros(())
            for block, (start, _) in list(zip(blocks, bounds, strict=True))[skipped:]:
                rows = slice(start, start + shortest)
                due = torch.stack([layer[:, rows] for layer in getattr(whole, kind)]).double()
                stored = torch.stack([layer[:, :shortest] for layer in getattr(block, kind)]).double()
                wrong, right = wrong + (stored - due).pow(2).sum((1, 3)), right + due.pow(2).sum((1, 3))
            return (wrong / right).sqrt()

        return Deviation(measure("k"), measure("v"))

    def answers(
        self, encoding: str, blocks: Sequence[KVBlock], questions: Sequence[LineQuestion], repairs: Sequence[str],
        rng: random.Random,
    ) -> Iterator[Answer]:  # fmt: skip
        """Answer questions after each repair (see `make_repair`); ``rng`` draws random lines."""
        placements = place(self.units, len(self.context), blocks, [True] * len(blocks))
        for number, question in enumerate(questions):
            query, candidates = self._encode(question.text), [self._encode(f" {text}") for text in question.candidates]
            layout = lay_out(self.context, placements, query, True, self.engine.device)
            attention = QueryAttention()
            self.engine.prefill(layout, attention, Serial(), context_block=self.context_block)
            if question not in self._full:  # it does not depend on the stored rows
                self._full[question] = self._scores(layout, Full(), candidates)
            full, _ = self._full[question]
            for repair in repairs:
                stage = make_repair(repair, attention, question.line, len(blocks), rng)
                scores, computed = self._full[question] if repair == "full" else self._scores(layout, stage, candidates)
                divergence = float((full.exp() * (full - scores)).sum())
                best = int(scores.argmax())
                yield Answer(encoding, repair, number, best == 0, best == int(full.argmax()), divergence, computed)

    def _scores(self, layout: Layout, stage: Recompute, candidates: Sequence[Ids]) -> tuple[torch.Tensor, float]:
        """Return the candidates' log-probabilities, normalised over the candidates, and the computed ratio."""
        result = self.engine.prefill(layout, stage, Serial(), context_block=self.context_block)
        scores = self.engine.score(result.cache, candidates).scores
        return scores.double().log_softmax(-1), result.trace.computed_ratio


def make_repair(name: str, attention: QueryAttention, answer_line: int, lines: int, rng: random.Random) -> Recompute:
    """Make the recompute stage of a repair.

    ``nothing`` and ``full`` recompute no line and all lines; ``named``: the line with the answer; ``random N``: N lines
    with this one among them; ``first K``: the first K rows of every line; ``peak N`` and ``mean N``: the N lines that
    the query's attention ranks first.
    """
    kind, _, number = name.partition(" ")
    if kind in ("nothing", "full"):
        return Nothing() if kind == "nothing" else Full()
    if kind == "first":
        return FirstTokens(int(number))
    if kind == "named":
        return FixedLines([answer_line])
    if kind == "random":
        return FixedLines(
            [answer_line, *rng.sample([line for line in range(lines) if line != answer_line], int(number) - 1)]
        )
    return FixedLines(attention.ranking(kind)[: int(number)])
