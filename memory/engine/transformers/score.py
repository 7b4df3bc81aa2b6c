"""Scorer of candidate continuations: a token trie after the prompt, with a tree mask, in one or a few forwards."""

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
PLAN_BYTES = 64 << 20  # maximum size of the plans of the latest candidate sets together
TOKEN_BYTES = 36  # approximate size of an int in a tuple
TRIE_SIZE = 2048  # maximum number of candidates' tokens in one forward: the mask grows with its square
HEAD_ROWS = 64  # nodes whose logits are computed at once
NEW_NODES = 16  # new nodes per forward of a search, in addition to their ancestors
SEARCH_NODES = 64  # nodes; a smaller trie is computed in one forward


@dataclass(frozen=True)
class TriePlan:
    """Trie of a candidate set. Only nodes with children are computed, because last tokens need no logits."""

    tokens: torch.Tensor  # (nodes,) token ids
    depth: torch.Tensor  # (nodes,) 0 for first tokens
    ancestry: torch.Tensor  # (nodes, nodes) bias: row i has 0 for node i and its ancestors, else -inf
    parent: torch.Tensor  # (all tokens,) row after which the token comes: 0 for the prompt's last row, i + 1 for node i
    token: torch.Tensor  # (all tokens,) token ids of the candidates, one after another
    candidate: torch.Tensor  # (all tokens,) number of the token's candidate
    lengths: torch.Tensor  # (candidates,)
    levels: int  # number of positions that the nodes take after the prompt

    @property
    def nbytes(self) -> int:
        """Bytes of the plan and of its key, the candidates."""
        tensors = self.tokens, self.depth, self.ancestry, self.parent, self.token, self.candidate, self.lengths
        return sum(tensor.nbytes for tensor in tensors) + TOKEN_BYTES * self.token.numel()

    def most_promising(self, bounds: torch.Tensor, known: torch.Tensor, count: int | None) -> torch.Tensor:
        """Return the sorted numbers of the nodes to compute next.

        Nodes without logits are ranked by the highest bound of their candidates, and at equal bounds by depth, because
        most candidates share shallow nodes. The first ``count`` (None: all) are returned with their ancestors.

        :param bounds: (candidates,) upper bounds of the scores
        :param known: (all tokens,) bool: whether the token's log-likelihood is known
        """
        best = bounds.new_full((self.tokens.numel() + 1,), -inf)
        best.scatter_reduce_(0, self.parent[~known], bounds[self.candidate[~known]], "amax")
        lacking = torch.zeros_like(best, dtype=torch.bool)
        lacking[self.parent[~known]] = True
        order = best[1:].argsort(descending=True, stable=True)
        selected = order[lacking[1:][order]][:count]
        return (self.ancestry[selected] == 0).any(0).nonzero()[:, 0]


def build_trie(candidates: Candidates, dtype: torch.dtype, device: torch.device) -> TriePlan:
    """Build the plan of a candidate set. Raises ConfigError for no candidates, or one without tokens."""
    if not candidates or not all(candidates):
        raise ConfigError("scoring needs at least one candidate, and every candidate at least one token.")
    nodes: dict[tuple[int, ...], int] = {(): 0}
    for end in range(1, max(map(len, candidates))):  # by depth: `most_promising` prefers low numbers
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
    """Scorer of candidate sets, which keeps the plans of the latest sets."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._plans: OrderedDict[Candidates, TriePlan] = OrderedDict()

    def score(
        self, cache: WorkingCache, candidates: Sequence[Sequence[int]], reduce: str = "sum", best: int | None = None
    ) -> ScoreResult:
        """Implement `Engine.score`; ``cache`` stays unchanged, and sets above `TRIE_SIZE` tokens take several forwards.

        :raises ModelError: the model's logits are not finite
        """
        if reduce not in REDUCTIONS:
            check_choice("score reduce", reduce, REDUCTIONS)
        if cache.logits is None:
            raise ConfigError("candidates can only be scored after a prompt: prefill one first.")
        if best is not None and best < 1:
            raise ConfigError(f"best={best} selects no candidate: use 1 or more")
        parts = [self._score(cache, group, reduce, best) for group in _groups(tuple(map(tuple, candidates)))]
        return ScoreResult(torch.cat([part.scores for part in parts]), sum(part.computed_tokens for part in parts))

    def _score(self, cache: WorkingCache, candidates: Candidates, reduce: str, best: int | None) -> ScoreResult:
        """Compute the most promising nodes until the scores of the ``best`` candidates are known.

        Unknown tokens count as 0, an upper bound of any log-likelihood. On a GPU, or for a small trie,
        all nodes are computed in one forward, because a forward over fewer rows is hardly cheaper.
        """
        plan = self._plan(candidates)
        if self._decoder.device.type != "cpu" or plan.tokens.numel() < SEARCH_NODES:
            best = None
        likely, parent = cache.logits.new_zeros(plan.token.numel()), plan.parent
        known = torch.zeros_like(parent, dtype=torch.bool)
        computed_logits, computed, finite = [(torch.zeros_like(parent[:1]), cache.logits)], 0, known.new_ones(())
        while True:
            for numbers, logits in computed_logits:
                row_of = parent.new_full((plan.tokens.numel() + 1,), -1)
                row_of[numbers] = torch.arange(numbers.numel(), device=parent.device)
                new = row_of[parent] >= 0
                rows = row_of[parent[new]]
                likely[new] = logits[rows, plan.token[new]] - logits.logsumexp(-1)[rows]
                known |= new
                finite = finite & are_finite(logits)
            sums = likely.new_zeros(plan.lengths.numel()).index_add_(0, plan.candidate, likely)
            scores = sums / plan.lengths if reduce == "mean" else sums
            open_candidates = torch.zeros_like(scores).index_add_(0, plan.candidate, (~known).to(scores.dtype)) > 0
            order = scores.argsort(descending=True, stable=True)
            unfinished, all_finite = torch.stack([open_candidates[order[:best]].any(), finite]).tolist()
            if not all_finite:
                raise not_finite(self._decoder.spec.dtype, cache)
            if not unfinished:
                return ScoreResult(scores.masked_fill(open_candidates, -inf), computed)
            nodes = plan.most_promising(scores, known, best and NEW_NODES)
            computed_logits, computed = self._logits(cache, plan, nodes), computed + nodes.numel()

    def _plan(self, candidates: Candidates) -> TriePlan:
        plan = self._plans.pop(candidates, None)
        if plan is None:
            check_ids([max(candidate) for candidate in candidates if candidate], self._decoder.spec.vocab)
            plan = build_trie(candidates, self._decoder.spec.dtype, self._decoder.device)
        self._plans[candidates] = plan
        while len(self._plans) > 1 and sum(entry.nbytes for entry in self._plans.values()) > PLAN_BYTES:
            self._plans.popitem(last=False)
        return plan

    def _logits(
        self, cache: WorkingCache, plan: TriePlan, nodes: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield row numbers (as in ``parent``) and logits (nodes, vocab), `HEAD_ROWS` nodes at a time."""
        hidden = self._hidden(cache, plan, nodes)
        for some, rows in zip(nodes.split(HEAD_ROWS), hidden.split(HEAD_ROWS), strict=True):
            yield some + 1, self._decoder.head(rows).to(cache.logits.dtype)

    def _hidden(self, cache: WorkingCache, plan: TriePlan, nodes: torch.Tensor) -> torch.Tensor:
        """Compute hidden states (nodes, hidden) after the last layer; the nodes' KV take spare rows of ``cache``."""
        decoder, count, start, following = self._decoder, nodes.numel(), cache.length, cache.next_position
        cache.reserve(count)
        visible = cache.end_at(start + count)
        depth, whole = plan.depth[nodes], count == plan.tokens.numel()
        ancestry = plan.ancestry if whole else plan.ancestry[nodes[:, None], nodes]
        angles = decoder.rope.angles_at(depth + following, following + plan.levels)
        mask = tree_plan(ancestry, depth, cache.positions, following, decoder.spec.dtype)
        state = PromptPass(cache, slice(start, start + count), visible, angles, mask, decoder.spec.rope_keys)
        return decoder.run(decoder.embed(plan.tokens[nodes]), state)[0]


def _groups(candidates: Candidates) -> Iterator[Candidates]:
    """Split candidates, in order, into groups of at most `TRIE_SIZE` tokens; a longer candidate forms a group alone."""
    first = size = 0
    for number, candidate in enumerate(candidates):
        if size and size + len(candidate) > TRIE_SIZE:
            yield candidates[first:number]
            first, size = number, 0
        size += len(candidate)
    yield candidates[first:]
