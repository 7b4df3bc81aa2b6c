"""KEEP's prefill (arXiv 2602.23592, section 4.2), slow and dense: every quantity written out from the paper.

Importance of a segment: attention mass, mean over heads and over the rows that ask, divided by the segment's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.references.dense import Memory, Outcome, Seen, Set, prefill


def keep_prefill(
    memory: Memory, counts: Sequence[int], max_hops: int, causal: bool, relative: bool, query_weight: float
) -> tuple[Outcome, list[int]]:
    """Prefill where ``counts[l]`` segments (one per unit) are active at layer l; also the hops of each choice.

    ``relative`` is this project's reading: see `choose`.
    """
    playing = [m for m, rows in enumerate(memory.members) if set(rows) <= set(memory.reused)]
    hops: list[int] = []

    def narrow(seen: Seen) -> Set:
        nonlocal playing
        count = counts[seen.layer + 1]
        if count < len(playing):
            later = seen.weights if causal else memory.model.attend(seen.q, seen.k, seen.rows, causal=False)
            playing, needed = choose(
                seen.weights,
                later,
                seen.rows,
                memory.asking,
                memory.members,
                playing,
                count,
                max_hops,
                relative and causal,
                query_weight,
            )
            hops.append(needed)
        return [row for m in playing for row in memory.members[m]] + memory.fresh

    return prefill(memory, memory.reused + memory.fresh, narrow), hops


def choose(
    weights: torch.Tensor,
    later: torch.Tensor,
    rows: Set,
    asking: Set,
    members: list[Set],
    playing: Set,
    count: int,
    max_hops: int,
    relative: bool,
    query_weight: float,
) -> tuple[Set, int]:
    """Steps 1 to 4 of the paper's figure 6: query to segments, then segments to segments until nothing changes.

    ``relative``: only segments that can see the target are asked, and what each gives counts as often as there are rows
    up to its end, so that 1 is what even attention would give. ``query_weight``: the query's share in every hop.
    """

    def importance(matrix: torch.Tensor, sources: Set, target: int) -> float:
        lines = [rows.index(row) for row in sources]
        return float(matrix[:, lines][:, :, members[target]].sum(-1).mean() / len(members[target]))

    def against_even(target: int) -> float:
        asked = [m for m in relevant if members[m][-1] >= members[target][-1]]
        rows_asked = sum(len(members[m]) for m in asked)
        given = sum(len(members[m]) * (members[m][-1] + 1) * importance(later, members[m], target) for m in asked)
        return given / rows_asked if asked else 0.0

    def from_query(target: int) -> float:
        return importance(weights, asking, target) * (rows[-1] + 1 if relative else 1)

    def from_hop(target: int, sources: Set) -> float:
        hop = against_even(target) if relative else importance(later, sources, target)
        return query_weight * from_query(target) + (1 - query_weight) * hop

    def top(scores: dict[int, float]) -> Set:
        return sorted(sorted(scores, key=lambda m: (-scores[m], m))[:count])

    relevant = top({m: importance(weights, asking, m) for m in playing})
    hops = 0
    for _ in range(max_hops):
        sources = [row for m in relevant for row in members[m]]
        following = top({m: from_hop(m, sources) for m in playing})
        hops += 1
        if following == relevant:
            break
        relevant = following
    return relevant, hops
