"""CacheBlend's prefill (arXiv 2405.16444, section 4): dense reference.

Layer 0 is computed in full. The KV deviation of a token before each later layer is the squared distance between the KV
that the layer would compute and the stored KV, with keys at their positions in the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.references.dense import LayerState, Memory, Outcome, Set, prefill


def cacheblend_prefill(memory: Memory, counts: Sequence[int], deviation: str, gradual: bool) -> Outcome:
    """Prefill with ``counts[l]`` stored tokens recomputed at layer l.

    :param deviation: "k", "v" or "kv", the parts of the KV to compare
    :param gradual: select before every layer among the previous layer's tokens (paper); otherwise once (published code)
    """

    def narrow(state: LayerState) -> Set:
        candidates = [row for row in state.rows if row in memory.reused]
        if state.layer > 0 and not gradual:
            return state.rows
        distance = kv_deviation(memory, state, deviation)
        ranked = sorted(candidates, key=lambda row: (-distance[row], row))
        return memory.fresh + ranked[: counts[state.layer + 1]]

    return prefill(memory, memory.reused + memory.fresh, narrow)


def kv_deviation(memory: Memory, state: LayerState, kinds: str) -> dict[int, float]:
    """Return by row the distance of the next layer's KV from the stored KV."""
    _, k_new, v_new = memory.model.project(state.layer + 1, state.hidden)
    k_old, v_old = memory.stored(state.layer + 1)
    k_new = memory.model.rotate(k_new, torch.tensor(state.rows))
    k_old = memory.model.rotate(k_old, torch.arange(len(memory.ids)))
    distance = dict.fromkeys(memory.reused, 0.0)
    for i, row in enumerate(state.rows):
        if row in distance:
            distance[row] += float(((k_new[:, i] - k_old[:, row]) ** 2).sum()) if "k" in kinds else 0.0
            distance[row] += float(((v_new[:, i] - v_old[:, row]) ** 2).sum()) if "v" in kinds else 0.0
    return distance
