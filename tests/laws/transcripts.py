"""Transcript that runs turn by turn through the assembler and the engine, with the visibility of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch

from memory.construction.base import Context, PreparedPrompt, SessionResources
from memory.construction.turns import Turns, TurnsBuilder
from memory.engine.base import ChunkSchedule, Engine, PrefillResult
from memory.engine.transformers.cache_providers import PagedCacheProvider
from memory.kv_cache.paged import PagedCache
from memory.prompt.layout import Unit
from memory.prompt.report import StepTimer
from memory.retention.h2o import H2O
from memory.retention.query_memory import QueryMemory
from memory.retention.residual_head import ResidualHead, save_head
from memory.retention.snapkv import SnapKV
from memory.retention.streaming import Streaming
from memory.stages import Retention
from tests.laws.prompts import relative, tokens
from tests.references.isolated import dense_mask

CONTEXT = tuple(tokens(5, 40))
BUDGET = 30
CANDIDATES = [tokens(1, 80), tokens(5, 81), tokens(5, 81)[:3] + tokens(2, 82), tokens(30, 83)]  # 30 exceeds the window
EVICTING = ("streaming", "h2o", "snapkv", "rule", "residual")


@dataclass(frozen=True)
class Turn:
    """Turn of new memory, a query whose first ``instruction`` tokens are the instruction, and an answer."""

    news: tuple[int, ...]
    query: tuple[int, ...]
    instruction: int
    answer: tuple[int, ...]


STORY = [
    Turn(tuple(tokens(a, 100 + a)), tuple(tokens(b, 200 + a)), c, tuple(tokens(d, 300 + a)))
    for a, b, c, d in [(34, 6, 3, 2), (9, 5, 0, 3), (14, 8, 0, 0), (0, 7, 4, 1), (41, 4, 0, 2), (3, 9, 0, 2)]
]


def random_head(head_dim: int, folder: Path, seed: int = 0) -> str:
    """Write a residual head whose weights are all random and effective; return the file."""
    head = ResidualHead(head_dim)
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        parameter.data.normal_(std=0.3, generator=generator)
    head.center.normal_(std=0.3, generator=generator)
    head.spread.uniform_(0.5, 2, generator=generator)
    head.alpha.data.fill_(0.03)  # small, so that the rule also affects the scores
    path = folder / f"head-{head_dim}-{seed}.safetensors"
    save_head(head, path, {})
    return str(path)


def policy(name: str, head: str) -> Retention:
    return {
        "streaming": Streaming(BUDGET, sinks=2),
        "h2o": H2O(BUDGET),
        "snapkv": SnapKV(BUDGET, window=6, kernel=3),
        "rule": QueryMemory(BUDGET),
        "residual": QueryMemory(BUDGET, head=head),
    }[name]


class Session:
    """Session of one transcript; checks the integrity of the block pool after every operation."""

    def __init__(
        self,
        engine: Engine,
        retention: Retention,
        construction: Turns | None = None,
        chunking: ChunkSchedule | None = None,
        provider: PagedCacheProvider | None = None,
    ) -> None:
        construction = construction or Turns(block_size=4)
        self.engine, self.retention, self.chunking = engine, retention, chunking
        self.provider = provider or engine.cache_provider(None, construction.block_size, construction.prefix_tokens)
        method = SimpleNamespace(retention=retention, cache_provider=lambda engine: self.provider)
        self.builder = TurnsBuilder(SessionResources(engine, method, None, None), construction)
        self.ids: list[int] = []
        self.transcript: list[int] = []  # without the context
        self.visible = torch.zeros(0, 0, dtype=torch.bool)

    @property
    def cache(self) -> PagedCache:
        return self.builder.cache

    def prefill(self, turn: Turn) -> tuple[PreparedPrompt, PrefillResult]:
        """Compute the turn's rows after the live rows."""
        self.transcript += turn.news
        self.builder.mark_instruction(turn.instruction)
        unit = Unit("prefix", tuple(self.transcript), ())
        prompt = self.builder.build([unit], turn.query, Context(CONTEXT), StepTimer())
        self.provider.pool.check_integrity()
        self._see(prompt)
        new = prompt.layout.token_ids[prompt.prefix :]
        result = self.engine.extend(prompt.cache, new, self.chunking)
        self.provider.pool.check_integrity()
        self.transcript += turn.query
        return prompt, result

    def evict(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        self.builder.store_rows(prompt, result)
        self.provider.pool.check_integrity()

    def turn(self, turn: Turn) -> torch.Tensor:
        """Run a turn with eviction and answer; return the logits (vocab,) after the query."""
        prompt, result = self.prefill(turn)
        self.evict(prompt, result)
        self.answer(turn)
        return result.logits[0]

    def answer(self, turn: Turn) -> None:
        self.transcript += turn.answer

    def dense(self, more: list[int] | None = None) -> torch.Tensor:
        """Return (rows, vocab) logits of transformers' own forward; ``more`` tokens follow the rows live now."""
        ids, rows = [*self.ids, *(more or ())], torch.arange(len(self.ids) + len(more or ()))
        visible = extend_mask(self.visible, self.cache.positions.cpu(), rows.numel())
        mask = dense_mask(self.engine.plain, visible, rows, rows)
        return self.engine.forward_plain(torch.tensor(ids), mask)

    def check(self, result: PrefillResult) -> None:
        assert relative(result.logits[0], self.dense()[-1]) < 1e-5

    def _see(self, prompt: PreparedPrompt) -> None:
        self.ids = prompt.layout.token_ids.tolist()
        before = self.visible[: prompt.prefix, : prompt.prefix]
        if before.shape[0] < prompt.prefix:  # the prefix is exact rows of another session
            before = torch.ones(prompt.prefix, prompt.prefix, dtype=torch.bool).tril()
        self.visible = extend_mask(before, prompt.cache.positions.cpu(), len(self.ids))


def extend_mask(visible: torch.Tensor, live: torch.Tensor, rows: int) -> torch.Tensor:
    """Extend the mask ``visible`` to ``rows`` rows; new rows see the ``live`` rows and the earlier new rows."""
    old = visible.shape[0]
    new = torch.zeros(rows, rows, dtype=torch.bool)
    new[:old, :old] = visible
    new[old:, live[live < old]] = True
    new[old:, old:] = torch.ones(rows - old, rows - old, dtype=torch.bool).tril()
    return new
