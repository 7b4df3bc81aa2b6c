"""Retry of a prompt that reads a damaged block: it is built again without the block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from memory.construction.base import PreparedPrompt
from memory.engine.base import PrefillResult
from memory.kv_cache.block_lease import BlockLease
from memory.kv_cache.mapped_rows import DamagedError
from memory.prompt.timing import StepTimer


def with_retry(
    lease: BlockLease,
    timer: StepTimer,
    build: Callable[[], PreparedPrompt],
    compute: Callable[[PreparedPrompt], PrefillResult],
    encodes: bool,
) -> tuple[PreparedPrompt, PrefillResult]:
    """Build a prompt and compute it, again for each block that turns out to be damaged; no answer has read it.

    Damage seldom comes alone, so the other blocks of the prompt are verified before the next attempt. The time of a
    failed attempt is in the times of the turn, its token-layers are in no count; the blocks it encoded are counted,
    for they are stored.

    :param encodes: blocks that are put while a prompt is built were encoded for it
    :raises DamagedError: a block that was computed again is damaged again
    """
    damaged: set[str] = set()
    encoded: dict[str, int] = {}
    while True:
        prompt, stored = None, lease.watch()
        try:
            prompt = _counted(build(), encoded)
            return prompt, compute(prompt)
        except DamagedError as error:
            if error.identity in damaged:
                raise
            damaged.add(error.identity)
            lease.discard(error.identity)
        if encodes:
            encoded |= stored
        with timer.part("retrieve"):
            for unit in () if prompt is None else prompt.units:
                lease.verify(unit.identity)


def _counted(prompt: PreparedPrompt, encoded: Mapping[str, int]) -> PreparedPrompt:
    """Count the blocks of earlier attempts as encoded, not as hits; ``encoded`` has their tokens by identity."""
    if not encoded:
        return prompt
    units = (replace(unit, hit=unit.hit and unit.identity not in encoded) for unit in prompt.units)
    placements = (
        replace(p, hit=p.hit and (p.block is None or p.block.identity not in encoded)) for p in prompt.layout.placements
    )
    layout = replace(prompt.layout, placements=tuple(placements))
    return replace(prompt, units=tuple(units), layout=layout, encoded=prompt.encoded + sum(encoded.values()))
