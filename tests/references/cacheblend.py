"""CacheBlend's prefill (arXiv 2405.16444, section 4), slow and dense.

Layer 0 is computed in full. Before each later layer the KV deviation of a token is the squared distance between the KV
that the layer would give it now and the stored KV, keys at their places in the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.references.dense import Memory, Outcome, Seen, Set, prefill


def cacheblend_prefill(memory: Memory, counts: Sequence[int], deviation: str, gradual: bool) -> Outcome:
    """``counts[l]`` stored tokens are recomputed at layer l.

    :param deviation: which of "k" and "v" are compared
    :param gradual: choose again before every layer, among the tokens of the last one (the paper); else once (the code)
    """

    def narrow(seen: Seen) -> Set:
        playing = [row for row in seen.rows if row in memory.reused]
        if seen.layer > 0 and not gradual:
            return seen.rows
        distance = kv_deviation(memory, seen, deviation)
        ranked = sorted(playing, key=lambda row: (-distance[row], row))
        return memory.fresh + ranked[: counts[seen.layer + 1]]

    return prefill(memory, memory.reused + memory.fresh, narrow)


def kv_deviation(memory: Memory, seen: Seen, kinds: str) -> dict[int, float]:
    """By row: how far the next layer's KV is from the stored one."""
    _, k_new, v_new = memory.model.project(seen.layer + 1, seen.hidden)
    k_old, v_old = memory.stored(seen.layer + 1)
    k_new = memory.model.rotate(k_new, torch.tensor(seen.rows))
    k_old = memory.model.rotate(k_old, torch.arange(len(memory.ids)))
    found = dict.fromkeys(memory.reused, 0.0)
    for i, row in enumerate(seen.rows):
        if row in found:
            found[row] += float(((k_new[:, i] - k_old[:, row]) ** 2).sum()) if "k" in kinds else 0.0
            found[row] += float(((v_new[:, i] - v_old[:, row]) ** 2).sum()) if "v" in kinds else 0.0
    return found
