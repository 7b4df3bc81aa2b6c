"""Sessions over a file of an earlier process: layers are read one by one, and damaged blocks computed again."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from memory.engine.base import Engine
from memory.engine.transformers.engine import TransformersEngine
from memory.files.block_file import open_blocks
from memory.kv_cache.key_boxes import KeyBoxes
from memory.kv_cache.packed_rows import DamagedError, MappedPacked, MappedRows
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.prompt.layout import Layout
from memory.prompt.report import Prefill
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.value_deviation import ValueDeviation
from memory.retrieval.latent import Latent
from memory.session import MemorySession
from memory.stages import Capabilities, Loading, Probe, Storage
from memory.storage.disk import Disk
from memory.storage.ram import Ram
from memory.storage.tiers import Tiers
from tests.memory import sessions as samples
from tests.memory.sessions import CONTEXT, LAYERS, QUERY, close, furnished, keep, reuse
from tests.memory.storage.disks import flip, only_file

LOADINGS: list[type[Loading]] = [Serial, NextLayer, LayerBalanced]
CABINETS = 40  # with as many objects, to fill several pages


@pytest.fixture(scope="module", params=["inline", "thread"])
def engine_by(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Engine]:
    with TransformersEngine(engine.model, request.param) as engine:
        yield engine


def first_prompt(
    engine: Engine, method: MemoryMethod, storage: Storage, **settings: object
) -> tuple[MemorySession, Prefill]:
    knobs = {"budget": 2 * CABINETS, **settings}
    session = furnished(engine, replace(method, storage=storage), CABINETS, CABINETS, **knobs)
    return session, session.prefill("mug_1", QUERY)


def filled(engine: Engine, method: MemoryMethod, folder: Path, **knobs: object) -> Prefill:
    """Return the second prompt of a session whose blocks are then flushed to a file."""
    session, _ = first_prompt(engine, method, Disk(folder, **knobs))
    actual = session.prefill("mug_1", QUERY)
    session.method.storage.flush()
    return actual


@dataclass(frozen=True)
class Watcher:
    """Recompute stage for the query alone that records the layers of the file verified at each call."""

    disk: Disk
    layers_read: list[set[int]] = field(default_factory=list)
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False)

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        self.layers_read.append(self.verified())
        return layout.fresh.nonzero()[:, 0]

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        self.layers_read.append(self.verified())
        return active

    def verified(self) -> set[int]:
        return set(np.flatnonzero(self.disk._pages._verified.any(1)).tolist())


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize(("loading", "ahead"), [(Serial, 1), (NextLayer, 2)])
def test_layers_are_read_when_needed(
    engine_by: Engine, loading: type[Loading], ahead: int, bits: int | None, tmp_path: Path
) -> None:
    expected = filled(engine_by, reuse(), tmp_path, bits=bits)
    disk = Disk(tmp_path, bits=bits)
    watcher = Watcher(disk)
    method = replace(reuse(), recompute=watcher, loading=loading())
    _, actual = first_prompt(engine_by, method, disk)
    assert watcher.layers_read[0] == set(), "nothing is read while the prompt is assembled"
    for layer, layers_read in enumerate(watcher.layers_read[1:]):
        assert set(range(layer + 1)) <= layers_read <= set(range(layer + ahead))
    assert actual.counts.hit_tokens == actual.counts.memory_tokens > 256
    assert torch.equal(actual.logits, expected.logits)


def test_layer_balanced_reads_urgent_layers_first(engine: Engine, tmp_path: Path) -> None:
    with TransformersEngine(engine.model, "thread") as engine:
        expected = filled(engine, keep(), tmp_path)
        disk = Disk(tmp_path)
        _, actual = first_prompt(engine, keep(), disk)
        firsts = [interval.first for interval in actual.trace.loads]
        assert disk._pages._verified[-1].any() and firsts.count(0) and firsts[-1] == LAYERS - 1
        assert torch.equal(actual.logits, expected.logits)
        assert actual.counts.hit_tokens == actual.counts.memory_tokens


def test_tiers_stream_after_a_restart_and_keep_blocks_that_were_read(engine_by: Engine, tmp_path: Path) -> None:
    expected = filled(engine_by, reuse(), tmp_path)
    disk = Disk(tmp_path)
    watcher = Watcher(disk)
    tiers = Tiers([Ram(), disk])
    session, actual = first_prompt(engine_by, replace(reuse(), recompute=watcher), tiers)
    assert watcher.layers_read[0] == set() and tiers.stats()["promoted"] == 0
    assert torch.equal(actual.logits, expected.logits)
    again = session.prefill("mug_1", QUERY)
    assert tiers.stats()["promoted"] == tiers.stats()["tier0_blocks"] == len({unit.identity for unit in again.units})
    assert torch.equal(again.logits, expected.logits)
    session.reset()
    assert tiers.stats()["blocks"] == 0, "a reset deletes blocks on the disk too"


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("loading", LOADINGS[1:])
@pytest.mark.parametrize("method", [
    keep(),
    samples.blocks(),
    samples.sparsex(),
    replace(reuse(), recompute=ValueDeviation(0.4)),
    replace(reuse(), recompute=FirstTokens(k=2)),
    replace(reuse(), retrieval=Latent(top_k=8)),
], ids=["keep", "fixed blocks", "sparsex", "cacheblend", "epic", "latent"])  # fmt: skip
def test_restart_logits(
    engine_by: Engine, method: MemoryMethod, loading: type[Loading], bits: int | None, tmp_path: Path
) -> None:
    method, disk = replace(method, loading=loading()), Disk(tmp_path, bits=bits)
    session, _ = first_prompt(engine_by, method, disk, budget=20)
    expected = session.prefill("mug_1", QUERY)  # from blocks in memory
    disk.flush()
    actual = session.prefill("mug_1", QUERY)
    stored = [p.block.k for p in actual.layout.placements if p.block is not None]
    assert stored and all(isinstance(k, MappedRows if bits is None else MappedPacked) for k in stored)
    assert torch.equal(actual.logits, expected.logits)
    assert actual.counts.hit_tokens == expected.counts.hit_tokens > 0


@pytest.mark.parametrize("choice", ["all", "each"])
def test_harvested_blocks_are_read_from_the_file(engine_by: Engine, choice: str, tmp_path: Path) -> None:
    method, disk = replace(samples.memart(), retrieval=Latent(top_k=6, layers=choice)), Disk(tmp_path)
    on_disk, in_memory = (furnished(engine_by, replace(method, storage=storage)) for storage in (disk, Ram()))
    for _ in range(4):
        disk.flush()
        actual, expected = (session.prefill("mug_1", QUERY) for session in (on_disk, in_memory))
        assert torch.equal(actual.logits, expected.logits)
    assert disk._pages._verified.any() and actual.counts.hit_tokens > 0


def test_a_block_of_a_file_has_boxes_and_serves_as_context(engine: Engine, tmp_path: Path) -> None:
    (block,) = engine.encode([(None, (5, 6, 7, 8, 9))], ["a"])
    disk = Disk(tmp_path)
    disk.open(engine.model_key)
    disk.put(block)
    disk.flush()
    actual = disk.get("a")
    boxes, expected = (KeyBoxes.around([b.k], [1, 3]) for b in (actual, block))
    assert torch.equal(boxes.low, expected.low) and torch.equal(boxes.high, expected.high)
    assert disk._pages._verified[:, 0].tolist() == [False, True, False, True], "only the layers of the boxes"
    (encoded,), (truth,) = (engine.encode([(context, (3, 4))]) for context in (actual, block))
    assert torch.equal(encoded.k, truth.k) and torch.equal(encoded.v, truth.v), "as the context of a unit"


def places(path: Path) -> dict[str, int]:
    """Return positions of bits in a file's header, and in keys and values of its first and last layer."""
    file = open_blocks(path)
    begin = path.stat().st_size - sum(span.end - span.begin for span in file._head.spans.values())
    half, layer = (path.stat().st_size - begin) // 2, (path.stat().st_size - begin) // 2 // LAYERS
    bytes_ = {"header": begin // 2, "first keys": begin + 40, "last keys": begin + half - layer + 40}
    bytes_ |= {"first values": begin + half + layer // 2, "last values": path.stat().st_size - layer + 40}
    return {name: 8 * byte + byte % 8 for name, byte in bytes_.items()}


@pytest.mark.parametrize("tiers", [False, True], ids=["disk", "tiers"])
@pytest.mark.parametrize("where", ["header", "first keys", "last keys", "first values", "last values"])
@pytest.mark.parametrize("loading", LOADINGS)
def test_damage_in_a_prefill_does_not_change_the_logits(
    engine_by: Engine, loading: type[Loading], where: str, tiers: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    method = replace(reuse(), loading=loading())
    expected = filled(engine_by, method, tmp_path)
    flip(only_file(tmp_path), places(only_file(tmp_path))[where])
    disk = Disk(tmp_path)
    storage = Tiers([Ram(), disk]) if tiers else disk
    with caplog.at_level(logging.WARNING):
        session, actual = first_prompt(engine_by, method, storage)
    assert torch.equal(actual.logits, expected.logits)
    losses = {unit.identity: unit.tokens for unit in actual.units if not unit.hit}
    assert losses and (where == "header") == (not any(unit.hit for unit in actual.units))
    check_counts(actual, expected, sum(losses.values()))
    assert disk.stats()["corrupt"] == (1 if where == "header" else len(losses))
    assert caplog.text.count("computed ") >= disk.stats()["corrupt"]
    again = session.prefill("mug_1", QUERY)
    assert again.counts.hit_tokens == again.counts.memory_tokens and torch.equal(again.logits, expected.logits)
    storage.flush()
    assert first_prompt(engine_by, method, Disk(tmp_path))[1].counts.hit_tokens == again.counts.memory_tokens


def check_counts(actual: Prefill, expected: Prefill, encoded: int) -> None:
    counts, truth, losses = actual.counts, expected.counts, sum(unit.tokens for unit in actual.units if not unit.hit)
    assert counts.hit_tokens == truth.memory_tokens - losses == truth.hit_tokens - losses
    assert counts.encoded_token_layers == (encoded + len(CONTEXT)) * LAYERS
    assert counts.fresh_tokens == truth.fresh_tokens + losses + len(CONTEXT)
    assert counts.token_layers == truth.token_layers
    assert counts.loaded_bytes * truth.hit_tokens == truth.loaded_bytes * counts.hit_tokens, "new rows are not loaded"
    assert [p.hit for p in actual.layout.placements] == [unit.hit for unit in actual.units]


@pytest.mark.parametrize("bits", [None, 8])
def test_any_flipped_bit_leaves_the_logits_unchanged(engine: Engine, bits: int | None, tmp_path: Path) -> None:
    expected = filled(engine, keep(), tmp_path, bits=bits)
    path, rng, losses = only_file(tmp_path), random.Random(0), []
    raw = path.read_bytes()
    for _ in range(12):
        flip(path, rng.randrange(8 * len(raw)))
        _, actual = first_prompt(engine, keep(), Disk(tmp_path, bits=bits))
        assert close(actual.logits, expected.logits, 1e-12 if bits is None else 0.02)
        losses.append(actual.counts.memory_tokens - actual.counts.hit_tokens)
        path.write_bytes(raw)
    assert max(losses) > 0


@pytest.mark.parametrize("damaged", ["one layer", "every layer"])
def test_a_latent_choice_detects_damage_before_the_prefill(engine: Engine, damaged: str, tmp_path: Path) -> None:
    """Damage is detected during assembly, after other blocks have been encoded for the prompt."""
    method = replace(reuse(), retrieval=Latent(top_k=8))
    expected = filled(engine, method, tmp_path)
    path = only_file(tmp_path)
    size = path.stat().st_size
    for share in (0.3,) if damaged == "one layer" else (0.06, 0.18, 0.3, 0.45):
        flip(path, 8 * int(share * size))
    disk = Disk(tmp_path)
    session = furnished(engine, replace(method, storage=disk), CABINETS, CABINETS, budget=2 * CABINETS)
    disk.delete(expected.units[-1].identity)
    actual = session.prefill("mug_1", QUERY)
    losses = disk.stats()["corrupt"]
    assert losses > 0 and torch.equal(actual.logits, expected.logits)
    waiting = sum(block.tokens for block in disk._blocks.values())
    assert len(disk._blocks) == losses + 1
    asked_layers = actual.counts.encoded_token_layers - (waiting + len(CONTEXT)) * LAYERS
    assert asked_layers == expected.counts.encoded_token_layers, "blocks encoded before the damage is detected count"


class Stubborn(Disk):
    """Disk that serves damaged blocks again."""

    def delete(self, identity: str) -> None:
        if identity in self._blocks:
            super().delete(identity)


def test_a_storage_that_serves_damage_again_raises(engine: Engine, tmp_path: Path) -> None:
    filled(engine, reuse(), tmp_path)
    flip(only_file(tmp_path), places(only_file(tmp_path))["last keys"])
    with pytest.raises(DamagedError, match="computed "):
        first_prompt(engine, reuse(), Stubborn(tmp_path))


@pytest.mark.parametrize("method", [samples.prefix, samples.sparsex])
def test_a_damaged_prefix_is_shortened(engine: Engine, method: Callable[[], MemoryMethod], tmp_path: Path) -> None:
    expected = filled(engine, method(), tmp_path)
    restored = first_prompt(engine, method(), Disk(tmp_path))[1]
    assert 0 <= expected.counts.hit_tokens - restored.counts.hit_tokens < 4, "all complete blocks"
    path = only_file(tmp_path)
    file = open_blocks(path)
    step = sum(span.end - span.begin for span in file._head.spans.values()) // 2 // file.blocks
    for page in range(1, 1 + file.blocks // LAYERS):
        flip(path, 8 * (path.stat().st_size - page * step))  # values of the last layer
    disk = Disk(tmp_path)
    _, actual = first_prompt(engine, method(), disk)
    assert disk.stats()["corrupt"] > 0 and actual.counts.hit_tokens < expected.counts.hit_tokens
    assert close(actual.logits, samples.plain(engine, actual))
