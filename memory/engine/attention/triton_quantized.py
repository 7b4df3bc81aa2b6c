"""Triton kernel for attention over packed keys and values, which are unpacked in registers only.

It computes the running softmax sums of `tiled_attention` over one tile. Import this module only if
`tiled.reads_packed` holds.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from triton.runtime import JITFunction

from memory.engine.attention.kernels import MaskBlock
from memory.kv_cache.quantization import Packed

DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
MAX_HEAD_DIM = 256  # largest head_dim that fits into a GPU's shared memory
MIN_CAPABILITY = 8, 0  # compute capability with bfloat16 products
FEW_ROWS, SPLITS = 64, 8  # up to FEW_ROWS query rows occupy too little of a GPU, so SPLITS programs divide the keys
KEYS = 32  # keys unpacked at a time; registers do not suffice for twice as many


def supports(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Tell whether the kernel supports queries of this size and runs on ``device`` or in Triton's interpreter.

    Without a driver or a C compiler, an error of Triton is raised.
    """
    return dtype in DTYPES and head_dim <= MAX_HEAD_DIM and _runs_on(device)


@lru_cache(16)
def _runs_on(device: torch.device) -> bool:
    if _interpreted():
        return True
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return False
    triton.runtime.driver.active.get_current_target()
    return True


def _interpreted() -> bool:
    return not isinstance(_tile_kernel, JITFunction)


class RunningSums:
    """Running softmax sums of scaled queries ``q`` (requests, heads, rows, head_dim) over packed keys.

    The query heads of one KV head are rows of one product. Every split of a tile's keys has its own sums in float32:
    ``top``, ``mass`` (splits, requests, heads, rows, 1) and ``out`` (splits, requests, heads, rows, head_dim).
    """

    def __init__(self, q: torch.Tensor, kv_heads: int) -> None:
        requests, heads, rows, _ = q.shape
        self._q, self._products, self._folded = q.contiguous(), requests * kv_heads, heads // kv_heads * rows
        self.splits = SPLITS if self._folded <= FEW_ROWS else 1
        self.out = q.new_zeros(self.splits, *q.shape, dtype=torch.float32)
        self.mass = self.out.new_zeros(*self.out.shape[:-1], 1)
        self.top = torch.full_like(self.mass, float("-inf"))

    def add(
        self, k: Packed, v: Packed, first: int, last: int, block: MaskBlock, column: int, softcap: float | None
    ) -> None:
        """Add rows ``first:last`` of ``k``, ``v``, which are the block's columns from ``column`` on."""
        q, dim = self._q, k.head_dim
        bias = None if block.bias is None else block.bias.contiguous()
        columns = 0 if bias is None else bias.shape[-1]
        free = block.prefix + block.k1 - block.k0 - columns - column  # columns before those of the bias
        shared = bias is None or bias.dim() == 2
        wide = max(triton.next_power_of_2(dim), 16)
        tiling = _tiling(self._folded, wide, q.dtype)
        part = triton.cdiv(triton.cdiv(last - first, self.splits), KEYS) * KEYS
        grid = triton.cdiv(self._folded, tiling["ROWS"]), self._products, self.splits
        with torch.cuda.device_of(q):  # Triton starts kernels on the current device
            _tile_kernel[grid](
                q,
                *(x.contiguous() for x in (*k.tensors, *v.tensors)),
                q if bias is None else bias,
                *(self.top, self.mass, self.out),
                *(self._folded, q.shape[2], k.tokens, first, last, part),
                *(first + free, columns, 0 if shared else q.shape[2] * columns, softcap or 1.0),
                **{"K_WIDTH": k.grid.width, "K_SIZE": k.grid.size, "K_SPAN": k.grid.span},
                **{"V_WIDTH": v.grid.width, "V_SIZE": v.grid.size, "BITS": k.grid.bits, "KV_HEADS": k.kv_heads},
                **{"DIM": dim, "WIDE": wide, "BIASED": bias is not None, "CAPPED": softcap is not None, "STEP": KEYS},
                FACTOR=tl.float32 if _interpreted() else DTYPES[q.dtype],  # the interpreter cannot multiply bfloat16
                **tiling,
            )


def _tiling(folded: int, wide: int, dtype: torch.dtype) -> dict[str, int]:
    """Choose tile sizes that hardly spill registers, within the 99 KiB of shared memory of the smallest GPUs."""
    if wide > 128 or dtype == torch.float32:
        return {"ROWS": 32, "num_warps": 8, "num_stages": 1}
    few = folded <= 16
    return {"ROWS": 16 if few else 64, "num_warps": 4 if few else 8, "num_stages": 2}


@triton.jit
def _unpacked(codes, scale, bias, tokens, numbers, mask, WIDTH: tl.constexpr, SIZE: tl.constexpr, SPAN: tl.constexpr, BITS: tl.constexpr):  # fmt: skip # noqa: E501
    """Unpack rows ``tokens`` (m,), columns ``numbers`` (n,) of all heads: float32 (m, n), 0 where not ``mask``."""
    half = WIDTH // 2  # in 4 bits byte i holds the numbers i (low) and i + half (high)
    places = numbers % half if BITS == 4 else numbers
    code = tl.load(codes + tokens[:, None] * (WIDTH * BITS // 8) + places[None, :], mask, 0).to(tl.int32)
    if BITS == 4:
        code = (code >> tl.where(numbers < half, 0, 4)[None, :]) & 15
    group = (tokens // SPAN)[:, None] * (WIDTH // SIZE) + (numbers // SIZE)[None, :]
    steps, lowest = tl.load(scale + group, mask, 0).to(tl.float32), tl.load(bias + group, mask, 0).to(tl.float32)
    return code.to(tl.float32) * steps + lowest


RUNTIME = ["folded", "rows", "tokens", "first", "last", "part", "free", "columns", "bias_request"]


@triton.jit(do_not_specialize=RUNTIME)  # lengths change with every pass: do not compile a kernel for each
def _tile_kernel(
    q,  # (products, folded, DIM): one product for each KV head of each request
    k_codes, k_scale, k_bias, v_codes, v_scale, v_bias,
    bias,  # (requests, rows, columns); ``bias_request`` is the stride between requests
    top, mass, out,  # (splits, products, folded), (splits, products, folded, DIM)
    folded, rows, tokens, first, last, part, free, columns, bias_request, softcap,
    K_WIDTH: tl.constexpr, K_SIZE: tl.constexpr, K_SPAN: tl.constexpr, V_WIDTH: tl.constexpr, V_SIZE: tl.constexpr,
    BITS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    BIASED: tl.constexpr, CAPPED: tl.constexpr, FACTOR: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute ``ROWS`` query rows of one product over one split of the keys ``first:last``, ``STEP`` at a time."""
    rounded: tl.constexpr = q.dtype.element_ty  # precision of keys and values in an unpacked cache
    product, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    request = product // KV_HEADS
    place = request * tokens  # number of the request's first row; offsets from it fit into 32 bits
    k_codes += place * (K_WIDTH * BITS // 8)
    v_codes += place * (V_WIDTH * BITS // 8)
    k_groups, v_groups = place // K_SPAN * (K_WIDTH // K_SIZE), place * (V_WIDTH // V_SIZE)
    k_scale, k_bias, v_scale, v_bias = k_scale + k_groups, k_bias + k_groups, v_scale + v_groups, v_bias + v_groups
    m, d = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)
    numbers = (product % KV_HEADS).to(tl.int32) * DIM + d
    valid_row, inside = m < folded, d < DIM
    in_query = valid_row[:, None] & inside[None, :]
    queries = tl.load(q + (product * folded + m)[:, None] * DIM + d[None, :], in_query, 0).to(FACTOR)
    at = (split * tl.num_programs(1) + product) * folded + m
    cells = at[:, None] * DIM + d[None, :]
    highest, total = tl.load(top + at, valid_row, float("-inf")), tl.load(mass + at, valid_row, 0)
    mixed = tl.load(out + cells, in_query, 0)
    biases = bias + request * bias_request + (m % rows)[:, None] * columns
    start = first + split * part
    stop = tl.minimum(start + part, last)
    for low in range(start, stop, STEP):
        n = low + tl.arange(0, STEP)
        valid_key = n < stop
        mask = valid_key[:, None] & inside[None, :]
        keys = _unpacked(k_codes, k_scale, k_bias, n, numbers, mask, K_WIDTH, K_SIZE, K_SPAN, BITS)
        scores = tl.dot(queries, tl.trans(keys.to(rounded).to(FACTOR)), input_precision="ieee")
        if CAPPED:
            scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
        if BIASED:
            bias_column = (n - free)[None, :]
            scores += tl.load(biases + bias_column, valid_row[:, None] & valid_key[None, :] & (bias_column >= 0), 0).to(
                tl.float32
            )
        scores = tl.where(valid_key[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        finite = tl.where(higher == float("-inf"), 0, higher)  # rows without a visible key so far
        weights, rescale = tl.exp(scores - finite[:, None]), tl.exp(highest - finite)
        values = _unpacked(v_codes, v_scale, v_bias, n, numbers, mask, V_WIDTH, V_SIZE, 1, BITS)
        mixture = tl.dot(weights.to(rounded).to(FACTOR), values.to(rounded).to(FACTOR), input_precision="ieee")
        total, mixed, highest = total * rescale + tl.sum(weights, 1), mixed * rescale[:, None] + mixture, higher
    tl.store(top + at, highest, valid_row)
    tl.store(mass + at, total, valid_row)
    tl.store(out + cells, mixed, in_query)
