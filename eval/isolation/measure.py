"""Measurements of lines that were encoded apart: deviation of their keys and values, attention, and right answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING

import torch

from eval.isolation.stages import LEAST_LAYERS, MEAN, PEAK, QueryAttention, make_repair
from eval.isolation.texts import PARAGRAPH
from keep_agent.errors import ConfigError
from memory.kv_cache.block import KVBlock
from memory.loading.serial import Serial
from memory.prompt.layout import Layout, Unit, lay_out, place
from memory.recompute.full import Full
from memory.recompute.none import Nothing
from memory.stages import Recompute

if TYPE_CHECKING:
    from eval.isolation.texts import LineMemory, LineQuestion
    from memory.engine.transformers.engine import TransformersEngine

Ids = list[int]
ROWS = 12  # first rows of a line whose deviation is measured one by one
ALONE, BOS, CONTEXT, POSITION, PROSE, PREAMBLE, NEIGHBOURS, PROMPT = (
    "nothing", "bos", "context", "position", "prose", "examples", "behind", "prompt",
)  # fmt: skip


@dataclass(frozen=True)
class Deviation:
    """Relative deviation of stored from recomputed rows, (layers, rows of a line): keys before RoPE, and values."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: what was recomputed, and the outcome."""

    repair: str
    question: int
    right: bool
    same: bool  # the answer of full recomputation
    divergence: float  # KL divergence from full recomputation over the candidates, nats
    computed: float


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of one question's tokens to stored lines before any repair."""

    shares: torch.Tensor  # (layers, 3), see `QueryAttention.shares`
    ranks: tuple[int, int]  # ranks of the named line, from 1, by mean and by maximum, see `QueryAttention.ranking`


class Isolation:
    """One memory of lines behind a context prefix, in the engine of a model.

    :param examples: example lines in the context prefix, after BOS and the context line
    :raises ConfigError: the model has fewer than `LEAST_LAYERS` layers
    """

    def __init__(
        self, engine: TransformersEngine, memory: LineMemory, encode: Callable[[str], Ids], bos: Ids, examples: int = 0
    ) -> None:
        if engine.info.layers < LEAST_LAYERS:
            raise ConfigError(f"a model of {engine.info.layers} layers is too shallow; use {LEAST_LAYERS} or more")
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
        """Encode every line after one of these texts.

        ``nothing``, ``bos``, ``context``: BOS and the context line; ``position``: the same, at the positions that the
        line has in the prompt; ``prose``: these and a paragraph; ``examples N``: these and N examples of lines;
        ``behind N``: BOS, the context line and the N lines before the line; ``prompt``: all lines before it.
        """
        name, _, number = encoding.partition(" ")
        if name == POSITION:
            return self._at_positions()
        if name == PROMPT:
            return self._cut(self._whole())
        if name == NEIGHBOURS:
            return list(chain.from_iterable(map(partial(self._after_neighbours, int(number)), range(len(self.lines)))))
        prefixes = {ALONE: [], BOS: self.bos, PROSE: [*self._prefix(), *self._encode(PARAGRAPH)]}
        prefix = self._block(prefixes.get(name, self._prefix(int(number or 0))))
        return self.engine.encode([(prefix, line) for line in self.lines])

    def _after_neighbours(self, neighbours: int, line: int) -> list[KVBlock]:
        before = chain.from_iterable(self.lines[max(0, line - neighbours) : line])
        return self.engine.encode([(self._block([*self._prefix(), *before]), self.lines[line])])

    def _starts(self) -> list[int]:
        """Return the position of every line's first row in the prompt, and the position after the last line."""
        return list(accumulate(map(len, self.lines), initial=len(self.context)))

    def _whole(self) -> KVBlock:
        """Compute all lines in one pass, as full recomputation does."""
        return self.engine.encode([(self.context_block, list(chain.from_iterable(self.lines)))])[0]

    def _cut(self, whole: KVBlock) -> list[KVBlock]:
        bounds = pairwise(start - len(self.context) for start in self._starts())
        return [KVBlock("", whole.k[:, :, start:stop], whole.v[:, :, start:stop]) for start, stop in bounds]

    def _at_positions(self) -> list[KVBlock]:
        """Encode the lines after BOS and the context line, as far from these as they are in the prompt."""
        prefix, device = self._prefix(), self.engine.device
        context, blocks = self._block(prefix), []
        for start, line in zip(self._starts(), self.lines, strict=False):
            layout = lay_out(prefix, [], line, True, device)
            positions = torch.arange(start, start + len(line), device=device)
            layout = replace(layout, positions=torch.cat([layout.positions[: len(prefix)], positions]))
            result = self.engine.prefill(layout, Nothing(), Serial(), context_block=context, keep_raw=True)
            blocks.append(self.engine.harvest(result.cache, range(len(prefix), layout.rows)))
        return blocks

    def deviation(self, blocks: Sequence[KVBlock], skipped: int) -> Deviation:
        """Compare stored lines, without the first ``skipped``, with those of one pass over the prompt's memory."""
        pairs = list(zip(blocks, self._cut(self._whole()), strict=True))[skipped:]
        rows = min(ROWS, *(stored.k.shape[2] for stored, _ in pairs))

        def measure(kind: str) -> torch.Tensor:
            wrong = right = torch.zeros(())
            for stored, due in pairs:
                due_rows, rows_ = (getattr(block, kind)[:, :, :rows].double() for block in (due, stored))
                wrong, right = wrong + (rows_ - due_rows).pow(2).sum((1, 3)), right + due_rows.pow(2).sum((1, 3))
            return (wrong / right).sqrt()

        return Deviation(measure("k"), measure("v"))

    def answers(
        self, blocks: Sequence[KVBlock], questions: Sequence[LineQuestion], repairs: Sequence[str], rng: random.Random
    ) -> Iterator[tuple[list[Answer], Attention]]:
        """Answer each question after every repair (see `make_repair`); ``rng`` draws random lines."""
        placements = place(self.units, len(self.context), blocks, [True] * len(blocks))
        for number, question in enumerate(questions):
            query, candidates = self._encode(question.text), [self._encode(f" {text}") for text in question.candidates]
            layout = lay_out(self.context, placements, query, True, self.engine.device)
            attention = QueryAttention(layout)
            known = {"nothing": self._scores(layout, attention, candidates)}
            if question not in self._full:  # it does not depend on the stored rows
                self._full[question] = self._scores(layout, Full(), candidates)
            known["full"] = self._full[question]
            full, _ = known["full"]
            answers = []
            for repair in repairs:
                stage = make_repair(repair, attention, question.line, len(blocks), rng)
                scores, computed = known.get(repair) or self._scores(layout, stage, candidates)
                divergence = float((full.exp() * (full - scores)).sum())
                best = int(scores.argmax())
                same = best == int(full.argmax())
                answers.append(Answer(repair, number, best == 0, same, divergence, computed))
            mean, peak = (attention.ranking(kind).index(question.line) + 1 for kind in (MEAN, PEAK))
            yield answers, Attention(attention.shares(question.line), (mean, peak))

    def _scores(self, layout: Layout, stage: Recompute, candidates: Sequence[Ids]) -> tuple[torch.Tensor, float]:
        """Return the candidates' log-probabilities, normalised over the candidates, and the computed ratio."""
        result = self.engine.prefill(layout, stage, Serial(), context_block=self.context_block)
        scores = self.engine.score(result.cache, candidates).scores
        return scores.double().log_softmax(-1), result.trace.computed_ratio
