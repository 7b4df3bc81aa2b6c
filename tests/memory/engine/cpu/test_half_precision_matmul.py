"""Padded products: the same numbers in few shapes, for any lengths of prompts, units and candidates."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from memory.engine.attention.kernels import KEY_PADDING, QUERY_PADDING, RowPadding, attention_scores, weighted_sum
from memory.engine.base import Engine
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers.decoder import LINEAR_PADDING, Prepacked, linear, prepack
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import QuantizedCache
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.recompute.full import Full
from tests.laws.prompts import Prompt, relative
from tests.memory import sessions
from tests.memory.houses import encode_text

HEAD = 16  # dimensions of a head of the tiny model
PRODUCTS = ("matmul", "bmm", "mm", "addmm", "linear", "_linear_pointwise")


class Shapes(TorchDispatchMode):
    """Recorder of the sizes of all products in half precision: rows, and queries and keys of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.queries, self.keys = set[int](), set[int](), set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        tensors = [x for x in args if isinstance(x, torch.Tensor) and x.dim() > 1]
        if name in PRODUCTS and tensors[0].dtype == torch.bfloat16:
            attends = name in ("matmul", "bmm")
            (self.queries if attends else self.rows).add(tensors[0].shape[-2])
            if attends:
                self.keys |= {tensors[0].shape[-1], tensors[1].shape[-1]} - {HEAD}
        return func(*args, **(kwargs or {}))


def takes_few_shapes(engine: Engine, work: Callable[[], None]) -> bool:
    """Tell whether all products of ``work`` on the engine's worker have padded sizes."""
    shapes = Shapes()

    def watched() -> None:
        with shapes:
            work()

    engine.run(watched)
    kinds = (shapes.rows, LINEAR_PADDING), (shapes.queries, QUERY_PADDING), (shapes.keys, KEY_PADDING)
    return all(len(result) > 1 and result == {sizes.round_up(item) for item in result} for result, sizes in kinds)


@given(st.integers(1, 100_000), st.sampled_from([LINEAR_PADDING, QUERY_PADDING, KEY_PADDING]))
def test_padded_sizes_are_close(count: int, sizes: RowPadding) -> None:
    result = sizes.round_up(count)
    assert count <= result and sizes.round_up(result) == result
    assert result < count + sizes.multiple or result <= count * (1 + 2 / sizes.steps)


def test_padded_sizes_are_few() -> None:
    """Up to 4,096 rows and keys, and 128 queries in a block, give fewer shapes than oneDNN's caches hold."""
    rows, keys = ({sizes.round_up(count) for count in range(1, 4097)} for sizes in (LINEAR_PADDING, KEY_PADDING))
    queries = {QUERY_PADDING.round_up(count) for count in range(1, 129)}
    assert 5 * len(rows) + 2 * len(queries) * len(keys) < 700


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 3, 17, 100])
def test_padding_changes_no_bit(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for keys in (1, 31, 64, 207, 333):
        q, k, v = (torch.randn(6, count, 32).to(dtype) for count in (rows, keys, keys))
        scores = attention_scores(q, k)
        assert torch.equal(scores, q @ k.mT)
        weights = scores.softmax(-1)
        assert torch.equal(weighted_sum(weights, v), weights @ v)
    layer = torch.nn.Linear(32, 48, dtype=dtype)
    with torch.inference_mode():
        assert torch.equal(linear(layer, q), layer(q))


@pytest.mark.usefixtures("native_bfloat16")
@pytest.mark.parametrize("make", [sessions.keep, sessions.groups, sessions.blocks, sessions.sparsex])
def test_prompts_of_many_lengths_take_few_shapes(make: Callable[[], MemoryMethod]) -> None:
    """New lengths of prompts do not add shapes, and so memory, in prefill, choice of rows, scores and decoding."""
    with TransformersEngine(tiny_model("qwen2", dtype=torch.bfloat16)) as engine:
        session = sessions.open_session(engine, make())

        def live() -> None:
            for number, prefill in enumerate(sessions.episode(session, 20)):
                session.score(prefill, [encode_text(f"go to {name}") for name in "abc"[: 1 + number % 3]])
                session.generate(prefill, 3)

        assert takes_few_shapes(engine, live)


@pytest.mark.usefixtures("native_bfloat16")
def test_a_growing_transcript_takes_few_shapes() -> None:
    with TransformersEngine(tiny_model("qwen2", dtype=torch.bfloat16)) as engine:
        cache = QuantizedCache(engine.info, PackFormat(), torch.device("cpu"))

        def grow() -> None:
            for count in (5, 70, 1, 1, 3, 66):
                engine.extend(cache, list(range(1, count + 1)))

        assert takes_few_shapes(engine, grow)


def layers_of(*sizes: tuple[int, int]) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(*size, bias=size[0] > 40, dtype=torch.bfloat16) for size in sizes)


@pytest.mark.usefixtures("native_bfloat16")
@pytest.mark.parametrize("rows", [1, 3, 64, 300])
def test_prepacked_layers_change_no_bit(rows: int) -> None:
    plain, packed = layers_of((64, 192), (32, 48), (96, 17)), layers_of((64, 192), (32, 48), (96, 17))
    prepack(packed)
    for item, peer in zip(plain, packed, strict=True):
        assert isinstance(peer, Prepacked) and not dict(peer.named_parameters()).keys() - {"bias"}
        x = torch.randn(1, rows, item.in_features).bfloat16()
        with torch.inference_mode():
            assert torch.equal(item(x), peer(x))
            wide = torch.cat([x, x], -1)
            assert torch.equal(item(wide[..., : item.in_features].contiguous()), peer(wide[..., : item.in_features]))
        assert torch.equal(item.weight, peer.weight)
        again = copy.deepcopy(peer)
        assert type(again) is nn.Linear and torch.equal(again.weight, item.weight)
        assert (again.bias is None) == (item.bias is None) and (again.bias is None or again.bias is not peer.bias)
        assert (again.in_features, again.out_features) == (item.in_features, item.out_features)


@pytest.mark.usefixtures("native_bfloat16")
def test_each_layer_is_freed_before_the_next_is_prepacked(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = layers_of((64, 64), (64, 64), (64, 64))
    plain, alive = [weakref.ref(layer) for layer in layers], []
    reorder = Prepacked.__init__

    def counting(self: Prepacked, linear: nn.Linear) -> None:
        alive.append(sum(layer() is not None for layer in plain))
        reorder(self, linear)

    monkeypatch.setattr(Prepacked, "__init__", counting)
    prepack(layers)
    assert alive == [3, 2, 1]


def test_other_dtypes_and_kinds_are_not_prepacked() -> None:
    class Packed(nn.Linear):
        """Layer like those of quantised checkpoints."""

    layers = nn.ModuleList([nn.Linear(8, 8), Packed(8, 8, dtype=torch.bfloat16), nn.LayerNorm(8, dtype=torch.bfloat16)])
    kinds = [type(layer) for layer in layers]
    prepack(layers)
    assert [type(layer) for layer in layers] == kinds


@pytest.mark.usefixtures("native_bfloat16")
@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe", "gpt_oss"])
def test_a_model_is_prepacked_and_its_plain_copy_is_not(family: str) -> None:
    prompt = Prompt.random()
    with TransformersEngine(tiny_model(family, dtype=torch.bfloat16)) as engine:
        packed = [module for module in engine.model.module.modules() if isinstance(module, Prepacked)]
        assert len(packed) >= 4 * engine.info.layers
        assert not any(isinstance(module, Prepacked) for module in engine.plain.modules())
        weight = engine.plain.model.layers[1].self_attn.q_proj.weight
        assert torch.equal(weight, engine.model.module.model.layers[1].self_attn.q_proj.weight)
        assert engine.plain.model.embed_tokens.weight is engine.model.module.model.embed_tokens.weight
        result = engine.prefill(prompt.layout([None] * len(prompt.units)), Full(), Serial()).logits
        assert relative(result[0], engine.forward_plain(prompt.ids)[-1].float()) < 0.05
