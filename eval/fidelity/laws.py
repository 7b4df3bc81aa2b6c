"""Laws of the engine: each compares two computations, on random prompts, that must give the same logits.

A law's number is the largest difference of the last row's logits, relative to the largest magnitude of these logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from memory.engine.base import Engine
from memory.kv_cache.block import KVBlock
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.prompt.layout import Layout, Unit, lay_out, place
from memory.recompute.full import Full
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from memory.stages import Loading, Recompute

LENGTHS, QUERY = (20, 31, 17, 26), 12  # tokens of each unit (segment encoded alone), and of the query
SINGLE_MASK_FAMILIES = ("llama", "mistral", "qwen3_moe")  # families with one attention mask for all layers


class RandomPrompt:
    """Prompt of random tokens: memory units, each encoded as a block without the others, and a query."""

    def __init__(self, engine: Engine, seed: int = 0, lengths: Sequence[int] = LENGTHS) -> None:
        generator = torch.Generator().manual_seed(seed)
        vocabulary = engine.info.vocab

        def tokens(count: int) -> tuple[int, ...]:
            return tuple(torch.randint(0, vocabulary, (count,), generator=generator).tolist())

        self.engine = engine
        self.units = [Unit.of("segment", [(f"s{i}", tokens(length))]) for i, length in enumerate(lengths)]
        self.query = tokens(QUERY)
        self.ids = torch.tensor([*(token for unit in self.units for token in unit.token_ids), *self.query])

    def blocks(self) -> list[KVBlock]:
        return self.engine.encode([(None, unit.token_ids) for unit in self.units])

    def layout(self, blocks: Sequence[KVBlock | None]) -> Layout:
        placements = place(self.units, 0, list(blocks), [block is not None for block in blocks])
        return lay_out((), placements, self.query, True, self.engine.device)

    def logits(self, recompute: Recompute, loading: Loading | None = None) -> torch.Tensor:
        """Return the logits (vocabulary,) of the last row; the units' blocks are the stored memory."""
        layout = self.layout(self.blocks())
        return self.engine.prefill(layout, recompute, loading or Serial()).logits[0]


def relative_gap(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference relative to the largest expected magnitude."""
    return float((actual.float() - expected.float()).abs().max() / expected.float().abs().max())


def recompute_everything(engine: Engine) -> float:
    prompt = RandomPrompt(engine)
    return relative_gap(prompt.logits(Full()), engine.forward_plain(prompt.ids)[-1])


def recompute_nothing(engine: Engine) -> float:
    """Compare a prefill that reads all units from blocks with a plain forward in which a unit sees only itself."""
    prompt = RandomPrompt(engine)
    layout = prompt.layout(prompt.blocks())
    owner, rows = layout.segment_of, torch.arange(layout.rows, device=layout.token_ids.device)
    visible = ((owner[:, None] == owner[None]) | (owner[:, None] < 0)) & (rows[None] <= rows[:, None])
    expected = engine.forward_plain(prompt.ids, _masks(engine, visible, rows))
    return relative_gap(prompt.logits(Nothing()), expected[-1])


def reuse_a_prefix(engine: Engine) -> float:
    """Compare a plain forward with a prefill that reuses the first 48 rows of an earlier prompt."""
    prompt = RandomPrompt(engine, lengths=(48, 24))
    run = engine.prefill(prompt.layout([None, None]), Full(), Serial(), keep_raw=True)
    head = engine.harvest(run.cache, range(48))
    result = engine.prefill(prompt.layout([head, None]), Nothing(), Serial())
    return relative_gap(result.logits[0], engine.forward_plain(prompt.ids)[-1])


def move_a_block(engine: Engine) -> float:
    """Compare a prompt of two blocks with the same prompt shifted by 64 positions."""
    prompt = RandomPrompt(engine, lengths=(48, 24))
    layout = prompt.layout(prompt.blocks())
    expected = engine.prefill(layout, Nothing(), Serial()).logits[0]
    shifted = replace(layout, positions=layout.positions + 64)
    return relative_gap(engine.prefill(shifted, Nothing(), Serial()).logits[0], expected)


def vary_loading(engine: Engine) -> float:
    """Compare the loading stages under KEEP's recomputation, which chooses rows at every layer; the gap must be 0."""
    prompt, recompute = RandomPrompt(engine), MultiHop(Schedule("linear"))
    expected = prompt.logits(recompute, Serial())
    return max(relative_gap(prompt.logits(recompute, loading), expected) for loading in (NextLayer(), LayerBalanced()))


def plain_logits(engine: Engine, layout: Layout) -> torch.Tensor:
    """Return the logits (vocabulary,) of transformers' own forward of a prompt's rows at their positions.

    Positions with gaps need explicit masks, since transformers treats a gap as the start of another sequence.
    """
    positions = layout.positions
    gaps = bool((positions.diff() != 1).any())
    masks = _masks(engine, positions[None] <= positions[:, None], positions) if gaps else None
    return engine.forward_plain(layout.token_ids, masks, positions[None])[-1]


def _masks(engine: Engine, visible: torch.Tensor, positions: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return additive masks in the family's format for ``visible`` (rows, rows), limited to the sliding window."""
    info = engine.info
    window = next(filter(None, info.windows), None)

    def additive(width: int | None) -> torch.Tensor:
        allowed = visible if width is None else visible & (positions[None] > positions[:, None] - width)
        mask = torch.zeros(1, 1, *allowed.shape, dtype=info.dtype, device=allowed.device)
        return mask.masked_fill(~allowed, torch.finfo(mask.dtype).min)

    if info.family in SINGLE_MASK_FAMILIES:
        return additive(window)
    return {"full_attention": additive(None), "sliding_attention": additive(window)}


LAWS: dict[str, Callable[[Engine], float]] = {
    "1: recompute everything = plain forward": recompute_everything,
    "2: recompute nothing = every unit alone": recompute_nothing,
    "3: a reused prefix = plain forward": reuse_a_prefix,
    "4: a moved block = the block computed there": move_a_block,
    "7: loading changes nothing": vary_loading,
}
