from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keep_agent.errors import ConfigError
from memory.construction.fixed_blocks import FixedBlocks
from memory.construction.history import History
from memory.construction.per_segment import PerSegment
from memory.construction.prefix import Prefix
from memory.construction.segments import Segments
from memory.construction.static_dynamic import StaticDynamic
from memory.construction.turns import Turns
from memory.kv_cache.quantization import PackFormat
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.recompute.full import Full
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from memory.retention.h2o import H2O
from memory.retention.keep_all import KeepAll
from memory.retention.query_memory import QueryMemory
from memory.retention.snapkv import SnapKV
from memory.retention.streaming import Streaming
from memory.retrieval.embedding import Embedding
from memory.retrieval.latent import Latent
from memory.stages import Capabilities
from memory.storage.disk import Disk
from memory.storage.quantized import Quantized
from memory.storage.ram import Ram
from memory.storage.tiers import Tiers


def compose(**stages: Any) -> MemoryMethod:
    base = {"retrieval": Embedding(), "construction": PerSegment(), "recompute": Nothing(), "loading": Serial()}
    return MemoryMethod("test", **{**base, **stages})


APPEND = {"layout": "append"}
PACKED = {"storage": Quantized()}
PER_LAYER = {"retrieval": Latent(layers="each"), "layout": "append"}


class Forgetful(KeepAll):
    capabilities = Capabilities(exact=False, evicts=True)


class Planless:
    capabilities = Capabilities(exact=False)
    layouts = ("memory",)


class Rounding(Ram):
    capabilities = Capabilities(exact=False, in_memory=True)


@pytest.mark.parametrize(("stages", "sentence"), [
    ({"construction": Prefix(), "recompute": MultiHop()}, "Prefix reuses exact rows only, so recompute MultiHop"),
    ({"construction": Prefix(), "recompute": Full()}, "so the rows that construction Prefix harvests"),
    ({"construction": Prefix(), "storage": Rounding()}, "storage Rounding changes what it stores"),
    ({"construction": Segments(), "recompute": Full()}, "so the rows that construction Segments harvests"),
    ({"construction": Segments(), **APPEND}, "layout memory, not of layout append: use layout memory"),
    (APPEND, "PerSegment builds prompts of layout memory"),
    ({"construction": Turns(), "recompute": Full()}, "so the rows that construction Turns harvests"),
    ({"construction": Turns(), "recompute": MultiHop()}, "Turns reuses exact rows only, so recompute MultiHop"),
    ({"construction": Turns(), "storage": Rounding()}, "storage Rounding changes what it stores"),
    ({"construction": Turns(), "storage": Disk()}, "storage Disk would stay empty: use storage Ram, or"),
    ({"construction": Turns(), "storage": Disk(bits=4)}, "storage Disk would stay empty"),
    ({"construction": Turns(), "storage": Tiers([Ram()])}, "storage Tiers would stay empty"),
    ({"construction": Turns(), **PACKED, "retention": H2O()}, "H2O needs all attention weights of a layer"),
    (
        {"construction": Turns(survivors="move"), **PACKED, "retention": Streaming()},
        "survivors=move rotates keys to new positions, but storage Quantized keeps keys packed",
    ),
    ({"retrieval": Latent(), "construction": Turns()}, "but construction Turns cannot leave out the rest"),
    ({"construction": Prefix(), "retention": H2O()}, "construction Prefix begins every prompt with an empty cache"),
    ({"retention": Forgetful()}, "retention Forgetful drops rows of a cache that continues from turn to turn"),
    ({"construction": History()}, "builds prompts of layout append, not of layout memory"),
    ({"construction": History(), "recompute": MultiHop(), **APPEND}, "History reuses exact rows only"),
    ({"construction": History(), "storage": Rounding(), "layout": "append"}, "storage Rounding changes"),
    ({"construction": History(), "recompute": Full(), "layout": "append"}, "so the rows that construction History"),
    ({"retrieval": Latent(), "recompute": Full()}, "but recompute Full reads none"),
    ({"retrieval": Latent(), "construction": Prefix()}, "but construction Prefix cannot leave out the rest"),
    ({"retrieval": Latent(), "construction": Segments()}, "but construction Segments cannot leave out the rest"),
    ({"retrieval": Latent(layers="each")}, "blocks of construction PerSegment differ in length or position"),
    (
        {"construction": History(cut="segment"), **PER_LAYER},
        "use construction History with cut=tokens and positions=",
    ),
    ({"construction": History(positions="coupled"), **PER_LAYER}, "with cut=tokens and positions=decoupled"),
    ({"construction": History(), "recompute": MultiHop(), **PER_LAYER}, "a row is another token at each"),
    ({"layout": "stack"}, "layout='stack' is unknown"),
    ({"context": "eos"}, "context='eos' is unknown"),
    ({"construction": Planless()}, "Planless, which has no plan: name a class of memory.construction"),
    ({"loading": PerSegment()}, "loading is PerSegment, which has no schedule"),
])  # fmt: skip
def test_senseless_compositions_are_refused_with_a_sentence(stages: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match="memory method 'test': ") as caught:
        compose(**stages)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("retention", [KeepAll(), Streaming(), SnapKV(), QueryMemory()])
def test_turns_pack_their_cache_where_the_storage_packs(retention: Any) -> None:
    method = compose(construction=Turns(), storage=Quantized(bits=8), retention=retention, layout="append")
    assert method.packs == PackFormat(8) and not method.capabilities.exact
    assert compose(construction=Turns(), retention=retention, layout="append").packs is None


MOVING = Capabilities(exact=False, moves_blocks=True)
HARVESTING, GROWING = replace(MOVING, harvests=True), Capabilities(harvests=True, keeps_cache=True)
LATENT = {"construction": History(), "retrieval": Latent(), **APPEND}
ROUNDING = {"recompute": MultiHop(), "storage": Rounding()}
CAPABILITIES = [
    ({"recompute": Full()}, Capabilities(reads_blocks=False)),
    ({"construction": FixedBlocks(), "loading": LayerBalanced()}, MOVING),
    ({"construction": StaticDynamic(), "recompute": MultiHop()}, replace(MOVING, repairs=True)),
    ({"construction": Segments()}, HARVESTING),
    ({"construction": Segments(), **ROUNDING}, replace(HARVESTING, repairs=True)),
    (LATENT, replace(HARVESTING, latent=True)),
    ({**LATENT, **ROUNDING}, replace(HARVESTING, latent=True, repairs=True)),
    ({"construction": Prefix()}, Capabilities(harvests=True)),
    ({"construction": Prefix(), **APPEND}, Capabilities(harvests=True)),
    ({"construction": Turns()}, GROWING),
    ({"construction": Turns(), **APPEND}, GROWING),
    ({"construction": Turns(), "retention": H2O()}, replace(GROWING, exact=False, evicts=True)),
    ({"construction": Turns(), "retention": H2O(), **APPEND}, replace(GROWING, exact=False, evicts=True)),
]


@pytest.mark.parametrize(("stages", "expected"), CAPABILITIES)
def test_capabilities_of_compositions(stages: dict[str, Any], expected: Capabilities) -> None:
    assert compose(**stages).capabilities == expected
