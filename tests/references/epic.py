"""EPIC's prefill (arXiv 2410.15332, LegoLink-k), slow and dense."""

from __future__ import annotations

from tests.references.dense import Memory, Outcome, prefill


def epic_prefill(memory: Memory, k: int, last_k: int) -> Outcome:
    """Every layer recomputes the first ``k`` tokens of each unit but the first, and all that is new.

    ``last_k`` is KEEP's description of the baseline: the ends of the units too.
    """
    chosen = set(memory.fresh)
    for number, rows in enumerate(memory.members):
        seam = [] if number == 0 else rows[:k]
        seam = seam + [row for row in rows if row >= rows[-1] + 1 - last_k]
        chosen |= set(seam) & set(memory.reused)
    return prefill(memory, sorted(chosen), lambda seen: seen.rows)
