"""SparseX's prefill (arXiv 2606.01751, algorithm 1), slow and dense."""

from __future__ import annotations

from dataclasses import dataclass

from tests.references.dense import Memory, Outcome, Seen, Set, prefill


@dataclass
class Knobs:
    dense: int  # the first layers, computed in full
    count: int  # k of the top-k
    block: int
    overflow: int  # blocks on each side
    tail: int
    probe_tail: bool = False
    only_reused: bool = False  # may only reused rows be among the k?


def sparsex_prefill(memory: Memory, knobs: Knobs) -> Outcome:
    """Dense layers, one estimate behind the last of them, then the union of four sets."""
    new, total = memory.fresh, len(memory.ids)
    tail = last_reused(memory, knobs.tail)

    def narrow(seen: Seen) -> Set:
        if seen.layer + 1 != knobs.dense:
            return seen.rows
        sources = new + tail if knobs.probe_tail else new
        given = seen.weights[:, [seen.rows.index(i) for i in sources]].sum((0, 1)).tolist()
        playing = memory.reused if knobs.only_reused else list(range(total))
        keys = sorted(playing, key=lambda j: (-given[j], j))[: knobs.count]
        union = set(new) | set(keys) | set(tail) | set(overflow(new, knobs.block * knobs.overflow))
        return sorted(union & set(seen.rows))

    return prefill(memory, memory.reused + memory.fresh, narrow)


def overflow(new: Set, width: int) -> Set:
    """Rows less than ``width`` away from an interval of new rows, which is the same as from a new row."""
    return [row + step for row in new for step in range(-width, width + 1)]


def last_reused(memory: Memory, count: int) -> Set:
    """The last rows of the reused run at the prompt's end, before the one row that asks for the next token."""
    found: Set = []
    row = len(memory.ids) - 2
    while row in memory.reused and len(found) < count:
        found.append(row)
        row -= 1
    return found
