"""Full recomputation: nothing is looked up."""

from __future__ import annotations

from collections.abc import Sequence

from memory.construction.base import Context, PreparedPrompt, PromptBuilder
from memory.construction.layout import lay_out, place, uses
from memory.engine.results import PrefillResult
from memory.engine.transformers.engine import Engine
from memory.reports.timing import StepTimer
from memory.stages import Unit


class RecomputeAllBuilder(PromptBuilder):
    """Nothing is stored: every row is fresh, the context's too."""

    harvests = False
    reads_context = False

    def __init__(self, engine: Engine) -> None:
        self._device = engine.decoder.device

    def assemble(
        self, units: Sequence[Unit], query: Sequence[int], context: Context, clock: StepTimer
    ) -> PreparedPrompt:
        placed = place(units, len(context.ids))
        return PreparedPrompt(lay_out(context.ids, placed, query, False, self._device), uses(placed))

    def after(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Nothing is kept."""

    def reset(self) -> None:
        """Nothing was kept."""
