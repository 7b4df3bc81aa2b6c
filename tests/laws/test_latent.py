"""Laws of history blocks, copied from earlier prompts: exact if all are visible, else equal to MemArt's reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from keep_agent.errors import CapacityError
from memory.construction.history import History
from memory.construction.prefix import Prefix
from memory.engine.base import Engine
from memory.engine.models.tiny_models import tiny_model
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.prompt.report import Prefill
from memory.recompute.none import Nothing
from memory.retrieval.all import All
from memory.retrieval.latent import Latent
from tests.laws.conftest import GetEngine, make_engine
from tests.laws.prompts import relative
from tests.memory.test_session import CONTEXT, episode, open_session
from tests.references.memart import MemArt

SIZE, TOP = 4, 5
VARIANTS = [(norm, aggregate) for norm in ("softmax", "rank") for aggregate in ("max", "sum")]
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, **FACTORS, "original_max_position_embeddings": 160}


def memart(retrieval: object, loading: object = NextLayer(), **construction: Any) -> MemoryMethod:
    history = History(**{"block_size": SIZE, **construction})
    return MemoryMethod("memart", retrieval, history, Nothing(), loading, layout="append")


def turns(engine: Engine, method: MemoryMethod, count: int, seed: int = 0) -> Iterator[Prefill]:
    session = open_session(engine, method)
    for number, prefill in enumerate(episode(session, count, seed)):
        yield prefill
        session.append_turn([7, 8 + number])


def new_rows(prefill: Prefill) -> list[int]:
    return prefill.layout.token_ids[prefill.layout.fresh].tolist()


def block_tokens(prefill: Prefill) -> list[tuple[int, ...]]:
    return [p.unit.token_ids for p in prefill.layout.placements if p.hit and len(p.unit.token_ids) == SIZE]


@pytest.mark.parametrize("options", [{"cut": "tokens"}, {"cut": "segment"}, {"positions": "coupled"}], ids=str)
def test_history_without_selection_is_the_plain_forward(engine: Engine, options: dict[str, str]) -> None:
    transcript = list(CONTEXT)
    for number, prefill in enumerate(turns(engine, memart(All(), **options), 6)):
        ids = prefill.layout.token_ids
        assert ids[: len(transcript)].tolist() == transcript
        assert relative(prefill.logits[0], engine.forward_plain(ids)[-1]) < 1e-5
        assert prefill.counts.hit_tokens == max(0, len(transcript) - len(CONTEXT) - 2 * (number > 0))
        assert set(prefill.trace.active_rows) == {len(new_rows(prefill))}
        transcript = [*ids.tolist(), 7, 8 + number]


@pytest.mark.parametrize(
    "family", ["qwen3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2", "llama"))]
)
@pytest.mark.parametrize(("normalise", "aggregate"), VARIANTS)
@pytest.mark.parametrize("per_layer", [False, True])
def test_law_6_memart(family: str, normalise: str, aggregate: str, per_layer: bool, engine_of: GetEngine) -> None:
    engine = engine_of(family, torch.float64)
    limit = {"top_k": TOP} if per_layer else {"top_k": TOP * SIZE + 1, "unit": "tokens"}
    stage = Latent(normalise=normalise, aggregate=aggregate, layers="each" if per_layer else "all", **limit)
    scoring_layers = range(engine.info.layers)
    reference = MemArt(engine.model.module, CONTEXT, SIZE, TOP, normalise, aggregate, scoring_layers, per_layer)
    choices, transcript = set(), list(CONTEXT)
    for prefill in turns(engine, memart(stage), 6):
        expected = reference.turn(new_rows(prefill))
        if per_layer:
            chosen_blocks = prefill.trace.chosen_blocks or [()] * engine.info.layers
            assert chosen_blocks == [tuple(reference.selection[layer]) for layer in scoring_layers]
        else:
            blocks = [reference.blocks[number] for number in reference.selection[0]]
            assert block_tokens(prefill) == [tuple(transcript[row] for row in rows) for rows in blocks]
        transcript += new_rows(prefill)
        choices.update(map(tuple, reference.selection.values()))
        assert relative(prefill.logits[0], expected) < 1e-5
    assert len(choices) > 3, "the selection must vary"


@pytest.mark.parametrize("layers", [[0], [4, 2], "middle", "late"])
def test_law_6_memart_scores_with_the_configured_layers(layers: str | list[int], engine_of: GetEngine) -> None:
    engine = engine_of("qwen3", torch.float64)
    stage = Latent(top_k=TOP, layers=layers, constant=3)
    scoring_layers = stage.scoring_layers(engine.info.layers)
    reference = MemArt(engine.model.module, CONTEXT, SIZE, TOP, "softmax", "max", scoring_layers)
    for prefill in turns(engine, memart(stage), 5):
        assert relative(prefill.logits[0], reference.turn(new_rows(prefill))) < 1e-5
        scoring_rows = prefill.counts.encoded_token_layers - len(CONTEXT) * engine.info.layers * prefill.cold
        assert scoring_rows == (0 if prefill.cold else len(new_rows(prefill)) * (scoring_layers[-1] + 1))


@pytest.mark.parametrize("layers", ["all", "each"])
def test_law_7_loading_never_changes_a_selection(layers: str, engine_of: GetEngine) -> None:
    engine, stage = engine_of("qwen2"), Latent(top_k=TOP, layers=layers)
    runs = [turns(engine, memart(stage, loading), 5) for loading in (Serial(), NextLayer(), LayerBalanced())]
    for step in zip(*runs, strict=True):
        assert all(torch.equal(step[0].logits, prefill.logits) for prefill in step)


@pytest.mark.parametrize("layers", ["all", "each"])
def test_every_family_supports_latent_retrieval(engine: Engine, layers: str) -> None:
    """Selecting all blocks is exact: rows that each layer loads have the same positions as without retrieval."""
    whole = turns(engine, memart(All()), 4)
    for prefill, expected in zip(turns(engine, memart(Latent(top_k=200, layers=layers)), 4), whole, strict=True):
        assert relative(prefill.logits[0], expected.logits[0]) < 1e-5
        if layers == "all":
            assert relative(prefill.logits[0], engine.forward_plain(prefill.layout.token_ids)[-1]) < 1e-5
    *_, small = turns(engine, memart(Latent(top_k=TOP, layers=layers)), 4)
    assert relative(small.logits[0], prefill.logits[0]) > 1e-3
    assert len(small.trace.chosen_blocks) == (engine.info.layers if layers == "each" else 0)


@pytest.fixture(scope="module")
def short() -> Iterator[Engine]:
    """Return an engine of 100 positions, most of which the first turn uses."""
    with make_engine(tiny_model("qwen3", layers=2, dtype=torch.float64, max_position_embeddings=100)) as engine:
        yield engine


def test_memory_ten_times_the_context_works(short: Engine) -> None:
    reference = MemArt(short.model.module, CONTEXT, SIZE, TOP, "softmax", "max", range(2))
    for prefill in turns(short, memart(Latent(top_k=TOP)), 68):
        assert int(prefill.layout.positions[-1]) == prefill.layout.rows - 1 < 100
        assert relative(prefill.logits[0], reference.turn(new_rows(prefill))) < 1e-5
    assert reference.stored[0][0].shape[1] > 10 * 100 and max(reference.selection[0]) * SIZE > 100
    assert prefill.counts.fresh_tokens < 32


def test_coupled_positions_exceed_the_models_context(short: Engine) -> None:
    """The rows are few, but they keep their positions in the transcript, which exceed the model's range."""
    stage = Latent(top_k=TOP)
    reference = MemArt(short.model.module, CONTEXT, SIZE, TOP, "softmax", "max", range(2), coupled=True)
    for prefill in turns(short, memart(stage, positions="coupled"), 68):
        assert relative(prefill.logits[0], reference.turn(new_rows(prefill))) < 1e-5
    *_, decoupled = turns(short, memart(stage), 68)
    assert prefill.layout.rows < 100 < 1000 < int(prefill.layout.positions[-1])
    assert relative(prefill.logits[0], decoupled.logits[0]) > 1e-2


def test_decoding_after_coupled_positions_counts_rows_not_positions(short: Engine) -> None:
    session = open_session(short, memart(Latent(top_k=TOP), positions="coupled"))
    for prefill in episode(session, 30, 0):
        session.append_turn(prefill.layout.token_ids[-2:].tolist())
    assert prefill.cache.length < 100 < prefill.cache.next_position
    assert torch.isfinite(session.score(prefill, [[1, 2], [3]]).scores).all()
    assert len(session.generate(prefill, 200)) == 100 - prefill.cache.length


def test_coupled_positions_are_refused_beyond_the_range_of_rope() -> None:
    config = {"rope_parameters": LONGROPE, "max_position_embeddings": 160}
    with make_engine(tiny_model("llama", layers=2, dtype=torch.float64, **config)) as engine:
        assert all(prefill.layout.rows < 160 for prefill in turns(engine, memart(Latent(top_k=TOP)), 12))
        with pytest.raises(CapacityError, match="beyond the 160 tokens"):
            list(turns(engine, memart(Latent(top_k=TOP), positions="coupled"), 12))


def test_a_transcript_without_retrieval_restarts_at_the_context_limit() -> None:
    """Methods without decoupled positions must drop their memory."""
    with make_engine(tiny_model("qwen2", layers=2, max_position_embeddings=400)) as engine:
        for method in (memart(All()), MemoryMethod("p", All(), Prefix(4), Nothing(), Serial(), layout="append")):
            rows = [prefill.layout.rows for prefill in turns(engine, method, 12)]
            assert max(rows) < 400 and sorted(rows) != rows
