"""Sessions over a file of an earlier process: layers come one by one, and what is damaged is computed anew."""

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
from memory.kv_cache.mapped_rows import DamagedError, MappedPacked, MappedRows
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
from tests.memory.houses import furnish
from tests.memory.sessions import (
    CONTEXT,
    LAYERS,
    QUERY,
    blocks,
    close,
    keep,
    memart,
    open_session,
    plain,
    prefix,
    reuse,
    sparsex,
)
from tests.memory.storage.disks import flip, only_file

LOADINGS: list[type[Loading]] = [Serial, NextLayer, LayerBalanced]
CABINETS = 40  # with as many objects their blocks fill several pages


@pytest.fixture(scope="module", params=["inline", "thread"])
def engine_by(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Engine]:
    """The same model, whose slices move where they are asked for, or in a thread."""
    with TransformersEngine(engine.model, request.param) as made:
        yield made


def asked(engine: Engine, method: MemoryMethod, storage: Storage, **settings: object) -> tuple[MemorySession, Prefill]:
    """A new session's first prompt."""
    session = open_session(engine, replace(method, storage=storage), **{"budget": 2 * CABINETS, **settings})
    furnish(session.store, CABINETS, CABINETS)
    return session, session.prefill("mug_1", QUERY)


def filled(engine: Engine, method: MemoryMethod, folder: Path, **knobs: object) -> Prefill:
    """The second prompt of a process that leaves its blocks in a file."""
    session, _ = asked(engine, method, Disk(folder, **knobs))
    found = session.prefill("mug_1", QUERY)
    session.method.storage.flush()
    return found


@dataclass(frozen=True)
class Watcher:
    """A recompute stage that computes the query alone, and notes which layers of the file are verified by then."""

    disk: Disk
    seen: list[set[int]] = field(default_factory=list)
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False)

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        self.seen.append(self.verified())
        return layout.fresh.nonzero()[:, 0]

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        self.seen.append(self.verified())
        return active

    def verified(self) -> set[int]:
        return set(np.flatnonzero(self.disk._pages._verified.any(1)).tolist())


# -- layer by layer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize(("loading", "ahead"), [(Serial, 1), (NextLayer, 2)])
def test_a_restart_reads_no_layer_before_it_is_due(
    engine_by: Engine, loading: type[Loading], ahead: int, bits: int | None, tmp_path: Path
) -> None:
    expected = filled(engine_by, reuse(), tmp_path, bits=bits)
    disk = Disk(tmp_path, bits=bits)
    watcher = Watcher(disk)
    method = replace(reuse(), recompute=watcher, loading=loading())
    _, found = asked(engine_by, method, disk)
    assert watcher.seen[0] == set(), "the prompt is assembled, and nothing was read"
    for layer, seen in enumerate(watcher.seen[1:]):
        assert set(range(layer + 1)) <= seen <= set(range(layer + ahead))
    assert found.counts.hit_tokens == found.counts.memory_tokens > 256
    assert torch.equal(found.logits, expected.logits)


def test_layer_balanced_reads_what_is_due_first(engine: Engine, tmp_path: Path) -> None:
    with TransformersEngine(engine.model, "thread") as made:
        expected = filled(made, keep(), tmp_path)
        disk = Disk(tmp_path)
        _, found = asked(made, keep(), disk)
        firsts = [interval.first for interval in found.trace.loads]
        assert disk._pages._verified[-1].any() and firsts.count(0) and firsts[-1] == LAYERS - 1
        assert torch.equal(found.logits, expected.logits)
        assert found.counts.hit_tokens == found.counts.memory_tokens


def test_tiers_stream_after_a_restart_and_hold_in_memory_what_was_read(engine_by: Engine, tmp_path: Path) -> None:
    expected = filled(engine_by, reuse(), tmp_path)
    disk = Disk(tmp_path)
    watcher = Watcher(disk)
    tiers = Tiers([Ram(), disk])
    session, found = asked(engine_by, replace(reuse(), recompute=watcher), tiers)
    assert watcher.seen[0] == set() and tiers.stats()["promoted"] == 0
    assert torch.equal(found.logits, expected.logits)
    again = session.prefill("mug_1", QUERY)
    assert tiers.stats()["promoted"] == tiers.stats()["tier0_blocks"] == len({unit.identity for unit in again.units})
    assert torch.equal(again.logits, expected.logits)


# -- everybody who takes a block's rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("loading", LOADINGS[1:])
@pytest.mark.parametrize(
    "method",
    [
        keep(),
        blocks(),
        sparsex(),
        replace(reuse(), recompute=ValueDeviation(0.4)),
        replace(reuse(), recompute=FirstTokens(k=2)),
        replace(reuse(), retrieval=Latent(top_k=8)),
    ],
    ids=["keep", "fixed blocks", "sparsex", "cacheblend", "epic", "latent"],
)
def test_a_restart_answers_as_the_process_before_would_have(
    engine_by: Engine, method: MemoryMethod, loading: type[Loading], bits: int | None, tmp_path: Path
) -> None:
    method, disk = replace(method, loading=loading()), Disk(tmp_path, bits=bits)
    session, _ = asked(engine_by, method, disk, budget=20)
    expected = session.prefill("mug_1", QUERY)  # of blocks that wait in memory
    disk.flush()
    found = session.prefill("mug_1", QUERY)
    held = [p.block.k for p in found.layout.placements if p.block is not None]
    assert held and all(isinstance(k, MappedRows if bits is None else MappedPacked) for k in held)
    assert torch.equal(found.logits, expected.logits)
    assert found.counts.hit_tokens == expected.counts.hit_tokens > 0


@pytest.mark.parametrize("choice", ["all", "each"])
def test_harvested_blocks_are_read_from_the_file(engine_by: Engine, choice: str, tmp_path: Path) -> None:
    """MemArt's, layer by layer too: of two sessions one reads what the other has in memory."""
    method, disk = replace(memart(), retrieval=Latent(top_k=6, layers=choice)), Disk(tmp_path)
    ours, theirs = (open_session(engine_by, replace(method, storage=storage)) for storage in (disk, Ram()))
    furnish(ours.store), furnish(theirs.store)
    for _ in range(4):
        disk.flush()
        found, expected = (session.prefill("mug_1", QUERY) for session in (ours, theirs))
        assert torch.equal(found.logits, expected.logits)
    assert disk._pages._verified.any() and found.counts.hit_tokens > 0


def test_a_block_of_a_file_is_placed_boxed_and_loaded_by_hand(engine: Engine, tmp_path: Path) -> None:
    (made,) = engine.encode([(None, (5, 6, 7, 8, 9))], ["a"])
    disk = Disk(tmp_path)
    disk.open(engine.model_key)
    disk.put(made)
    disk.flush()
    found = disk.get("a")
    boxes, expected = (KeyBoxes.around([one.k], [1, 3]) for one in (found, made))
    assert torch.equal(boxes.low, expected.low) and torch.equal(boxes.high, expected.high)
    assert disk._pages._verified[:, 0].tolist() == [False, True, False, True], "only the layers that vote"
    units = [[(context, (3, 4))] for context in (found, made)]
    (behind,), (truth,) = (engine.encode(one) for one in units)
    assert torch.equal(behind.k, truth.k) and torch.equal(behind.v, truth.v), "as what is seen before a unit"


# -- damage ----------------------------------------------------------------------------------------------------------


def places(path: Path) -> dict[str, int]:
    """Bits of a file: in its header, and in keys and values of its first and last layer."""
    file = open_blocks(path)
    begin = path.stat().st_size - sum(span.end - span.begin for span in file._head.spans.values())
    half, layer = (path.stat().st_size - begin) // 2, (path.stat().st_size - begin) // 2 // LAYERS
    bytes_ = {"header": begin // 2, "first keys": begin + 40, "last keys": begin + half - layer + 40}
    bytes_ |= {"first values": begin + half + layer // 2, "last values": path.stat().st_size - layer + 40}
    return {name: 8 * byte + byte % 8 for name, byte in bytes_.items()}


@pytest.mark.parametrize("tiers", [False, True], ids=["disk", "tiers"])
@pytest.mark.parametrize("where", ["header", "first keys", "last keys", "first values", "last values"])
@pytest.mark.parametrize("loading", LOADINGS)
def test_damage_found_in_a_prefill_ends_in_the_same_answer(
    engine_by: Engine, loading: type[Loading], where: str, tiers: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    method = replace(reuse(), loading=loading())
    expected = filled(engine_by, method, tmp_path)
    flip(only_file(tmp_path), places(only_file(tmp_path))[where])
    disk = Disk(tmp_path)
    storage = Tiers([Ram(), disk]) if tiers else disk
    with caplog.at_level(logging.WARNING):
        session, found = asked(engine_by, method, storage)
    assert torch.equal(found.logits, expected.logits)
    lost = {unit.identity: unit.tokens for unit in found.units if not unit.hit}
    assert lost and (where == "header") == (not any(unit.hit for unit in found.units))
    check_counts(found, expected, sum(lost.values()))
    assert disk.stats()["corrupt"] == (1 if where == "header" else len(lost))
    assert caplog.text.count("computed anew") >= disk.stats()["corrupt"]
    again = session.prefill("mug_1", QUERY)
    assert again.counts.hit_tokens == again.counts.memory_tokens and torch.equal(again.logits, expected.logits)
    storage.flush()
    assert asked(engine_by, method, Disk(tmp_path))[1].counts.hit_tokens == again.counts.memory_tokens


def check_counts(found: Prefill, expected: Prefill, encoded: int) -> None:
    """``encoded`` tokens of blocks were lost, some of them stand in several places; all others were served."""
    counts, truth, lost = found.counts, expected.counts, sum(unit.tokens for unit in found.units if not unit.hit)
    assert counts.hit_tokens == truth.memory_tokens - lost == truth.hit_tokens - lost
    assert counts.encoded_token_layers == (encoded + len(CONTEXT)) * LAYERS
    assert counts.fresh_tokens == truth.fresh_tokens + lost + len(CONTEXT)
    assert counts.token_layers == truth.token_layers
    assert counts.loaded_bytes * truth.hit_tokens == truth.loaded_bytes * counts.hit_tokens, "what is new is not loaded"
    assert [p.hit for p in found.layout.placements] == [unit.hit for unit in found.units]


@pytest.mark.parametrize("bits", [None, 8])
def test_a_flip_anywhere_ends_in_the_same_answer(engine: Engine, bits: int | None, tmp_path: Path) -> None:
    """Bits drawn from all of the file: padding, where nothing is lost, is among them."""
    expected = filled(engine, keep(), tmp_path, bits=bits)
    path, rng, lost = only_file(tmp_path), random.Random(0), []
    raw = path.read_bytes()
    for _ in range(12):
        flip(path, rng.randrange(8 * len(raw)))
        _, found = asked(engine, keep(), Disk(tmp_path, bits=bits))
        assert close(found.logits, expected.logits, 1e-12 if bits is None else 0.02)
        lost.append(found.counts.memory_tokens - found.counts.hit_tokens)
        path.write_bytes(raw)
    assert max(lost) > 0


@pytest.mark.parametrize("damaged", ["one layer", "every layer"])
def test_a_latent_choice_comes_upon_damage_before_the_prefill(engine: Engine, damaged: str, tmp_path: Path) -> None:
    """While the prompt is still being assembled, when other blocks have been encoded for it already."""
    method = replace(reuse(), retrieval=Latent(top_k=8))
    expected = filled(engine, method, tmp_path)
    path = only_file(tmp_path)
    size = path.stat().st_size
    for share in (0.3,) if damaged == "one layer" else (0.06, 0.18, 0.3, 0.45):
        flip(path, 8 * int(share * size))
    disk = Disk(tmp_path)
    session = open_session(engine, replace(method, storage=disk), budget=2 * CABINETS)
    furnish(session.store, CABINETS, CABINETS)
    disk.delete(expected.units[-1].identity)
    found = session.prefill("mug_1", QUERY)
    lost = disk.stats()["corrupt"]
    assert lost > 0 and torch.equal(found.logits, expected.logits)
    waiting = sum(block.tokens for block in disk._blocks.values())
    assert len(disk._blocks) == lost + 1
    asked_layers = found.counts.encoded_token_layers - (waiting + len(CONTEXT)) * LAYERS
    assert asked_layers == expected.counts.encoded_token_layers, "what is encoded before the damage is found counts"


class Stubborn(Disk):
    """Gives out again what was found damaged."""

    def delete(self, identity: str) -> None:
        if identity in self._blocks:
            super().delete(identity)


def test_a_storage_that_serves_damage_again_is_an_error_and_no_loop(engine: Engine, tmp_path: Path) -> None:
    filled(engine, reuse(), tmp_path)
    flip(only_file(tmp_path), places(only_file(tmp_path))["last keys"])
    with pytest.raises(DamagedError, match="computed anew"):
        asked(engine, reuse(), Stubborn(tmp_path))


@pytest.mark.parametrize("method", [prefix, sparsex])
def test_a_damaged_prefix_is_a_shorter_one(engine: Engine, method: Callable[[], MemoryMethod], tmp_path: Path) -> None:
    expected = filled(engine, method(), tmp_path)
    path = only_file(tmp_path)
    file = open_blocks(path)
    step = sum(span.end - span.begin for span in file._head.spans.values()) // 2 // file.blocks
    for page in range(1, 1 + file.blocks // LAYERS):
        flip(path, 8 * (path.stat().st_size - page * step))  # values of the last layer
    disk = Disk(tmp_path)
    _, found = asked(engine, method(), disk)
    assert disk.stats()["corrupt"] > 0 and found.counts.hit_tokens < expected.counts.hit_tokens
    assert close(found.logits, plain(engine, found))
