"""Sentinel of IntentKV: read as a key, it hides dropped rows from half of the queries, and all rows from the rest.

The paper (arXiv 2606.09916, section 3.4) redirects a dropped position to one slot with K = -1e4 in every component and
V = 0, and lets attention read it. If the components of a rotated query q have a negative sum, the logit
-1e4 q.1 / sqrt(D) is large and positive: the sentinel takes all the weight, and the head returns 0 (docs/retention.md).
(According to its appendix, one of the paper's backends removes the sentinel before attention.)

`memory.kv_cache.paged.PagedCache` leaves dropped positions out: its sentinel slot is never read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from memory.engine.attention.kernels import causal_plan, grouped_attention
from memory.engine.attention.observer import AttentionObserver
from memory.engine.base import Engine
from memory.engine.models.load import load_model
from memory.engine.models.tiny_models import FAMILIES, tiny_model
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.kv_pool import SENTINEL, KVPool
from memory.kv_cache.paged import PagedCache
from planners.bundled import BUNDLED
from tests.laws.prompts import relative, tokens
from tests.references.isolated import dense_mask

TALL = -1e4  # every component of the sentinel's key


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ keys.T / q.shape[1] ** 0.5, -1) @ values


def read_sentinel(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Attend with the sentinel in place of each dropped position."""
    return attend(q, keys.where(keep[:, None], TALL), values.where(keep[:, None], 0.0))


@pytest.fixture(scope="module", params=[*FAMILIES, "planner-tiny"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    family = request.param
    model = tiny_model(family) if family in FAMILIES else load_model(BUNDLED, "float32")
    with TransformersEngine(model, "inline") as engine:
        yield engine


def cache_of(engine: Engine) -> PagedCache:
    spec = engine.info
    pool = KVPool(spec.layers, spec.kv_heads, spec.head_dim, spec.dtype, engine.device)
    cache = PagedCache(pool, AttentionObserver(recent=100))
    engine.extend(cache, tokens(100, 1, min(512, spec.vocab)))
    return cache


def test_the_papers_sentinel_fails_for_more_than_a_third_of_queries(engine: Engine) -> None:
    cache, keep = cache_of(engine), torch.arange(100) % 3 > 0
    zero, right, negative = [], [], []
    for layer, q in cache.observer.queries.items():
        group = q.shape[0] // cache.keys(layer).shape[0]
        for head, queries in enumerate(q):
            keys, values = cache.keys(layer)[head // group], cache.values(layer)[head // group]
            actual, masked = read_sentinel(queries, keys, values, keep), attend(queries, keys[keep], values[keep])
            zero.append((actual == 0).all(-1))
            right.append(torch.isclose(actual, masked, rtol=1e-4, atol=1e-5).all(-1))
            negative.append(queries.sum(-1) < 0)
    zero, right, negative = torch.stack(zero), torch.stack(right), torch.stack(negative)
    assert 0.35 < float(zero.float().mean()) < 0.6
    assert float((zero == negative).float().mean()) > 0.98, "queries with a negative sum lose everything"
    assert float((right == ~negative).float().mean()) > 0.98, "queries with a positive sum are right, but for a few"
    assert zero.any(0).all(), "every row fails in some head"


@pytest.mark.parametrize("poison", [TALL, -TALL, 1e30])
def test_a_slot_that_is_never_read_hides_rows_from_every_query(engine: Engine, poison: float) -> None:
    clean, cache = cache_of(engine), cache_of(engine)
    cache.pool.k[:, :, SENTINEL], cache.pool.v[:, :, SENTINEL] = poison, 0
    keep, new = torch.arange(100) % 3 > 0, tokens(9, 2, min(512, engine.info.vocab))
    for a_cache in (clean, cache):
        a_cache.drop(keep)
    actual = engine.append(cache, new)
    assert torch.equal(actual, engine.append(clean, new))
    queries = torch.stack([cache.observer.queries[layer][:, -9:] for layer in cache.observer.queries])
    assert 0.3 < float((queries.sum(-1) < 0).float().mean()) < 0.7, "the paper's sentinel would fail for half of them"
    places = torch.arange(109)
    visible = torch.ones(109, 109, dtype=torch.bool).tril()
    visible[100:, :100] &= keep
    ids = torch.tensor(clean.tokens)
    expected = engine.forward_plain(ids, dense_mask(engine.plain, visible, places, places))[-1]
    assert relative(actual[0], expected) < 1e-5


@pytest.mark.parametrize("sign", [1, -1])
def test_the_kernel_is_exact_for_adversarial_queries(engine: Engine, sign: int) -> None:
    cache, spec = cache_of(engine), engine.info
    cache.drop(torch.arange(100) % 3 > 0)
    cache.pool.k[:, :, SENTINEL] = TALL
    count = cache.length
    q = sign * torch.rand(1, spec.heads, count, spec.head_dim, generator=torch.Generator().manual_seed(3))
    plan = causal_plan(torch.arange(count), cache.positions, spec.dtype)
    visible = cache.end_at(count)
    for layer in range(spec.layers):
        actual = grouped_attention(q, *cache.read(layer, visible), plan.blocks(None), spec.head_dim**-0.5)
        sides, group = (cache.keys(layer), cache.values(layer)), spec.heads // spec.kv_heads
        keys, values = (x.repeat_interleave(group, 0) for x in sides)
        last = torch.stack([attend(q[0, head, -1:], keys[head], values[head])[0] for head in range(spec.heads)])
        assert relative(actual[0, -1], last) < 1e-5
