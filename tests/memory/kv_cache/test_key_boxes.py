"""Key boxes, which bound the product of a query with a block's keys, and the retrieval that ranks them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError
from memory.kv_cache.key_boxes import KeyBoxes, KeyBoxIndex
from memory.retrieval.latent import Latent
from tests.memory.houses import furnish, make_store

LAYERS, KV_HEADS, HEADS, DIM = 2, 2, 4, 6


def keys_of(sizes: list[int], seed: int = 0, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(LAYERS, KV_HEADS, size, DIM, generator=generator, dtype=dtype) for size in sizes]


def index_of(keys: list[torch.Tensor], layers: tuple[int, ...] = (0, 1)) -> KeyBoxIndex:
    index = KeyBoxIndex(layers, keys[0].shape[1], keys[0].shape[3], keys[0].dtype)
    index.append(KeyBoxes.around(keys, layers))
    return index


def queries(tokens: int = 5, seed: int = 9, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(HEADS, tokens, DIM, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def products(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return q·k (heads, tokens, keys) of each head with its KV head's ``keys`` (kv_heads, keys, head_dim)."""
    return query @ keys.repeat_interleave(HEADS // KV_HEADS, 0).mT


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    seed=st.integers(0, 999),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_no_key_exceeds_its_blocks_bound(sizes: list[int], seed: int, scale: float, dtype: torch.dtype) -> None:
    keys, query = [scale * k for k in keys_of(sizes, seed, dtype)], queries(seed=seed + 1, dtype=dtype)
    index = index_of(keys)
    for layer in range(LAYERS):
        bound = index.bound(layer, query)
        for number, of_block in enumerate(keys):
            slack = 100 * torch.finfo(dtype).eps * (query.abs().amax() * of_block.abs().amax() * DIM)
            assert bool((products(query, of_block[layer]) <= bound[:, :, number, None] + slack).all())


@pytest.mark.parametrize("sign", [1, -1])
def test_the_bound_is_reached_at_the_corners_of_the_box(sign: int) -> None:
    (block,) = keys_of([4])
    block[:, :, 1] = block.amax(2) if sign > 0 else block.amin(2)
    index = index_of([block])
    for query in (torch.eye(DIM).double(), -torch.eye(DIM).double(), sign * queries().abs()[0]):
        wide = query.expand(HEADS, -1, -1)
        best = products(wide, block[0]).amax(-1)
        assert bool((best <= index.bound(0, wide)[..., 0] + 1e-12).all())
        assert torch.allclose(best, index.bound(0, wide)[..., 0]), "the bound is tight where a key lies in the corner"


def test_a_block_of_one_key_is_its_own_bound() -> None:
    keys, query = keys_of([1, 1, 1]), queries()
    exact = products(query, torch.cat([k[1] for k in keys], 1))
    assert torch.allclose(index_of(keys).bound(1, query), exact)


def test_an_index_may_grow_in_pieces() -> None:
    keys, query = keys_of([3, 5, 1, 4, 2, 8, 7]), queries()
    whole, pieces = index_of(keys, (1,)), KeyBoxIndex((1,), KV_HEADS, DIM, torch.float64)
    for first, last in ((0, 1), (1, 4), (4, 7)):
        pieces.append(KeyBoxes.around(keys[first:last], (1,)))
    assert torch.equal(whole.bound(1, query), pieces.bound(1, query)) and pieces.tokens == [3, 5, 1, 4, 2, 8, 7]
    pieces.keep([0, 2, 5])
    assert torch.allclose(pieces.bound(1, query), whole.bound(1, query)[:, :, [0, 2, 5]])
    pieces.append(KeyBoxes.around(keys[:1], (1,)))
    assert pieces.tokens == [3, 1, 8, 3] and pieces.bound(1, query).shape == (HEADS, 5, 4)
    pieces.keep([])
    assert len(pieces) == 0


@pytest.mark.parametrize("normalise", ["softmax", "rank"])
@pytest.mark.parametrize("aggregate", ["max", "sum"])
def test_ties_go_to_the_earlier_block(normalise: str, aggregate: str) -> None:
    a, b = keys_of([4, 4], dtype=torch.float32)
    index, query = index_of([a, b, a, a]), queries(dtype=torch.float32)
    stage = Latent(top_k=2, normalise=normalise, aggregate=aggregate)
    selection = stage.choose([query, query], index)
    assert selection in ([0, 1], [0, 2])


def test_scores_that_underflow_in_a_softmax_are_still_ranked() -> None:
    """In float32 the softmax of -2000 is 0, and the block must still precede that of -3000."""
    index = index_of([torch.full((1, 1, 1, 1), value) for value in (-3000.0, 0.0, -2000.0, -4000.0)], (0,))
    assert Latent(top_k=3).choose([torch.ones(1, 1, 1)], index) == [0, 1, 2]
    assert Latent(top_k=2).choose([torch.ones(1, 1, 1)], index) == [1, 2]


def test_a_token_budget_is_filled_with_the_best_blocks_that_fit() -> None:
    keys = [torch.full((1, 1, size, 1), value) for size, value in ((3, 1.0), (4, 4.0), (5, 3.0), (2, 2.0))]
    index = index_of(keys, (0,))
    for room, selection in ((4, [1]), (6, [1, 3]), (9, [1, 2]), (8, [1, 3]), (2, [3]), (14, [0, 1, 2, 3]), (1, [])):
        stage = Latent(top_k=room, unit="tokens")
        assert stage.choose([torch.ones(1, 1, 1)], index) == selection
        assert stage.chooses_all(index) == (room == 14)
    assert Latent(top_k=33, unit="tokens").max_blocks(16) == 2


def test_every_copy_of_a_block_counts_towards_the_budget() -> None:
    keys = [torch.full((1, 1, size, 1), value) for size, value in ((3, 1.0), (4, 4.0), (5, 3.0))]
    index = index_of(keys, (0,))
    index.copies = [2, 3, 1]
    for unit, top_k, selection in (
        ("blocks", 2, [1, 1]), ("blocks", 5, [0, 1, 1, 1, 2]), ("blocks", 6, [0, 0, 1, 1, 1, 2]),
        ("tokens", 8, [1, 1]), ("tokens", 11, [0, 1, 1]), ("tokens", 17, [1, 1, 1, 2]),
        ("tokens", 23, [0, 0, 1, 1, 1, 2]),
    ):  # fmt: skip
        stage = Latent(top_k=top_k, unit=unit)
        assert stage.choose([torch.ones(1, 1, 1)], index) == selection
        assert stage.chooses_all(index) == (len(selection) == 6)
    index.keep([0, 2])
    assert index.copies == [2, 1]


def test_max_follows_one_token_and_sum_all_tokens() -> None:
    """Six tokens match the second block weakly; one token matches the first block strongly."""
    index = index_of([torch.tensor([[[[4.0, 0.0]]]]), torch.tensor([[[[0.0, 1.0]]]])], (0,))
    query = torch.tensor([[[2.0, 0.0], *[[0.0, 2.0]] * 6]])
    assert Latent(top_k=1, aggregate="max").choose([query], index) == [0]
    assert Latent(top_k=1, aggregate="sum").choose([query], index) == [1]


def test_long_queries_are_processed_in_pieces() -> None:
    index, query = index_of(keys_of([3] * 9)), queries(tokens=150)
    for normalise in ("softmax", "rank"):
        stage = Latent(top_k=4, normalise=normalise, aggregate="sum")
        backwards = stage.choose([query.flip(1)] * 2, index)
        assert stage.choose([query] * 2, index) == backwards


def test_all_segments_are_selected_and_layers_have_names() -> None:
    store = make_store()
    furnish(store)
    store.graph.update(store)
    assert set(Latent().select("q", store, 1)) == {segment.id for segment in store}
    thirds = [Latent(layers=band).scoring_layers(8) for band in ("early", "middle", "late")]
    assert [layer for band in thirds for layer in band] == list(range(8)) == list(Latent().scoring_layers(8))
    assert [Latent(layers=band).scoring_layers(1) for band in ("early", "middle", "late")] == [(0,)] * 3
    assert Latent(layers=[5, 1, 5]).scoring_layers(8) == (1, 5)
    with pytest.raises(ConfigError, match="use numbers from 0 to 7"):
        Latent(layers=[8]).scoring_layers(8)
