"""SnapKV (arXiv 2404.14469), slow and dense: the window's votes, pooled; one set for all layers and heads."""

from __future__ import annotations

import torch

from tests.references.transcript import Attention, Transcript


def snapkv_keep(transcript: Transcript, forced: set[int], budget: int, window: int, kernel: int, pooling: str) -> None:
    """The window itself survives as far as there is room."""
    asking = list(range(len(transcript.ids)))[-window:]
    before = [row for row in transcript.live if row < asking[0]]
    scores = {row: 0.0 if row < asking[0] else float("inf") for row in transcript.live}
    for layer in transcript.layers:
        for head in range(transcript.model.heads):
            votes = count_votes(transcript, layer, head, asking)
            for place, row in enumerate(before):
                scores[row] += pooled([votes[other] for other in before], place, kernel, pooling)
    transcript.keep(forced, scores, budget)


def count_votes(transcript: Transcript, layer: Attention, head: int, asking: list[int]) -> dict[int, float]:
    """Per live row the mean over the window's queries of the softmax over all live rows up to the query."""
    model, votes = transcript.model, dict.fromkeys(transcript.live, 0.0)
    keys = layer.k[head // (model.heads // model.kv_heads)]
    for row in asking:
        visible = [other for other in transcript.live if other <= row]
        weights = torch.softmax(keys[visible] @ layer.q[head, row] / model.dim**0.5, 0)
        for other, weight in zip(visible, weights.tolist(), strict=True):
            votes[other] += weight / len(asking)
    return votes


def pooled(votes: list[float], place: int, kernel: int, pooling: str) -> float:
    """Over the neighbours among live rows; a mean counts those beyond the ends as nothing."""
    near = votes[max(0, place - kernel // 2) : place + kernel // 2 + 1]
    return max(near) if pooling == "max" else sum(near) / kernel
