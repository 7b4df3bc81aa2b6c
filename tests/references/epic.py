"""EPIC's prefill (arXiv 2410.15332, LegoLink-k): dense reference."""

from __future__ import annotations

from tests.references.dense import Memory, Outcome, prefill


def epic_prefill(memory: Memory, k: int, last_k: int) -> Outcome:
    """Recompute all fresh rows and the first ``k`` tokens of each unit except the first, at every layer.

    ``last_k`` also recomputes the last tokens of the units, as in KEEP's description of this baseline.
    """
    active = set(memory.fresh)
    for number, rows in enumerate(memory.members):
        seam = [] if number == 0 else rows[:k]
        seam = seam + [row for row in rows if row >= rows[-1] + 1 - last_k]
        active |= set(seam) & set(memory.reused)
    return prefill(memory, sorted(active), lambda state: state.rows)
