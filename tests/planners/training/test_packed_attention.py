import pytest
import torch

from planners.training import packed_attention as attention
from planners.training.packing import IGNORE, PackedExample, Slot

HEADS, DIM = 2, 8


def packs(count: int, widths: tuple[int, ...], hidden: frozenset[str] = frozenset()) -> list[PackedExample]:
    memory = (("one", tuple(range(3, 10))), ("two", tuple(range(10, 14))))
    slots = tuple(Slot("step", tuple(range(width)), (IGNORE,) * width, hidden) for width in widths)
    return [PackedExample(memory[: number + 1], slots) for number in range(count)]


def random_states(batch: attention.PackedBatch, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Draw queries, keys and values (B, H, rows, D) of a batch."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(batch.ids), HEADS, batch.ids.shape[1], DIM)
    return tuple(torch.randn(shape, generator=generator) for _ in range(3))


def divide(x: torch.Tensor, batch: attention.PackedBatch) -> attention.Pair:
    return x.split([batch.memory, x.shape[2] - batch.memory], 2)


@pytest.mark.parametrize("scaling", [None, 0.3])
def test_matrix_products_equal_the_kernel(scaling: float | None) -> None:
    batch = attention.collate(packs(2, (5, 9, 17), frozenset({"one"})), bos=1, pad=0)
    query, key, value = random_states(batch)
    parts = (divide(query, batch)[1], divide(key, batch), divide(value, batch), batch, scaling)
    torch.testing.assert_close(attention._matmul_attention(*parts), attention._kernel_attention(*parts))


def test_bfloat16_on_a_cpu_is_near_float32() -> None:
    batch = attention.collate(packs(2, (5, 9), frozenset({"one"})), bos=1, pad=0)
    states = random_states(batch)
    exact, _ = attention.packed_attention(None, *states, None, pack=batch)
    near, _ = attention.packed_attention(None, *(state.bfloat16() for state in states), None, pack=batch)
    rows = batch.positions > 0  # padded rows are undefined
    torch.testing.assert_close(near.float()[rows], exact[rows], atol=0.05, rtol=0.05)


def test_wide_slots_of_one_memory_need_no_mask() -> None:
    """Each slot is the end of a sequence that begins with the memory."""
    batch = attention.collate(packs(1, (attention.MATMUL_ROWS + 5, attention.MATMUL_ROWS + 1)), bos=1, pad=0)
    assert batch.causal and not batch.slot_bias.numel()
    query, key, value = random_states(batch)
    out, _ = attention.packed_attention(None, query, key, value, None, pack=batch)
    assert out.shape == (1, batch.ids.shape[1], HEADS, DIM)
    for slot in range(2):
        first = batch.memory + slot * (attention.MATMUL_ROWS + 5)
        rows = [*range(batch.memory), *range(first, first + attention.MATMUL_ROWS + 5)]
        states = (state[:, :, rows] for state in (query, key, value))
        expected = torch.nn.functional.scaled_dot_product_attention(*states, is_causal=True).transpose(1, 2)
        torch.testing.assert_close(out[:, rows], expected)


@pytest.mark.parametrize(
    ("widths", "count", "hidden"),
    [
        ((9, 5), 1, frozenset()),
        ((attention.MATMUL_ROWS + 1,) * 2, 2, frozenset()),
        ((attention.MATMUL_ROWS + 1,), 1, frozenset({"one"})),
    ],
)
def test_short_padded_and_hiding_slots_have_a_mask(widths: tuple[int, ...], count: int, hidden: frozenset[str]) -> None:
    assert not attention.collate(packs(count, widths, hidden), bos=1, pad=0).causal


def test_separate_lines_are_masked_under_wide_slots_too() -> None:
    batch = attention.collate(packs(1, (attention.MATMUL_ROWS + 1,) * 2), bos=1, pad=0, separate=True)
    assert not batch.causal and batch.memory_bias is not None
