"""Weights that are laid out once compute what they did, bit by bit, and can be had back."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import nn

from memory.engine.cpu.half_precision_matmul import Prepacked, prepack
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers.engine import TransformersEngine
from memory.loading.serial import Serial
from memory.recompute.full import Full
from tests.laws.prompts import Prompt, relative


def layers_of(*sizes: tuple[int, int], dtype: torch.dtype = torch.bfloat16) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(*size, bias=size[0] > 40, dtype=dtype) for size in sizes)


@pytest.mark.usefixtures("native_bfloat16")
@pytest.mark.parametrize("rows", [1, 3, 64, 300])
def test_the_same_bit_by_bit(rows: int) -> None:
    plain, packed = layers_of((64, 192), (32, 48), (96, 17)), layers_of((64, 192), (32, 48), (96, 17))
    prepack(packed)
    for one, other in zip(plain, packed, strict=True):
        assert isinstance(other, Prepacked) and not dict(other.named_parameters()).keys() - {"bias"}
        x = torch.randn(1, rows, one.in_features).bfloat16()
        with torch.inference_mode():
            assert torch.equal(one(x), other(x))
            wide = torch.cat([x, x], -1)
            assert torch.equal(one(wide[..., : one.in_features].contiguous()), other(wide[..., : one.in_features]))
        assert torch.equal(one.weight, other.weight)
        again = copy.deepcopy(other)
        assert type(again) is nn.Linear and torch.equal(again.weight, one.weight)
        assert (again.bias is None) == (one.bias is None) and (again.bias is None or again.bias is not other.bias)
        assert (again.in_features, again.out_features) == (one.in_features, one.out_features)


@pytest.mark.usefixtures("native_bfloat16")
def test_each_layer_is_freed_before_the_next_is_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = layers_of((64, 64), (64, 64), (64, 64))
    plain, alive = [weakref.ref(layer) for layer in layers], []
    reorder = Prepacked.__init__

    def counting(self: Prepacked, linear: nn.Linear) -> None:
        alive.append(sum(layer() is not None for layer in plain))
        reorder(self, linear)

    monkeypatch.setattr(Prepacked, "__init__", counting)
    prepack(layers)
    assert alive == [3, 2, 1]


def test_other_dtypes_and_kinds_stay() -> None:
    class Packed(nn.Linear):
        """As a quantised checkpoint's."""

    layers = nn.ModuleList([nn.Linear(8, 8), Packed(8, 8, dtype=torch.bfloat16), nn.LayerNorm(8, dtype=torch.bfloat16)])
    kinds = [type(layer) for layer in layers]
    prepack(layers)
    assert [type(layer) for layer in layers] == kinds


@pytest.mark.usefixtures("native_bfloat16")
@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe", "gpt_oss"])
def test_a_model_is_prepacked_and_its_ruler_is_not(family: str) -> None:
    prompt = Prompt.random()
    with TransformersEngine(tiny_model(family, dtype=torch.bfloat16)) as engine:
        packed = [module for module in engine.model.module.modules() if isinstance(module, Prepacked)]
        assert len(packed) >= 4 * engine.info.layers
        assert not any(isinstance(module, Prepacked) for module in engine.plain.modules())
        weight = engine.plain.model.layers[1].self_attn.q_proj.weight
        assert torch.equal(weight, engine.model.module.model.layers[1].self_attn.q_proj.weight)
        assert engine.plain.model.embed_tokens.weight is engine.model.module.model.embed_tokens.weight
        found = engine.prefill(prompt.layout([None] * len(prompt.units)), Full(), Serial()).logits
        assert relative(found[0], engine.forward_plain(prompt.ids)[-1].float()) < 0.05
