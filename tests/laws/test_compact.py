"""Compaction: surviving rows get keys of their new positions, and later rows attend to them there.

Error: largest difference over the largest expected magnitude.
"""

from __future__ import annotations

import sys

import torch
from transformers import DynamicCache

from memory.engine.attention.observer import AttentionObserver
from memory.engine.base import Engine
from memory.engine.transformers.cache_providers import compact
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


def unrotated_rows(engine: Engine) -> KVBlock:
    """Return the unrotated keys and the values of the whole prompt."""
    prompt = Prompt((tuple(IDS[:-1]),), tuple(IDS[-1:]))
    run = engine.prefill(prompt.layout([None]), Full(), Serial(), keep_raw=True)
    return engine.harvest(run.cache, range(len(IDS)))


def rotate(engine: Engine, layer: int, keys: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Rotate ``keys`` (kv_heads, rows, head_dim) of a layer to ``places`` with transformers' own tables."""
    base = engine.plain.model
    kinds = (engine.plain.config.layer_types[layer],) if engine.info.family == "gemma3_text" else ()
    cos, sin = base.rotary_emb(keys, places[None], *kinds)
    apply = sys.modules[type(base.layers[0].self_attn).__module__].apply_rotary_pos_emb
    return apply(keys[None], keys[None], cos, sin)[1][0]


def drop_rows(cache: PagedCache, share: float, seed: int, first: int = 0) -> torch.Tensor:
    """Drop random rows from index ``first`` on; return the mask of the rows that stay."""
    keep = torch.rand(cache.length, generator=torch.Generator().manual_seed(seed)) < share
    keep[:first] = True
    keep[-1] = True
    cache.drop(keep)
    return keep


def test_keys_are_those_of_the_new_positions(engine: Engine) -> None:
    """Compact three times: yarn's attention factor is removed before each rotation and applied again after it."""
    cache, unrotated, survivors = paged(engine), unrotated_rows(engine), torch.arange(len(IDS))
    for number, first in enumerate((9, 4, 0)):
        survivors = survivors[drop_rows(cache, 0.7, number, first)]
        cache.pool.check_integrity()
        compact(engine.decoder, cache)
        cache.pool.check_integrity()
        assert cache.positions.tolist() == list(range(survivors.numel())) and cache.next_position == survivors.numel()
        assert cache.dropped == 0 and cache.exact == int((survivors != cache.positions.cpu()).nonzero()[0])
        assert cache.pool.in_use == survivors.numel(), "the old slots must be free"
        for layer in range(engine.info.layers):
            expected = rotate(engine, layer, unrotated.k[layer][:, survivors], cache.positions.cpu())
            assert relative(cache.keys(layer), expected) < 1e-5
            assert relative(cache.values(layer), unrotated.v[layer][:, survivors]) < 1e-5


@torch.no_grad()
def dense(engine: Engine, unrotated: KVBlock, survivors: torch.Tensor, new: list[int]) -> torch.Tensor:
    """Return (new rows, vocab) logits of transformers' own forward after the survivors at positions 0, 1, ..."""
    stored, count = DynamicCache(), survivors.numel()
    for layer in range(engine.info.layers):
        keys = rotate(engine, layer, unrotated.k[layer][:, survivors], torch.arange(count))
        stored.update(keys[None], unrotated.v[layer][None, :, survivors], layer)
    rows, every = torch.arange(count, count + len(new)), torch.arange(count + len(new))
    mask = dense_mask(engine.plain, every[None] <= rows[:, None], rows, every)
    options = {"attention_mask": mask, "position_ids": rows[None], "past_key_values": stored, "use_cache": True}
    return engine.plain(torch.tensor([new]), **options).logits[0]


def test_later_rows_attend_to_the_new_positions(engine: Engine) -> None:
    cache, unrotated = paged(engine), unrotated_rows(engine)
    first = cache.logits[0].cpu()
    survivors = torch.arange(len(IDS))[drop_rows(cache, 0.6, 5)]
    compact(engine.decoder, cache)
    expected = []
    for candidate in CANDIDATES:
        logits = torch.cat([first[None], dense(engine, unrotated, survivors, candidate)[:-1]]).log_softmax(-1)
        expected.append(logits.gather(1, torch.tensor(candidate)[:, None]).sum())
    assert relative(engine.score(cache, CANDIDATES).scores, torch.stack(expected)) < 1e-5
    turn = tokens(12, 8)
    logits = engine.append(cache, turn)
    assert relative(logits[0], dense(engine, unrotated, survivors, turn)[-1]) < 1e-5
    cache.pool.check_integrity()


def test_raw_reads_include_rows_evicted_before_compaction(engine: Engine) -> None:
    """Raw reads equal the reads of a cache without eviction, until the transcript starts again."""
    cache = paged(engine)
    drop_rows(cache, 0.6, 5)
    evicted = cache.dropped
    compact(engine.decoder, cache)
    for branch in (cache, cache.fork()):
        before = branch.reads.raw - branch.reads.live
        engine.append(branch, tokens(1, 8))
        assert branch.reads.raw - branch.reads.live == before + evicted > before
    cache.cut(0)
    before = cache.reads.raw - cache.reads.live
    engine.append(cache, IDS)
    assert cache.reads.raw - cache.reads.live == before


def test_compaction_changes_keys_and_logits(engine: Engine) -> None:
    """Without this, the tests above would pass for an engine that never rotates keys."""
    caches = [paged(engine) for _ in range(2)]
    for cache in caches:
        drop_rows(cache, 0.6, 5)
    compact(engine.decoder, caches[1])
    assert max(relative(caches[1].keys(layer), caches[0].keys(layer)) for layer in range(engine.info.layers)) > 0.1
    stays, moves = (engine.append(cache, tokens(12, 8)) for cache in caches)
    assert relative(moves, stays) > 1e-3


def test_compaction_without_gaps_changes_nothing(engine_of: GetEngine) -> None:
    engine = engine_of("gpt_oss")
    cache = paged(engine)
    slots, observer = cache.slots.clone(), cache.observer
    compact(engine.decoder, cache)
    assert torch.equal(cache.slots, slots) and cache.observer is observer and cache.exact == len(IDS)
