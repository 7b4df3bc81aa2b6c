"""H2O (arXiv 2306.14048), slow and dense: accumulated attention and recent rows, one set for all layers and heads."""

from __future__ import annotations

from tests.references.transcript import Transcript


def h2o_keep(transcript: Transcript, forced: set[int], budget: int, recent: float) -> None:
    """The heavy hitters: a row's score is what all rows of the transcript, layer by layer and head by head, gave to it.

    Forgotten rows count, rows that were taken back do not.
    """
    history = [row for row in transcript.live if row not in forced]
    scores = {}
    for row in history:
        scores[row] = sum(float(layer.weights[:, :, row].sum()) for layer in transcript.layers)
    last = round(recent * max(0, budget - len(forced)))
    for row in history[len(history) - last :]:
        scores[row] = float("inf")
    transcript.keep(forced, scores, budget)
