"""SnapKV (arXiv 2404.14469): dense reference with the window's pooled votes, one set for all layers and heads."""

from __future__ import annotations

import torch

from tests.references.transcript import Attention, Transcript


def snapkv_keep(transcript: Transcript, forced: set[int], budget: int, window: int, kernel: int, pooling: str) -> None:
    """Keep the rows with the most votes; the window itself survives as far as the budget allows."""
    queries = list(range(len(transcript.ids)))[-window:]
    before = [row for row in transcript.live if row < queries[0]]
    scores = {row: 0.0 if row < queries[0] else float("inf") for row in transcript.live}
    for layer in transcript.layers:
        for head in range(transcript.model.heads):
            votes = count_votes(transcript, layer, head, queries)
            for place, row in enumerate(before):
                scores[row] += pooled([votes[key] for key in before], place, kernel, pooling)
    transcript.keep(forced, scores, budget)


def count_votes(transcript: Transcript, layer: Attention, head: int, queries: list[int]) -> dict[int, float]:
    """Return for each live row the mean over the window's queries of the softmax over all live rows up to the query."""
    model, votes = transcript.model, dict.fromkeys(transcript.live, 0.0)
    keys = layer.k[head // (model.heads // model.kv_heads)]
    for row in queries:
        visible = [key for key in transcript.live if key <= row]
        weights = torch.softmax(keys[visible] @ layer.q[head, row] / model.dim**0.5, 0)
        for key, weight in zip(visible, weights.tolist(), strict=True):
            votes[key] += weight / len(queries)
    return votes


def pooled(votes: list[float], place: int, kernel: int, pooling: str) -> float:
    """Pool over the neighbouring live rows; a mean counts rows beyond the ends as zero."""
    near = votes[max(0, place - kernel // 2) : place + kernel // 2 + 1]
    return max(near) if pooling == "max" else sum(near) / kernel
