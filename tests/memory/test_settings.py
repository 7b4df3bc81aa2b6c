"""Settings that a component refuses, with the value and the remedy in the message."""

from __future__ import annotations

from typing import Any

import pytest

from keep_agent.errors import ConfigError
from memory.construction.fixed_blocks import FixedBlocks
from memory.construction.groups import Groups
from memory.construction.history import History
from memory.construction.per_segment import PerSegment
from memory.construction.prefix import Prefix
from memory.construction.segments import Segments
from memory.construction.static_dynamic import StaticDynamic
from memory.construction.turns import Turns
from memory.kv_cache.pinned_blocks import PinnedPool
from memory.kv_cache.quantization import PackFormat
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.sparse_query import SparseQuery
from memory.recompute.value_deviation import ValueDeviation
from memory.retention.h2o import H2O
from memory.retention.query_memory import QueryMemory
from memory.retention.snapkv import SnapKV
from memory.retention.streaming import Streaming
from memory.retrieval.embedding import Embedding
from memory.retrieval.latent import Latent
from memory.storage.disk import Disk
from memory.storage.quantized import Quantized
from memory.storage.ram import Ram
from memory.storage.tiers import Tiers

BAD_SETTINGS: list[tuple[type, dict[str, Any], str]] = [
    (FixedBlocks, {"size": 0}, "size=0"),
    (Prefix, {"block_size": 0}, "block_size=0"),
    (Segments, {"block_size": 0}, "block_size=0"),
    (Segments, {"refresh": 1.5}, "refresh=1.5"),
    *((construction, {"log": -1}, "log=-1") for construction in (StaticDynamic, PerSegment, Groups)),
    *((History, {name: value}, name) for name, value in (("block_size", 0), ("cut", "word"), ("positions", "lost"))),
    (Turns, {"block_size": 0}, "block_size=0"),
    (Turns, {"prefix_tokens": -1}, "prefix_tokens=-1 is negative"),
    (Turns, {"survivors": "jump"}, "survivors='jump' is unknown; use one of stay, move"),
    (FirstTokens, {"k": -1}, "k=-1 is negative"),
    (FirstTokens, {"last_k": -2}, "last_k=-2 is negative"),
    *((Schedule, {name: value}, name) for name, value in (("average", 1.5), ("last", -1), ("until", 1))),
    (Schedule, {"shape": "cubic"}, "cubic"),
    (MultiHop, {"direction": "up"}, "direction"),
    *((MultiHop, {name: value}, name) for name, value in (("max_hops", -1), ("query_weight", 1.5), ("limit", 1.5))),
    (SparseQuery, {"boundary": 1.5}, "boundary=1.5 is a share"),
    (SparseQuery, {"share": -0.1}, "share=-0.1 is a share"),
    (SparseQuery, {"block": 0}, "block=0 is too small: use 1"),
    (SparseQuery, {"overflow": -1}, "overflow=-1"),
    (SparseQuery, {"tail": -1}, "tail=-1"),
    (SparseQuery, {"over": "new"}, "all, reused"),
    (ValueDeviation, {"ratio": 1.5}, "ratio=1.5 is the share"),
    (ValueDeviation, {"ratio": -0.1}, "use 0 to 1"),
    (ValueDeviation, {"deviation": "q"}, "deviation='q' is unknown"),
    (ValueDeviation, {"selection": "twice"}, "gradual, single"),
    (ValueDeviation, {"shape": "cubic"}, "shape='cubic'"),
    *((kind, {"budget": 0}, "budget=0 tokens keeps nothing") for kind in (Streaming, H2O, SnapKV, QueryMemory)),
    (Streaming, {"sinks": -1}, "sinks=-1 is negative"),
    (Streaming, {"grain": "word"}, "grain='word' is unknown; use one of token, segment"),
    (H2O, {"recent": 1.5}, "recent=1.5 is no share"),
    (SnapKV, {"window": 0}, "window=0 rows ask nothing"),
    (SnapKV, {"kernel": 4}, "kernel=4 has no middle"),
    (SnapKV, {"pooling": "sum"}, "pooling='sum' is unknown; use one of max, mean"),
    (QueryMemory, {"decay": -0.1}, "decay=-0.1 would let old queries grow"),
    (Embedding, {"group_score": "median"}, "median"),
    (Embedding, {"recent": -1}, "recent=-1 is a number of actions"),
    (Latent, {"top_k": 0}, "top_k=0"),
    (Latent, {"unit": "rows"}, "unit='rows' is unknown"),
    (Latent, {"normalise": "none"}, "normalise='none' is unknown"),
    (Latent, {"aggregate": "mean"}, "aggregate='mean' is unknown"),
    (Latent, {"layers": "some"}, "layers='some' is unknown"),
    (Latent, {"layers": 3}, "layers=3 is unknown: use one of .*, or numbers"),
    (Latent, {"layers": ["early"]}, r"layers=\['early'\] is unknown"),
    (PackFormat, {"bits": 3}, "bits=3"),
    (PackFormat, {"group": 48}, "group=48 is no power of two"),
    (PackFormat, {"group": 4}, "group=4"),
    (PackFormat, {"keys": "head"}, "keys='head' is unknown"),
    (Quantized, {"bits": 3}, "bits=3"),
    (Quantized, {"keys": "head"}, "'head'"),
    (Quantized, {"budget_bytes": -1}, "-1"),
    (Ram, {"budget_bytes": -1}, "-1"),
    (Disk, {"bits": 5}, "bits=5"),
    (Disk, {"agent": "../x"}, "no safe name"),
    (Disk, {"budget_bytes": -1}, "budget_bytes=-1"),
    (Disk, {"buffer_bytes": -1}, "buffer_bytes=-1"),
    (Tiers, {"tiers": []}, "tiers is empty"),
    (Tiers, {"tiers": [Tiers([Ram()])]}, "Tiers is no tier"),
    (Tiers, {"tiers": [Quantized(), Ram()]}, "tier Ram would take for exact what Quantized above it has rounded"),
    (Tiers, {"tiers": [Ram()], "quotas": {"a": 0.7, "b": 0.7}}, "'b': 0.7} are shares"),
    (Tiers, {"tiers": [Ram()], "quotas": {"a": -0.1}}, "use 0 or more"),
    (Tiers, {"tiers": [Ram()], "ttl_seconds": 0}, "ttl_seconds=0"),
    (PinnedPool, {"capacity_bytes": 0}, "capacity_bytes=0"),
    (PinnedPool, {"watermark": 0.0}, "watermark=0.0"),
    (PinnedPool, {"watermark": 1.5}, "watermark=1.5"),
]


@pytest.mark.parametrize(
    ("component", "settings", "sentence"), BAD_SETTINGS, ids=lambda value: getattr(value, "__name__", "")
)
def test_bad_settings_are_refused(component: type, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        component(**settings)
