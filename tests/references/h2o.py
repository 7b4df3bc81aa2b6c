"""H2O (arXiv 2306.14048): dense reference of accumulated attention and recent rows, one set for all layers."""

from __future__ import annotations

from tests.references.transcript import Transcript


def h2o_keep(transcript: Transcript, forced: set[int], budget: int, recent: float) -> None:
    """Keep the heavy hitters: a row's score is the attention that it received from all rows, layers and heads.

    Attention from evicted rows counts; attention from rows removed at the transcript's end does not.
    """
    history = [row for row in transcript.live if row not in forced]
    scores = {}
    for row in history:
        scores[row] = sum(float(layer.weights[:, :, row].sum()) for layer in transcript.layers)
    last = round(recent * max(0, budget - len(forced)))
    for row in history[len(history) - last :]:
        scores[row] = float("inf")
    transcript.keep(forced, scores, budget)
