"""KEEP's prefill (arXiv 2602.23592, section 4.2): dense reference with every quantity computed as in the paper.

The importance of a segment is its attention mass, averaged over heads and source rows and divided by its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.references.dense import LayerState, Memory, Outcome, Set, prefill


def keep_prefill(
    memory: Memory,
    counts: Sequence[int],
    max_hops: int,
    causal: bool,
    relative: bool,
    query_weight: float,
    peak: bool = False,
) -> tuple[Outcome, list[int]]:
    """Prefill with ``counts[l]`` segments (one per unit) active at layer l; also return the hops of each selection.

    ``relative`` is this project's interpretation: see `choose`.
    """
    candidates = [m for m, rows in enumerate(memory.members) if set(rows) <= set(memory.reused)]
    hops: list[int] = []

    def narrow(state: LayerState) -> Set:
        nonlocal candidates
        count, rows = counts[state.layer + 1], state.rows
        if count < len(candidates):
            later = state.weights if causal else memory.model.attend(state.q, state.k, rows, causal=False)
            candidates, needed = choose(
                state.weights, later, rows, memory.query_rows, memory.members, candidates, count, max_hops,
                relative and causal, query_weight, peak,
            )  # fmt: skip
            hops.append(needed)
        return [row for m in candidates for row in memory.members[m]] + memory.fresh

    return prefill(memory, memory.reused + memory.fresh, narrow), hops


def choose(
    weights: torch.Tensor, later: torch.Tensor, rows: Set, query_rows: Set, members: list[Set], candidates: Set,
    count: int, max_hops: int, relative: bool, query_weight: float, peak: bool = False,
) -> tuple[Set, int]:  # fmt: skip
    """Select segments by steps 1 to 4 of the paper's figure 6: from the query, then from segments until convergence.

    :param relative: average only over segments that can see the target, and multiply each one's importance by the
        number of rows up to its end, so that uniform attention gives 1
    :param query_weight: the query's share in every hop
    :param peak: the query's importance is the largest share, over heads and query rows, of the attention to memory
    """

    def importance(matrix: torch.Tensor, sources: Set, target: int) -> float:
        lines = [rows.index(row) for row in sources]
        return float(matrix[:, lines][:, :, members[target]].sum(-1).mean() / len(members[target]))

    def relative_importance(target: int) -> float:
        viewers = [m for m in relevant if members[m][-1] >= members[target][-1]]
        viewer_rows = sum(len(members[m]) for m in viewers)
        mass = sum(len(members[m]) * (members[m][-1] + 1) * importance(later, members[m], target) for m in viewers)
        return mass / viewer_rows if viewers else 0.0

    def from_query(target: int) -> float:
        if peak:
            shares = [
                float(weights[head, rows.index(row), members[target]].sum())
                / sum(float(weights[head, rows.index(row), segment].sum()) for segment in members)
                for head in range(len(weights))
                for row in query_rows
            ]
            return len(members) * max(shares) / (1 if relative else rows[-1] + 1)
        return importance(weights, query_rows, target) * (rows[-1] + 1 if relative else 1)

    def from_hop(target: int, sources: Set) -> float:
        hop = relative_importance(target) if relative else importance(later, sources, target)
        return query_weight * from_query(target) + (1 - query_weight) * hop

    def top(scores: dict[int, float]) -> Set:
        return sorted(sorted(scores, key=lambda m: (-scores[m], m))[:count])

    relevant = top({m: from_query(m) for m in candidates})
    hops = 0
    for _ in range(max_hops):
        sources = [row for m in relevant for row in members[m]]
        following = top({m: from_hop(m, sources) for m in candidates})
        hops += 1
        if following == relevant:
            break
        relevant = following
    return relevant, hops
