"""Score many continuations at once: a token trie behind the prompt, a tree mask, one forward."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from keep_agent.errors import ConfigError
from memory.engine.attention import Pass
from memory.engine.cache import WorkingCache
from memory.engine.decoder import Decoder
from memory.engine.masks import bias_of, tree_plan
from memory.engine.trace import ScoreResult

Candidates = tuple[tuple[int, ...], ...]
KEPT_BYTES = 64 << 20  # of the plans of sets seen last
TOGETHER = 2048  # tokens of candidates in one forward: the mask grows with their square
HEAD_ROWS = 64  # nodes whose logits are made at once


@dataclass(frozen=True)
class TriePlan:
    """A candidate set as a trie. Only nodes with children are computed: a last token needs no logits of its own."""

    tokens: torch.Tensor  # (nodes,)
    depth: torch.Tensor  # (nodes,) 0 for first tokens
    ancestry: torch.Tensor  # (nodes, nodes) bias: 0 on the node's path, itself included
    parent: torch.Tensor  # (all tokens,) whose logits predict the token: 0 the prompt's end, i + 1 node i
    token: torch.Tensor  # (all tokens,)
    candidate: torch.Tensor  # (all tokens,) which candidate the token belongs to
    lengths: torch.Tensor  # (candidates,)
    levels: int  # positions that the nodes take behind the prompt


def build_trie(candidates: Candidates, dtype: torch.dtype, device: torch.device) -> TriePlan:
    """Plan of a candidate set.

    :raises ConfigError: no candidates, or one without tokens.
    """
    if not candidates or not all(candidates):
        raise ConfigError("scoring needs at least one candidate, and every candidate at least one token.")
    nodes: dict[tuple[int, ...], int] = {(): 0}
    for candidate in candidates:
        for end in range(1, len(candidate)):
            nodes.setdefault(candidate[:end], len(nodes))
    paths = list(nodes)[1:]
    parents = [nodes[candidate[:end]] for candidate in candidates for end in range(len(candidate))]
    owners = [number for number, candidate in enumerate(candidates) for _ in candidate]

    def tensor(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    visible = torch.zeros(len(paths), len(paths), dtype=torch.bool)
    pairs = [(row, nodes[path[:end]] - 1) for row, path in enumerate(paths) for end in range(1, len(path) + 1)]
    if pairs:
        rows, columns = torch.tensor(pairs).T
        visible[rows, columns] = True
    return TriePlan(
        tokens=tensor([path[-1] for path in paths]),
        depth=tensor([len(path) - 1 for path in paths]),
        ancestry=bias_of(visible.to(device), dtype),
        parent=tensor(parents),
        token=tensor([token for candidate in candidates for token in candidate]),
        candidate=tensor(owners),
        lengths=tensor([len(candidate) for candidate in candidates]),
        levels=max(map(len, candidates)) - 1,
    )


class Scorer:
    """Scores candidate sets; keeps the plans of the sets seen last."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._plans: OrderedDict[Candidates, TriePlan] = OrderedDict()

    def score(self, cache: WorkingCache, candidates: Sequence[Sequence[int]], reduce: str = "sum") -> ScoreResult:
        """Log-likelihood of each candidate behind the prompt in ``cache``, which is left as it was.

        Sets of more than `TOGETHER` tokens take several forwards.

        :param reduce: sum or mean over a candidate's tokens
        """
        if reduce not in ("sum", "mean"):
            raise ConfigError(f"score reduce={reduce!r} is unknown; use sum or mean.")
        if cache.logits is None:
            raise ConfigError("candidates can only be scored behind a prompt: prefill one first.")
        parts = [self._score(cache, group, reduce) for group in _groups(tuple(map(tuple, candidates)))]
        return ScoreResult(torch.cat([part.scores for part in parts]), sum(part.computed_tokens for part in parts))

    def _score(self, cache: WorkingCache, candidates: Candidates, reduce: str) -> ScoreResult:
        plan = self._plan(candidates)
        likely = cache.logits.new_empty(plan.token.numel())
        for first, logits in self._logits(cache, plan):
            told = (plan.parent >= first) & (plan.parent < first + logits.shape[0])
            rows = plan.parent[told] - first
            likely[told] = logits[rows, plan.token[told]] - logits.logsumexp(-1)[rows]
        sums = likely.new_zeros(plan.lengths.numel()).index_add_(0, plan.candidate, likely)
        return ScoreResult(sums / plan.lengths if reduce == "mean" else sums, plan.tokens.numel())

    def _plan(self, candidates: Candidates) -> TriePlan:
        plan = self._plans.pop(candidates, None)
        if plan is None:
            plan = build_trie(candidates, self._decoder.spec.dtype, self._decoder.device)
        self._plans[candidates] = plan
        while len(self._plans) > 1 and sum(kept.ancestry.nbytes for kept in self._plans.values()) > KEPT_BYTES:
            self._plans.popitem(last=False)
        return plan

    def _logits(self, cache: WorkingCache, plan: TriePlan) -> Iterator[tuple[int, torch.Tensor]]:
        """Numbers of first nodes, the prompt's end being 0, and logits (nodes, vocab) from there on, float32 or finer.

        Some at a time: those of all nodes would take more memory than the model's layers.
        """
        yield 0, cache.logits
        if not plan.tokens.numel():
            return
        hidden = self._hidden(cache, plan)
        for first in range(0, hidden.shape[0], HEAD_ROWS):
            logits = self._decoder.head(hidden[first : first + HEAD_ROWS])
            yield first + 1, logits.to(cache.logits.dtype)

    def _hidden(self, cache: WorkingCache, plan: TriePlan) -> torch.Tensor:
        """(nodes, hidden) behind the last layer; the nodes' keys go behind the prompt and are forgotten."""
        decoder, nodes, start = self._decoder, plan.tokens.numel(), cache.length
        cache.reserve(nodes)
        places = plan.depth + cache.next_position
        state = Pass(
            cache=cache,
            rows=slice(start, start + nodes),
            visible=cache.end_at(start + nodes),
            angles=decoder.rope.at(places, cache.next_position + plan.levels),
            plan=tree_plan(plan.ancestry, plan.depth, cache.positions, cache.next_position, decoder.spec.dtype),
            rope_keys=decoder.spec.rope_keys,
        )
        return decoder.run(decoder.embed(plan.tokens), state)[0]


def _groups(candidates: Candidates) -> Iterator[Candidates]:
    """In their order, no more than `TOGETHER` tokens in each but for a single longer one."""
    first = size = 0
    for number, candidate in enumerate(candidates):
        if size and size + len(candidate) > TOGETHER:
            yield candidates[first:number]
            first, size = number, 0
        size += len(candidate)
    yield candidates[first:]
