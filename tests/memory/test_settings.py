"""Settings that a component refuses, with the value and the remedy in the message."""

from __future__ import annotations

from typing import Any

import pytest

from keep_agent.errors import ConfigError
from memory.config.components import component

RAM, QUANTIZED = ({"_target_": f"memory.storage.{name}"} for name in ("ram.Ram", "quantized.Quantized"))
NESTED = {"_target_": "memory.storage.tiers.Tiers", "tiers": [RAM]}
LOG = [({"log": -1}, "log=-1")]
BUDGET = ({"budget": 0}, "budget=0 tokens keeps nothing")
BAD_SETTINGS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "construction.fixed_blocks.FixedBlocks": [({"size": 0}, "size=0")],
    "construction.prefix.Prefix": [({"block_size": 0}, "block_size=0")],
    "construction.segments.Segments": [({"block_size": 0}, "block_size=0"), ({"refresh": 1.5}, "refresh=1.5")],
    "construction.static_dynamic.StaticDynamic": LOG,
    "construction.per_segment.PerSegment": LOG,
    "construction.groups.Groups": LOG,
    "construction.history.History": [
        ({"block_size": 0}, "block_size"), ({"cut": "word"}, "cut"), ({"positions": "lost"}, "positions"),
    ],
    "construction.turns.Turns": [
        ({"block_size": 0}, "block_size=0"), ({"prefix_tokens": -1}, "prefix_tokens=-1 is negative"),
        ({"survivors": "jump"}, "survivors='jump' is unknown; use one of stay, move"),
    ],
    "recompute.first_tokens.FirstTokens": [({"k": -1}, "k=-1 is negative"), ({"last_k": -2}, "last_k=-2 is negative")],
    "recompute.multi_hop.Schedule": [
        ({"average": 1.5}, "average"), ({"last": -1}, "last"), ({"until": 1}, "until"), ({"shape": "cubic"}, "cubic"),
    ],
    "recompute.multi_hop.MultiHop": [
        ({"direction": "up"}, "direction"), ({"max_hops": -1}, "max_hops"), ({"query_weight": 1.5}, "query_weight"),
        ({"limit": 1.5}, "limit"),
    ],
    "recompute.sparse_query.SparseQuery": [
        ({"boundary": 1.5}, "boundary=1.5 is not a share"), ({"share": -0.1}, "share=-0.1 is not a share"),
        ({"block": 0}, "block=0 is too small: use 1"), ({"overflow": -1}, "overflow=-1"), ({"tail": -1}, "tail=-1"),
        ({"over": "new"}, "all, reused"),
    ],
    "recompute.value_deviation.ValueDeviation": [
        ({"ratio": 1.5}, "ratio=1.5 is not a share"), ({"ratio": -0.1}, "use 0 to 1"),
        ({"deviation": "q"}, "deviation='q' is unknown"), ({"selection": "twice"}, "gradual, single"),
        ({"shape": "cubic"}, "shape='cubic'"),
    ],
    "retention.streaming.Streaming": [
        BUDGET, ({"sinks": -1}, "sinks=-1 is negative"),
        ({"grain": "word"}, "grain='word' is unknown; use one of token, segment"),
    ],
    "retention.h2o.H2O": [BUDGET, ({"recent": 1.5}, "recent=1.5 is not a share")],
    "retention.snapkv.SnapKV": [
        BUDGET, ({"window": 0}, "window=0 rows have no queries"), ({"kernel": 4}, "kernel=4 has no middle"),
        ({"pooling": "sum"}, "pooling='sum' is unknown; use one of max, mean"),
    ],
    "retention.query_memory.QueryMemory": [BUDGET, ({"decay": -0.1}, "decay=-0.1 would let old queries grow")],
    "retrieval.embedding.Embedding": [
        ({"group_score": "median"}, "median"), ({"recent": -1}, "recent=-1 is not a number of actions"),
    ],
    "retrieval.latent.Latent": [
        ({"top_k": 0}, "top_k=0"), ({"unit": "rows"}, "unit='rows' is unknown"),
        ({"normalise": "none"}, "normalise='none' is unknown"), ({"aggregate": "mean"}, "aggregate='mean' is unknown"),
        ({"layers": "some"}, "layers='some' is unknown"), ({"layers": ["early"]}, r"layers=\['early'\] is unknown"),
        ({"layers": 3}, "layers=3 is unknown: use one of .*, or numbers"),
    ],
    "storage.quantized.Quantized": [
        ({"bits": 3}, "bits=3"), ({"keys": "head"}, "keys='head' is unknown"), ({"budget_bytes": -1}, "-1"),
        ({"group": 48}, "group=48 is not a power of two"), ({"group": 4}, "group=4"),
    ],
    "storage.ram.Ram": [({"budget_bytes": -1}, "-1")],
    "storage.disk.Disk": [
        ({"bits": 5}, "bits=5"), ({"agent": "../x"}, "not a safe name"), ({"budget_bytes": -1}, "budget_bytes=-1"),
        ({"buffer_bytes": -1}, "buffer_bytes=-1"),
    ],
    "storage.tiers.Tiers": [
        ({"tiers": []}, "tiers is empty"), ({"tiers": [NESTED]}, "Tiers cannot be a tier"),
        ({"tiers": [QUANTIZED, RAM]}, "tier Ram stores numbers unrounded, but Quantized above"),
        ({"tiers": [RAM], "quotas": {"a": 0.7, "b": 0.7}}, "'b': 0.7} must be shares"),
        ({"tiers": [RAM], "quotas": {"a": -0.1}}, "use 0 or more"),
        ({"tiers": [RAM], "ttl_seconds": 0}, "ttl_seconds=0"),
    ],
    "kv_cache.pinned_blocks.PinnedPool": [
        ({"capacity_bytes": 0}, "capacity_bytes=0"), ({"watermark": 0.0}, "watermark=0.0"),
        ({"watermark": 1.5}, "watermark=1.5"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "settings", "sentence"), [(name, *row) for name, rows in BAD_SETTINGS.items() for row in rows]
)
def test_bad_settings_are_refused(name: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        component({"_target_": f"memory.{name}", **settings})
