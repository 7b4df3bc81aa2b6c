"""Survivors numbered anew have the keys of their new positions, and what is scored behind them sees them there.

Norm: largest difference over the largest expected magnitude.
"""

from __future__ import annotations

import sys

import pytest
import torch
from transformers import DynamicCache

from memory.engine.attention.observer import AttentionObserver
from memory.engine.base import Engine
from memory.engine.models.tiny_models import FAMILIES
from memory.engine.transformers.compact import compact
from memory.kv_cache.block import KVBlock
from memory.kv_cache.kv_pool import KVPool
from memory.kv_cache.paged import PagedCache
from memory.loading.serial import Serial
from memory.recompute.full import Full
from tests.laws.conftest import GetEngine
from tests.laws.prompts import Prompt, relative, tokens
from tests.laws.transcripts import CANDIDATES
from tests.references.isolated import dense_mask

IDS = tokens(70, 3)


def paged(engine: Engine) -> PagedCache:
    spec = engine.info
    pool = KVPool(spec.layers, spec.kv_heads, spec.head_dim, spec.dtype, engine.device)
    cache = PagedCache(pool, AttentionObserver(recent=4))
    engine.extend(cache, IDS)
    return cache


def bare_rows(engine: Engine) -> KVBlock:
    """Unrotated keys, and values of the whole prompt."""
    prompt = Prompt((tuple(IDS[:-1]),), tuple(IDS[-1:]))
    run = engine.prefill(prompt.layout([None]), Full(), Serial(), keep_raw=True)
    return engine.harvest(run.cache, range(len(IDS)))


def rotated(engine: Engine, layer: int, keys: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Unrotated ``keys`` (kv_heads, rows, head_dim) of a layer at ``places``, by transformers' own tables."""
    base = engine.plain.model
    kinds = (engine.plain.config.layer_types[layer],) if engine.info.family == "gemma3_text" else ()
    cos, sin = base.rotary_emb(keys, places[None], *kinds)
    apply = sys.modules[type(base.layers[0].self_attn).__module__].apply_rotary_pos_emb
    return apply(keys[None], keys[None], cos, sin)[1][0]


def forget(cache: PagedCache, share: float, seed: int, first: int = 0) -> torch.Tensor:
    """Drop rows from number ``first`` on at random; which ones stayed."""
    keep = torch.rand(cache.length, generator=torch.Generator().manual_seed(seed)) < share
    keep[:first] = True
    keep[-1] = True
    cache.drop(keep)
    return keep


def test_keys_are_those_of_the_new_positions(engine: Engine) -> None:
    """However often they move: yarn's attention factor comes off before each new turn, and goes on again."""
    cache, bare, kept = paged(engine), bare_rows(engine), torch.arange(len(IDS))
    for number, first in enumerate((9, 4, 0)):
        kept = kept[forget(cache, 0.7, number, first)]
        cache.pool.check_integrity()
        compact(engine.decoder, cache)
        cache.pool.check_integrity()
        assert cache.positions.tolist() == list(range(kept.numel())) and cache.next_position == kept.numel()
        assert cache.dropped == 0 and cache.exact == int((kept != cache.positions.cpu()).nonzero()[0])
        assert cache.pool.used == kept.numel(), "what rested at the old places is free"
        for layer in range(engine.info.layers):
            expected = rotated(engine, layer, bare.k[layer][:, kept], cache.positions.cpu())
            assert relative(cache.keys(layer), expected) < 1e-5
            assert relative(cache.values(layer), bare.v[layer][:, kept]) < 1e-5


@torch.no_grad()
def dense(engine: Engine, bare: KVBlock, kept: torch.Tensor, new: list[int]) -> torch.Tensor:
    """(new rows, vocab) logits of transformers' own forward behind the ``kept`` rows at positions 0, 1, ..."""
    stored, count = DynamicCache(), kept.numel()
    for layer in range(engine.info.layers):
        keys = rotated(engine, layer, bare.k[layer][:, kept], torch.arange(count))
        stored.update(keys[None], bare.v[layer][None, :, kept], layer)
    rows, every = torch.arange(count, count + len(new)), torch.arange(count + len(new))
    mask = dense_mask(engine.plain, every[None] <= rows[:, None], rows, every)
    given = {"attention_mask": mask, "position_ids": rows[None], "past_key_values": stored, "use_cache": True}
    return engine.plain(torch.tensor([new]), **given).logits[0]


def test_what_is_scored_behind_them_stands_at_the_new_positions(engine: Engine) -> None:
    cache, bare = paged(engine), bare_rows(engine)
    first = cache.logits[0].cpu()
    kept = torch.arange(len(IDS))[forget(cache, 0.6, 5)]
    compact(engine.decoder, cache)
    expected = []
    for candidate in CANDIDATES:
        logits = torch.cat([first[None], dense(engine, bare, kept, candidate)[:-1]]).log_softmax(-1)
        expected.append(logits.gather(1, torch.tensor(candidate)[:, None]).sum())
    assert relative(engine.score(cache, CANDIDATES).scores, torch.stack(expected)) < 1e-5
    turn = tokens(12, 8)
    found = engine.append(cache, turn)
    assert relative(found[0], dense(engine, bare, kept, turn)[-1]) < 1e-5
    cache.pool.check_integrity()


def test_rows_that_have_no_position_any_more_would_have_been_read(engine: Engine) -> None:
    """Raw reads are those of a cache that keeps everything, until the transcript begins anew."""
    cache = paged(engine)
    forget(cache, 0.6, 5)
    gone = cache.dropped
    compact(engine.decoder, cache)
    for one in (cache, cache.fork()):
        before = one.reads.raw - one.reads.live
        engine.append(one, tokens(1, 8))
        assert one.reads.raw - one.reads.live == before + gone > before
    cache.cut(0)
    before = cache.reads.raw - cache.reads.live
    engine.append(cache, IDS)
    assert cache.reads.raw - cache.reads.live == before


@pytest.mark.parametrize("family", FAMILIES)
def test_moved_rows_differ_from_rows_that_stay(family: str, engine_of: GetEngine) -> None:
    """Otherwise the tests above would hold for an engine that leaves keys alone."""
    engine = engine_of(family)
    caches = [paged(engine) for _ in range(2)]
    for cache in caches:
        forget(cache, 0.6, 5)
    compact(engine.decoder, caches[1])
    assert max(relative(caches[1].keys(layer), caches[0].keys(layer)) for layer in range(engine.info.layers)) > 0.1
    stays, moves = (engine.append(cache, tokens(12, 8)) for cache in caches)
    assert relative(moves, stays) > 1e-3


def test_nothing_moves_where_nothing_is_missing(engine_of: GetEngine) -> None:
    engine = engine_of("gpt_oss")
    cache = paged(engine)
    slots, observer = cache.slots.clone(), cache.observer
    compact(engine.decoder, cache)
    assert torch.equal(cache.slots, slots) and cache.observer is observer and cache.exact == len(IDS)
