"""Full recomputation: no stored block is read, every row of the prompt is fresh."""

from __future__ import annotations

from collections.abc import Sequence

from memory.construction.base import Context, PreparedPrompt, PromptBuilder
from memory.engine.base import Engine, PrefillResult
from memory.prompt.report import uses
from memory.prompt.rows import lay_out, place
from memory.prompt.timing import StepTimer
from memory.prompt.units import Unit


class RecomputeAllBuilder(PromptBuilder):
    """Prompts without stored rows; those of the context are fresh, too."""

    harvests = False
    reads_context = False

    def __init__(self, engine: Engine) -> None:
        self._device = engine.device

    def build(self, units: Sequence[Unit], query: Sequence[int], context: Context, timer: StepTimer) -> PreparedPrompt:
        placements = place(units, len(context.ids))
        return PreparedPrompt(lay_out(context.ids, placements, query, False, self._device), uses(placements))

    def after(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Keep nothing."""

    def reset(self) -> None:
        """Forget nothing: nothing was kept."""
