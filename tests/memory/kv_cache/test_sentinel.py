"""Read as a key, IntentKV's sentinel hides dropped rows from half of the queries, and all rows from the other half.

The paper (arXiv 2606.09916, section 3.4) redirects a dropped position to one slot with K = -1e4 in every component and
V = 0, and lets attention read it: its logit is said to be -1e4 sqrt(D). It is -1e4 q.1 / sqrt(D). Where the components
of a rotated query q have a positive sum, the row vanishes as meant. Where their sum is negative the logit is large and
positive, the sentinel takes all the weight, and the head returns 0: the whole memory is gone for that row. Of all
(layer, head, row) of random models 45 to 57 % fail, of the trained planner's 37 %, and no row gets through all its
heads. (One of the paper's backends strips the sentinel before attention, says its appendix.)

`memory.kv_cache.paged.PagedCache` hides a dropped position by leaving it out. Its sentinel's slot is only what padded
blocks run over, behind a mask, so no query can find it.
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
from planners.tiny.checkpoint import BUNDLED
from tests.laws.prompts import relative, tokens
from tests.references.isolated import dense_mask

TALL = -1e4  # every component of the sentinel's key
ROWS, DIM = 50, 16


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """(n, dim) of queries (n, dim)."""
    return torch.softmax(q @ keys.T / q.shape[1] ** 0.5, -1) @ values


def read_sentinel(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """The same where each dropped position reads the sentinel."""
    return attend(q, keys.where(kept[:, None], TALL), values.where(kept[:, None], 0.0))


@pytest.fixture
def rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, values, and which rows are kept."""
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(ROWS, DIM, generator=generator) for _ in range(2))
    return keys, values, torch.rand(ROWS, generator=generator) < 0.6


def test_the_trick_stands_and_falls_with_the_sign(rows: tuple[torch.Tensor, ...]) -> None:
    keys, values, kept = rows
    meant = torch.ones(1, DIM)
    for q, hides in [(meant, True), (-meant, False), (0.01 * meant, True), (-0.01 * meant, False)]:
        found, masked = read_sentinel(q, *rows), attend(q, keys[kept], values[kept])
        assert masked.abs().max() > 0.1
        exact = {} if hides else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(found, masked if hides else torch.zeros_like(found), **exact)
    assert float(meant[0] @ torch.full((DIM,), TALL)) / DIM**0.5 == TALL * DIM**0.5, (
        "the paper's logit is that of q = 1"
    )


def test_one_component_may_decide(rows: tuple[torch.Tensor, ...]) -> None:
    """The more so as it is the sum that counts: a query that is at right angles to 1 dilutes its weights."""
    keys, values, kept = rows
    q = torch.zeros(1, DIM)
    q[0, :2] = torch.tensor([3.0, -3.0])
    level = read_sentinel(q, *rows)
    scores = (q @ keys[kept].T / DIM**0.5).exp()
    share = scores.sum() / (scores.sum() + int((~kept).sum()))  # every dropped position counts as e^0
    torch.testing.assert_close(level, share * attend(q, keys[kept], values[kept]))
    for nudge, gone in [(-0.1, True), (0.1, False)]:
        tipped = q.clone()
        tipped[0, 5] = nudge
        assert bool((read_sentinel(tipped, *rows) == 0).all()) == gone


@pytest.fixture(scope="module", params=[*FAMILIES, "planner-tiny"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Every family with random weights, and the bundled planner, which is trained."""
    family = request.param
    with TransformersEngine(
        tiny_model(family) if family in FAMILIES else load_model(BUNDLED, "float32"), "inline"
    ) as made:
        yield made


def told(engine: Engine) -> PagedCache:
    spec = engine.info
    pool = KVPool(spec.layers, spec.kv_heads, spec.head_dim, spec.dtype, engine.device)
    cache = PagedCache(pool, AttentionObserver(recent=100))
    engine.extend(cache, tokens(100, 1, min(512, spec.vocab)))
    return cache


def test_more_than_a_third_of_all_queries_defeat_the_trick(engine: Engine) -> None:
    cache, kept = told(engine), torch.arange(100) % 3 > 0
    gone, right, negative = [], [], []
    for layer, q in cache.observer.queries.items():
        group = q.shape[0] // cache.keys(layer).shape[0]
        for head, queries in enumerate(q):
            keys, values = cache.keys(layer)[head // group], cache.values(layer)[head // group]
            found, masked = read_sentinel(queries, keys, values, kept), attend(queries, keys[kept], values[kept])
            gone.append((found == 0).all(-1))
            right.append(torch.isclose(found, masked, rtol=1e-4, atol=1e-5).all(-1))
            negative.append(queries.sum(-1) < 0)
    gone, right, negative = torch.stack(gone), torch.stack(right), torch.stack(negative)
    assert 0.35 < float(gone.float().mean()) < 0.6
    assert float((gone == negative).float().mean()) > 0.98, "those of a negative sum"
    assert float((right == ~negative).float().mean()) > 0.98, "all others but a few near 0 are as they should be"
    assert gone.any(0).all(), "no row gets through all heads"


@pytest.mark.parametrize("poison", [TALL, -TALL, 1e30])
def test_what_is_never_read_hides_from_every_query(engine: Engine, poison: float) -> None:
    """The paper's sentinel lies in its slot, or a worse one: the rows behind dropped ones are what a mask gives."""
    clean, cache = told(engine), told(engine)
    cache.pool.k[:, :, SENTINEL], cache.pool.v[:, :, SENTINEL] = poison, 0
    keep, new = torch.arange(100) % 3 > 0, tokens(9, 2, min(512, engine.info.vocab))
    for one in (clean, cache):
        one.drop(keep)
    found = engine.append(cache, new)
    assert torch.equal(found, engine.append(clean, new))
    queries = torch.stack([cache.observer.queries[layer][:, -9:] for layer in cache.observer.queries])
    assert 0.3 < float((queries.sum(-1) < 0).float().mean()) < 0.7, "for half of which the trick would fail"
    places = torch.arange(109)
    visible = torch.ones(109, 109, dtype=torch.bool).tril()
    visible[100:, :100] &= keep
    ids = torch.tensor(clean.tokens)
    expected = engine.forward_plain(ids, dense_mask(engine.plain, visible, places, places))[-1]
    assert relative(found[0], expected) < 1e-5


@pytest.mark.parametrize("sign", [1, -1])
def test_our_kernel_over_our_rows_is_exact_for_adversarial_queries(engine: Engine, sign: int) -> None:
    cache, spec = told(engine), engine.info
    cache.drop(torch.arange(100) % 3 > 0)
    cache.pool.k[:, :, SENTINEL] = TALL
    count = cache.length
    q = sign * torch.rand(1, spec.heads, count, spec.head_dim, generator=torch.Generator().manual_seed(3))
    plan = causal_plan(torch.arange(count), cache.positions, spec.dtype)
    visible = cache.end_at(count)
    for layer in range(spec.layers):
        found = grouped_attention(q, *cache.read(layer, visible), plan.blocks(None), spec.head_dim**-0.5)
        keys, values = (
            x.repeat_interleave(spec.heads // spec.kv_heads, 0) for x in (cache.keys(layer), cache.values(layer))
        )
        last = torch.stack([attend(q[0, head, -1:], keys[head], values[head])[0] for head in range(spec.heads)])
        assert relative(found[0, -1], last) < 1e-5
