"""The engine's laws as numbers: how far two ways to the same logits lie apart on random prompts.

Each figure is the largest difference of the last row's logits over their largest magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from memory.engine.base import Engine
from memory.kv_cache.block import KVBlock
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.prompt.layout import Layout, lay_out, place
from memory.prompt.units import Unit
from memory.recompute.full import Full
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from memory.recompute.schedule import Schedule
from memory.stages import Loading, Recompute

LENGTHS, QUERY = (20, 31, 17, 26), 12  # tokens
ONE_MASK = ("llama", "mistral", "qwen3_moe")  # families whose forward takes one mask, not one per kind of layer


class RandomPrompt:
    """Units of random tokens, each encoded alone, and a query."""

    def __init__(self, engine: Engine, seed: int = 0, lengths: Sequence[int] = LENGTHS) -> None:
        generator = torch.Generator().manual_seed(seed)
        vocabulary = engine.model.module.config.vocab_size

        def tokens(count: int) -> tuple[int, ...]:
            return tuple(torch.randint(0, vocabulary, (count,), generator=generator).tolist())

        self.engine = engine
        self.units = [Unit.of("segment", [(f"s{i}", tokens(length))]) for i, length in enumerate(lengths)]
        self.query = tokens(QUERY)
        self.ids = torch.tensor([*(token for unit in self.units for token in unit.token_ids), *self.query])

    def blocks(self) -> list[KVBlock]:
        return self.engine.encode([(None, unit.token_ids) for unit in self.units])

    def layout(self, blocks: Sequence[KVBlock | None]) -> Layout:
        placed = place(self.units, 0, list(blocks), [block is not None for block in blocks])
        return lay_out((), placed, self.query, True, self.engine.device)

    def logits(self, recompute: Recompute, loading: Loading | None = None) -> torch.Tensor:
        """(vocabulary,) logits of the last row over the units' blocks."""
        layout = self.layout(self.blocks())
        return self.engine.prefill(layout, recompute, loading or Serial()).logits[0]


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest expected magnitude."""
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max())


def recompute_everything(engine: Engine) -> float:
    prompt = RandomPrompt(engine)
    return relative(prompt.logits(Full()), engine.forward_plain(prompt.ids)[-1])


def recompute_nothing(engine: Engine) -> float:
    """Against one forward in which every unit sees only itself."""
    prompt = RandomPrompt(engine)
    layout = prompt.layout(prompt.blocks())
    owner, rows = layout.segment_of, torch.arange(layout.rows, device=layout.token_ids.device)
    visible = ((owner[:, None] == owner[None]) | (owner[:, None] < 0)) & (rows[None] <= rows[:, None])
    expected = engine.forward_plain(prompt.ids, _masks(engine, visible, rows))
    return relative(prompt.logits(Nothing()), expected[-1])


def reuse_a_prefix(engine: Engine) -> float:
    """Rows of an earlier prompt's beginning, and something new behind them."""
    prompt = RandomPrompt(engine, lengths=(48, 24))
    whole = prompt.layout([None, None])
    run = engine.prefill(whole, Full(), Serial(), keep_raw=True)
    head = engine.harvest(run.cache, range(48))
    result = engine.prefill(prompt.layout([head, None]), Nothing(), Serial())
    return relative(result.logits[0], engine.forward_plain(prompt.ids)[-1])


def move_a_block(engine: Engine) -> float:
    """The same two blocks in the same prompt, 64 positions further on."""
    prompt = RandomPrompt(engine, lengths=(48, 24))
    layout = prompt.layout(prompt.blocks())
    here = engine.prefill(layout, Nothing(), Serial()).logits[0]
    return relative(_shifted(engine, layout, 64), here)


def _shifted(engine: Engine, layout: Layout, by: int) -> torch.Tensor:
    moved = Layout(
        layout.token_ids, layout.positions + by, layout.context, layout.query, layout.placements, layout.segments,
        layout.segment_of, layout.fresh,
    )  # fmt: skip
    return engine.prefill(moved, Nothing(), Serial()).logits[0]


def load_otherwise(engine: Engine) -> float:
    """KEEP's recomputation, choosing at every layer, under every loading stage; the figure is exactly 0."""
    prompt, recompute = RandomPrompt(engine), MultiHop(Schedule("linear"))
    expected = prompt.logits(recompute, Serial())
    return max(relative(prompt.logits(recompute, loading), expected) for loading in (NextLayer(), LayerBalanced()))


def plain_logits(engine: Engine, layout: Layout) -> torch.Tensor:
    """(vocabulary,) logits of transformers' own forward of a prompt's rows, each at its own position.

    Where positions leave gaps the masks are ours: by itself, transformers takes a gap for the end of a text.
    """
    places = layout.positions
    gaps = bool((places.diff() != 1).any())
    masks = _masks(engine, places[None] <= places[:, None], places) if gaps else None
    return engine.forward_plain(layout.token_ids, masks, places[None])[-1]


def _masks(engine: Engine, visible: torch.Tensor, places: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
    """Additive masks as the family's own forward takes them, for rows at the positions ``places``."""
    config = engine.model.module.config
    window = getattr(config, "sliding_window", None)

    def additive(width: int | None) -> torch.Tensor:
        seen = visible if width is None else visible & (places[None] > places[:, None] - width)
        mask = torch.zeros(1, 1, *seen.shape, dtype=engine.model.module.dtype, device=seen.device)
        return mask.masked_fill(~seen, torch.finfo(mask.dtype).min)

    if config.model_type in ONE_MASK:
        return additive(window)
    return {"full_attention": additive(None), "sliding_attention": additive(window)}


LAWS: dict[str, Callable[[Engine], float]] = {
    "1: recompute everything = plain forward": recompute_everything,
    "2: recompute nothing = every unit alone": recompute_nothing,
    "3: a reused prefix = plain forward": reuse_a_prefix,
    "4: a moved block = the block computed there": move_a_block,
    "7: loading changes nothing": load_otherwise,
}
