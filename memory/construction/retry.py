"""A turn that comes upon a damaged block is done again without it: nothing of the block has reached an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from memory.construction.base import PreparedPrompt
from memory.engine.results import PrefillResult
from memory.kv_cache.block_lease import BlockLease
from memory.kv_cache.mapped_rows import DamagedError
from memory.reports.timing import StepTimer


def with_retry(
    holder: BlockLease,
    clock: StepTimer,
    assemble: Callable[[], PreparedPrompt],
    compute: Callable[[PreparedPrompt], PrefillResult],
    encodes: bool,
) -> tuple[PreparedPrompt, PrefillResult]:
    """Assemble a prompt and compute it, again for each block that turns out to be damaged on the way.

    Damage seldom comes alone, so what else the prompt wants is verified before the next attempt. What an attempt
    computed in vain is in the times of the turn, not in its counts; what it encoded is, for that is stored.

    :param encodes: blocks that are put while a prompt is assembled were encoded for it
    :raises DamagedError: a block that was computed anew is damaged again
    """
    lost: set[str] = set()
    encoded: dict[str, int] = {}
    while True:
        prompt, made = None, holder.watch()
        try:
            prompt = _counted(assemble(), encoded)
            return prompt, compute(prompt)
        except DamagedError as error:
            if error.identity in lost:
                raise
            lost.add(error.identity)
            holder.discard(error.identity)
        if encodes:
            encoded |= made
        with clock.part("retrieve"):
            for unit in () if prompt is None else prompt.units:
                holder.verify(unit.identity)


def _counted(prompt: PreparedPrompt, encoded: Mapping[str, int]) -> PreparedPrompt:
    """``prompt``, whose blocks of earlier attempts are no hits; ``encoded`` are their tokens by identity."""
    if not encoded:
        return prompt
    units = (replace(unit, hit=unit.hit and unit.identity not in encoded) for unit in prompt.units)
    placed = (
        replace(p, hit=p.hit and (p.block is None or p.block.identity not in encoded)) for p in prompt.layout.placements
    )
    layout = replace(prompt.layout, placements=tuple(placed))
    return replace(prompt, units=tuple(units), layout=layout, encoded=prompt.encoded + sum(encoded.values()))
