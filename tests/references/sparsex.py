"""SparseX's prefill (arXiv 2606.01751, algorithm 1): dense reference."""

from __future__ import annotations

from dataclasses import dataclass

from tests.references.dense import LayerState, Memory, Outcome, Set, prefill


@dataclass
class Options:
    dense: int  # number of first layers that are computed in full
    count: int  # k of the top-k
    block: int
    overflow: int  # blocks on each side
    tail: int
    probe_tail: bool = False
    only_reused: bool = False  # only reused rows may be among the k


def sparsex_prefill(memory: Memory, options: Options) -> Outcome:
    """Compute the dense layers in full; after the last of them, select the union of four sets for all later layers."""
    new, total = memory.fresh, len(memory.ids)
    tail = last_reused(memory, options.tail)

    def narrow(state: LayerState) -> Set:
        if state.layer + 1 != options.dense:
            return state.rows
        sources = new + tail if options.probe_tail else new
        mass = state.weights[:, [state.rows.index(i) for i in sources]].sum((0, 1)).tolist()
        candidates = memory.reused if options.only_reused else list(range(total))
        keys = sorted(candidates, key=lambda j: (-mass[j], j))[: options.count]
        union = set(new) | set(keys) | set(tail) | set(overflow(new, options.block * options.overflow))
        return sorted(union & set(state.rows))

    return prefill(memory, memory.reused + memory.fresh, narrow)


def overflow(new: Set, width: int) -> Set:
    """Return the rows within ``width`` of a new row; the paper extends intervals of new rows, which is the same."""
    return [row + step for row in new for step in range(-width, width + 1)]


def last_reused(memory: Memory, count: int) -> Set:
    """Return the last rows of the run of reused rows that ends at the second-last row of the prompt."""
    rows: Set = []
    row = len(memory.ids) - 2
    while row in memory.reused and len(rows) < count:
        rows.append(row)
        row -= 1
    return rows
