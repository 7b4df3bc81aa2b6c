"""Score many continuations at once: a token trie behind the prompt, a tree mask, one forward, or a few small ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import torch

from keep_agent.errors import ConfigError, check_choice
from memory.config.choices import REDUCTIONS
from memory.engine.attention.function import PromptPass
from memory.engine.attention.kernels import bias_of, tree_plan
from memory.engine.base import ScoreResult
from memory.engine.transformers.decoder import Decoder, are_finite, check_ids, not_finite
from memory.kv_cache.dense import WorkingCache

Candidates = tuple[tuple[int, ...], ...]
KEPT_BYTES = 64 << 20  # of the plans of sets seen last
TOKEN_BYTES = 36  # of a number in a tuple, about
TOGETHER = 2048  # tokens of candidates in one forward: the mask grows with their square
HEAD_ROWS = 64  # nodes whose logits are made at once
AHEAD = 16  # nodes that a forward of a search learns of, and those above them
SEARCHED = 64  # nodes: fewer are computed at once


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

    @property
    def nbytes(self) -> int:
        """With the candidates that it is found by."""
        tensors = self.tokens, self.depth, self.ancestry, self.parent, self.token, self.candidate, self.lengths
        return sum(each.nbytes for each in tensors) + TOKEN_BYTES * self.token.numel()

    def most_promising(self, bounds: torch.Tensor, known: torch.Tensor, count: int | None) -> torch.Tensor:
        """(some nodes,) sorted: the ``count`` (None: all) that are not ``known`` (all tokens,) and lead to what may be
        best, and all above them. ``bounds`` (candidates,): what none will exceed.

        Those of equal promise go by depth: what many candidates share says most about them.
        """
        best = bounds.new_full((self.tokens.numel() + 1,), -inf)
        best.scatter_reduce_(0, self.parent[~known], bounds[self.candidate[~known]], "amax")
        lacking = torch.zeros_like(best, dtype=torch.bool)
        lacking[self.parent[~known]] = True
        order = best[1:].argsort(descending=True, stable=True)
        chosen = order[lacking[1:][order]][:count]
        return (self.ancestry[chosen] == 0).any(0).nonzero()[:, 0]


def build_trie(candidates: Candidates, dtype: torch.dtype, device: torch.device) -> TriePlan:
    """Plan of a candidate set.

    :raises ConfigError: no candidates, or one without tokens.
    """
    if not candidates or not all(candidates):
        raise ConfigError("scoring needs at least one candidate, and every candidate at least one token.")
    nodes: dict[tuple[int, ...], int] = {(): 0}
    for end in range(1, max(map(len, candidates))):  # by depth, as `most_promising` wants them
        for candidate in candidates:
            if end < len(candidate):
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

    def score(
        self, cache: WorkingCache, candidates: Sequence[Sequence[int]], reduce: str = "sum", best: int | None = None
    ) -> ScoreResult:
        """Log-likelihood of each candidate behind the prompt in ``cache``, which is left as it was.

        Sets of more than `TOGETHER` tokens take several forwards.

        :param reduce: sum or mean over a candidate's tokens
        :param best: so many are wanted; what is certainly behind them need not be computed, and is -inf then
        :raises ModelError: the model's logits are not finite
        """
        check_choice("score reduce", reduce, REDUCTIONS)
        if cache.logits is None:
            raise ConfigError("candidates can only be scored behind a prompt: prefill one first.")
        if best is not None and best < 1:
            raise ConfigError(f"best={best} asks for no candidate: use 1 or more")
        parts = [self._score(cache, group, reduce, best) for group in _groups(tuple(map(tuple, candidates)))]
        return ScoreResult(torch.cat([part.scores for part in parts]), sum(part.computed_tokens for part in parts))

    def _score(self, cache: WorkingCache, candidates: Candidates, reduce: str, best: int | None) -> ScoreResult:
        """Computes the candidates that promise most until the ``best`` are known: a token that is not counts 0, and no
        log-likelihood is above that. A few rows cost a CPU much less than hundreds; to a GPU a forward is a forward.
        """
        plan = self._plan(candidates)
        if self._decoder.device.type != "cpu" or plan.tokens.numel() < SEARCHED:
            best = None
        likely, parent = cache.logits.new_zeros(plan.token.numel()), plan.parent
        known = torch.zeros_like(parent, dtype=torch.bool)
        told, computed, finite = [(torch.zeros_like(parent[:1]), cache.logits)], 0, known.new_ones(())
        while True:
            for numbers, logits in told:
                row_of = parent.new_full((plan.tokens.numel() + 1,), -1)
                row_of[numbers] = torch.arange(numbers.numel(), device=parent.device)
                new = row_of[parent] >= 0
                rows = row_of[parent[new]]
                likely[new] = logits[rows, plan.token[new]] - logits.logsumexp(-1)[rows]
                known |= new
                finite = finite & are_finite(logits)
            sums = likely.new_zeros(plan.lengths.numel()).index_add_(0, plan.candidate, likely)
            scores = sums / plan.lengths if reduce == "mean" else sums
            open = torch.zeros_like(scores).index_add_(0, plan.candidate, (~known).to(scores.dtype)) > 0
            order = scores.argsort(descending=True, stable=True)
            goes_on, sound = torch.stack([open[order[:best]].any(), finite]).tolist()
            if not sound:
                raise not_finite(self._decoder.spec.dtype, cache)
            if not goes_on:
                return ScoreResult(scores.masked_fill(open, -inf), computed)
            nodes = plan.most_promising(scores, known, best and AHEAD)
            told, computed = self._logits(cache, plan, nodes), computed + nodes.numel()

    def _plan(self, candidates: Candidates) -> TriePlan:
        plan = self._plans.pop(candidates, None)
        if plan is None:
            check_ids([max(candidate) for candidate in candidates if candidate], self._decoder.spec.vocab)
            plan = build_trie(candidates, self._decoder.spec.dtype, self._decoder.device)
        self._plans[candidates] = plan
        while len(self._plans) > 1 and sum(kept.nbytes for kept in self._plans.values()) > KEPT_BYTES:
            self._plans.popitem(last=False)
        return plan

    def _logits(
        self, cache: WorkingCache, plan: TriePlan, nodes: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Numbers as in ``parent``, and logits (numbers, vocab), float32 or finer, of ``nodes``.

        Some at a time: those of all nodes would take more memory than the model's layers.
        """
        hidden = self._hidden(cache, plan, nodes)
        for some, rows in zip(nodes.split(HEAD_ROWS), hidden.split(HEAD_ROWS), strict=True):
            yield some + 1, self._decoder.head(rows).to(cache.logits.dtype)

    def _hidden(self, cache: WorkingCache, plan: TriePlan, nodes: torch.Tensor) -> torch.Tensor:
        """(nodes, hidden) behind the last layer; the nodes' keys go behind the prompt and are forgotten."""
        decoder, count, start = self._decoder, nodes.numel(), cache.length
        cache.reserve(count)
        depth, whole = plan.depth[nodes], count == plan.tokens.numel()
        ancestry = plan.ancestry if whole else plan.ancestry[nodes[:, None], nodes]
        state = PromptPass(
            cache=cache,
            rows=slice(start, start + count),
            visible=cache.end_at(start + count),
            angles=decoder.rope.at(depth + cache.next_position, cache.next_position + plan.levels),
            plan=tree_plan(ancestry, depth, cache.positions, cache.next_position, decoder.spec.dtype),
            rope_keys=decoder.spec.rope_keys,
        )
        return decoder.run(decoder.embed(plan.tokens[nodes]), state)[0]


def _groups(candidates: Candidates) -> Iterator[Candidates]:
    """In their order, no more than `TOGETHER` tokens in each but for a single longer one."""
    first = size = 0
    for number, candidate in enumerate(candidates):
        if size and size + len(candidate) > TOGETHER:
            yield candidates[first:number]
            first, size = number, 0
        size += len(candidate)
    yield candidates[first:]
