"""Triton kernel against torch over unpacked tiles, and against attention over all keys at once.

It runs on a GPU. Elsewhere one test runs this file in Triton's interpreter, which must be chosen before Triton is
imported, and another test compiles the kernel for GPUs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from memory.engine.attention.kernels import MaskBlock, bias_of, causal_plan, tree_plan, unit_plan
from memory.engine.attention.tiled import TILE, Tile, reads_packed, tiled_attention, unpacked_tiles
from memory.engine.models.tiny_models import tiny_model
from memory.engine.scheduler.batch import Batch
from memory.engine.transformers.append import append
from memory.kv_cache import quantized as packed_module
from memory.kv_cache.quantization import Packed, PackFormat, pack
from memory.kv_cache.quantized import PAGE, QuantizedCache
from tests.laws.prompts import relative, tokens
from tests.memory.engine.attention.test_tiled import SCALE, TensorMeter, dense

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
TRITON = find_spec("triton") is not None
KERNEL = pytest.mark.skipif(
    not TRITON or not (INTERPRETED or DEVICE.type == "cuda"), reason="needs a GPU, or TRITON_INTERPRET=1"
)
NEEDS_TRITON = pytest.mark.skipif(not TRITON, reason="Triton is not installed: pip install 'keep-agent[gpu]'")
FORMATS = (PackFormat(4), PackFormat(8), PackFormat(4, 32, "channel"), PackFormat(8, 16, "channel"))
EVERY_FORMAT = pytest.mark.parametrize("format", FORMATS, ids=lambda f: f"{f.bits}-{f.group}-{f.keys}")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
HEADS = [(4, 4, 16), (6, 2, 32), (4, 1, 64), (3, 3, 24), (2, 1, 11)]  # query heads, KV heads, head_dim


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def packed_tiles(k: Packed, v: Packed, rows: int) -> Iterator[Tile]:
    bounds = range(0, k.tokens, rows)
    return ((k.part(a, min(a + rows, k.tokens)), v.part(a, min(a + rows, k.tokens))) for a in bounds)


def agree(
    blocks: list[MaskBlock], rows: int, keys: int, format: PackFormat = FORMATS[0],
    heads: tuple[int, int, int] = HEADS[1], dtype: torch.dtype = torch.float32, tile: int = 64, **knobs: Any,
) -> None:  # fmt: skip
    """Compare the kernel, torch tile by tile, and torch in float64 over all keys at once."""
    count, kv_heads, dim = heads
    q = randn(2, count, rows, dim, dtype=dtype)
    k, v = randn(2, 2, kv_heads, keys, dim, dtype=dtype, seed=1)
    packed = pack(k, format, format.keys), pack(v, format)
    result = tiled_attention(q, packed_tiles(*packed, tile), blocks, SCALE, **knobs)
    assert result.dtype == dtype
    same = tiled_attention(q, unpacked_tiles(*packed, dtype, tile), blocks, SCALE, **knobs)
    torch.testing.assert_close(result, same, rtol=0, atol=2 * TOLERANCE[dtype])  # torch rounds its scores
    exact = dense(q.double(), *(x.unpack(dtype).double() for x in packed), blocks, **knobs)
    torch.testing.assert_close(result.double(), exact, rtol=0, atol=TOLERANCE[dtype])


def agree_causal(
    rows: int, keys: int, window: int | None = None, dtype: torch.dtype = torch.float32, **options: Any
) -> None:
    """Call `agree` with causal attention of the last ``rows`` of ``keys`` rows."""
    every = torch.arange(keys, device=DEVICE)
    blocks = causal_plan(every[keys - rows :], every, dtype).blocks(window)
    agree(blocks, rows, keys, dtype=dtype, **options)


CAUSAL: list[dict[str, Any]] = [
    *({"heads": heads} for heads in HEADS),
    *({"dtype": dtype} for dtype in TOLERANCE),
    *({"rows": rows, "window": window} for rows in (1, 70) for window in (None, 1, 50)),
]


@KERNEL
@EVERY_FORMAT
@pytest.mark.parametrize("options", CAUSAL, ids=str)
def test_causal_plans(format: PackFormat, options: dict[str, Any]) -> None:
    keys = 160 if format.keys == "channel" else 149
    agree_causal(**{"rows": 20, "keys": keys, **options}, format=format)


@KERNEL
@pytest.mark.parametrize("keys", [1, 31, 33, 64, 100])
@pytest.mark.parametrize("tile", [37, 4096])
def test_odd_lengths(keys: int, tile: int) -> None:
    agree_causal(1, keys, tile=tile)
    agree([MaskBlock(0, 2, 0, keys, None)], 2, keys, tile=tile)


@KERNEL
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_sinks_and_softcap(softcap: float | None, with_sinks: bool) -> None:
    agree_causal(5, 128, softcap=softcap, sinks=3 * randn(6, seed=2) if with_sinks else None)


@KERNEL
@pytest.mark.parametrize("window", [None, 24])
def test_units_trees_and_requests(window: int | None) -> None:
    agree(unit_plan([20, 7, 33], 30, torch.float32, DEVICE).blocks(window), 60, 90)
    ancestry = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 0, 1]], device=DEVICE).bool()
    prompt = torch.arange(100, device=DEVICE)
    plan = tree_plan(bias_of(ancestry, torch.float32), ancestry.sum(1) - 1, prompt + 4, 104, torch.float32)
    agree(plan.blocks(window), 4, 104)
    suffix = torch.arange(96, device=DEVICE) >= torch.tensor([0, 40], device=DEVICE)[:, None]
    bias = bias_of(suffix[:, None].expand(-1, 2, -1), torch.float32)
    q, (k, v) = randn(2, 6, 2, 16), (pack(x, FORMATS[0]) for x in randn(2, 2, 2, 96, 16, seed=1))
    blocks = [MaskBlock(0, 2, 0, 96, bias)]
    result = tiled_attention(q, packed_tiles(k, v, 64), blocks, SCALE)
    torch.testing.assert_close(result, tiled_attention(q, unpacked_tiles(k, v, torch.float32), blocks, SCALE))


@KERNEL
def test_rows_without_visible_keys_and_large_scores() -> None:
    k, v = (pack(x, FORMATS[0]) for x in randn(2, 1, 2, 40, 16))
    hidden = bias_of(torch.tensor([[False], [True]], device=DEVICE).expand(-1, 40), torch.float32)
    result = tiled_attention(randn(1, 2, 2, 16), packed_tiles(k, v, 16), [MaskBlock(0, 2, 0, 40, hidden)], SCALE)
    assert not result[:, 0].any() and bool(result[:, 1].isfinite().all())
    large = 1e3 * randn(1, 2, 2, 16), [MaskBlock(0, 2, 0, 40, None)], SCALE
    expected = dense(large[0], k.unpack(torch.float32), v.unpack(torch.float32), large[1])
    torch.testing.assert_close(tiled_attention(large[0], packed_tiles(k, v, 16), *large[1:]), expected)


@KERNEL
@pytest.mark.parametrize("format", FORMATS[1:3], ids=lambda f: f"{f.bits}-{f.group}-{f.keys}")
@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "gpt_oss"])
def test_a_model_gives_the_same_logits(format: PackFormat, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turns do not fill a page, which would be packed: a number that rounds differently could get another code."""
    from memory.engine.attention.triton_quantized import RunningSums

    model = tiny_model(family, layers=2)
    model.module.to(DEVICE)
    cache, ids = QuantizedCache(model.spec, format, DEVICE), torch.tensor(tokens(320, 1), device=DEVICE)
    assert reads_packed(DEVICE, model.spec.dtype, model.spec.head_dim)
    launches, add = [], RunningSums.add
    monkeypatch.setattr(RunningSums, "add", lambda self, *inputs: launches.append(1) or add(self, *inputs))

    def turns() -> list[torch.Tensor]:
        return [append(model.decoder, cache.fork(), ids[270 : 270 + count]) for count in (1, 20)]

    with torch.inference_mode():
        with monkeypatch.context() as without:
            without.setattr(packed_module, "reads_packed", lambda *_: False)
            append(model.decoder, cache, ids[:270])
            expected = turns()
        assert not launches
        assert all(relative(*pair) < 1e-5 for pair in zip(turns(), expected, strict=True))
        assert launches
        launches.clear()
        cache.drop(torch.arange(270, device=DEVICE) % 5 > 0)
        turns()
        assert not launches, "torch reads a cache with dropped rows"


@KERNEL
def test_nothing_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn behind a tile and a page makes no tensor as large as a quarter of the tile's keys."""
    model = tiny_model("qwen2", layers=2, num_key_value_heads=4, head_dim=32)
    model.module.to(DEVICE)
    cache = QuantizedCache(model.spec, FORMATS[0], DEVICE)
    ids = torch.tensor(tokens(TILE + PAGE + 3, 1), device=DEVICE)
    with torch.inference_mode():
        with monkeypatch.context() as torch_only:
            torch_only.setattr(packed_module, "reads_packed", lambda *_: False)
            append(model.decoder, cache, ids[:-3], last=False)
        model.decoder.rope.angles_at(ids[:1] * 0, 2 * TILE)  # so that its tables do not grow below
        monkeypatch.setattr(Packed, "unpack", None)
        with TensorMeter() as meter:
            append(model.decoder, cache, ids[-3:])
    assert meter.largest < TILE * 4 * 32 * 4 // 4


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@EVERY_FORMAT
def test_a_batch_on_a_gpu(format: PackFormat) -> None:
    """Agents that decode together equal agents that decode alone."""
    model = tiny_model("gemma3_text", layers=2)
    model.module.to(DEVICE)
    caches = [QuantizedCache(model.spec, format, DEVICE) for _ in range(3)]
    with torch.inference_mode():
        for cache, rows in zip(caches, (300, 5, 130), strict=True):
            append(model.decoder, cache, torch.tensor(tokens(rows, rows), device=DEVICE))
        caches[0].drop(torch.arange(300, device=DEVICE) % 3 > 0)
        forks, batch = [cache.fork() for cache in caches], Batch(model.decoder, caches)
        for step in range(70):
            result = batch.step([step, 7, 9])
            local = zip(forks, torch.tensor([[step], [7], [9]], device=DEVICE), strict=True)
            alone = [append(model.decoder, cache, token) for cache, token in local]
            assert relative(result, torch.cat(alone)) < 1e-3


@NEEDS_TRITON
@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter")
@pytest.mark.timeout(900)
def test_this_file_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[4], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]


@NEEDS_TRITON
@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@EVERY_FORMAT
@pytest.mark.parametrize(("capability", "dtype", "dim"), [(80, torch.bfloat16, 128), (90, torch.float32, 256)])
def test_the_kernel_compiles(format: PackFormat, capability: int, dtype: torch.dtype, dim: int) -> None:
    """No GPU is needed to compile; the smallest GPUs have 99 KiB of shared memory for a program."""
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from memory.engine.attention import triton_quantized as kernel

    tiling = kernel._tiling(8, dim, dtype)
    k, v = format.grid(8 * dim, format.keys), format.grid(8 * dim)
    constants = {
        **{"K_WIDTH": k.width, "K_SIZE": k.size, "K_SPAN": k.span, "V_WIDTH": v.width, "V_SIZE": v.size},
        **{"BITS": k.bits, "KV_HEADS": 8, "DIM": dim, "WIDE": dim, "BIASED": True, "CAPPED": True},
        **{"FACTOR": kernel.DTYPES[dtype], "ROWS": tiling.pop("ROWS"), "STEP": kernel.KEYS},
    }
    numbers = f"*{kernel.DTYPES[dtype]}"
    inputs = {"q": numbers, "bias": numbers, "softcap": "fp32", "top": "*fp32", "mass": "*fp32", "out": "*fp32"}
    for side in "kv":
        inputs |= {f"{side}_codes": "*u8", f"{side}_scale": "*fp16", f"{side}_bias": "*fp16"}
    inputs |= dict.fromkeys(kernel.RUNTIME, "i32") | dict.fromkeys(constants, "constexpr")
    signature = {name: inputs[name] for name in kernel._tile_kernel.arg_names}
    done = compile(ASTSource(kernel._tile_kernel, signature, constants), GPUTarget("cuda", capability, 32), tiling)
    assert done.metadata.shared <= 99 * 1024


@pytest.mark.skipif(INTERPRETED, reason="the interpreter takes CPUs")
def test_torch_serves_where_triton_does_not(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert not reads_packed(torch.device("cpu"), torch.float32, 64)
    assert not reads_packed(DEVICE, torch.float64, 64), "too coarse"
    if DEVICE.type == "cuda":
        assert not reads_packed(DEVICE, torch.float32, 512), "too wide"
    monkeypatch.setitem(sys.modules, "memory.engine.attention.triton_quantized", None)  # importing None fails
    assert not reads_packed(torch.device("cuda", 7), torch.float32, 64)
    assert "read with torch" in caplog.text


def test_importing_the_engine_imports_no_triton() -> None:
    kernel = "memory.engine.attention.triton_quantized"
    modules = "memory.engine.transformers.engine, memory.engine.scheduler.batch"
    code = f"import sys, {modules}; print({kernel!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[4])
    assert done.stdout.split() == ["False"], done.stderr
