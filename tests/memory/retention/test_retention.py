"""Retention stages: surviving rows, query memory, and the residual heads with their files."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.nn import functional

from keep_agent.config.planner_factory import make_method, make_model
from keep_agent.errors import ModelError
from memory.engine.attention.kernels import AttentionParams
from memory.engine.base import Engine
from memory.engine.models.load import load_model
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.cache_view import CacheView
from memory.method import MemoryMethod
from memory.retention.h2o import H2O
from memory.retention.keep_all import KeepAll
from memory.retention.query_memory import QueryMemory, session_key
from memory.retention.residual_head import SHIPPED, ResidualHead, load_head, save_head
from memory.retention.snapkv import SnapKV
from memory.retention.streaming import Streaming
from memory.segments.sentence_encoder import CachedEncoder, HashedNgrams
from memory.session import MemorySession
from memory.stages import Retention
from tests import beside
from tests.memory.sessions import open_session, query_memory
from tests.references.intentkv import IntentKV
from tests.references.transcript import Transcript

LAYERS, HEADS, KV_HEADS, DIM = 3, 4, 2, 8


def view_of(rows: int = 40, protected: int = 3, span: int = 5, seed: int = 0, session: str = "me") -> CacheView:
    """Make a view of rows at positions with gaps; the first and last rows are forced."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    positions = torch.randperm(3 * rows, generator=generator)[:rows].sort().values
    keys, queries = random(LAYERS, KV_HEADS, rows, DIM), random(LAYERS, HEADS, rows, DIM)
    spans = torch.arange(rows) >= rows - span
    return CacheView(
        positions=positions,
        tokens=torch.randint(0, 99, (rows,), generator=generator),
        forced=spans | (torch.arange(rows) < protected),
        span=spans,
        layers=LAYERS,
        keys=keys.__getitem__,
        query_positions=positions,
        queries=queries.__getitem__,
        attention=lambda layer: AttentionParams(DIM**-0.5),
        intent=random(LAYERS, HEADS, DIM),
        mass=random(rows).exp(),
        session=session,
    )


def stages(budget: int) -> list[Retention]:
    return [Streaming(budget), H2O(budget), SnapKV(budget, window=4), QueryMemory(budget)]


@given(rows=st.integers(1, 60), protected=st.integers(0, 9), span=st.integers(0, 9), budget=st.integers(1, 70))
@settings(max_examples=60)
def test_the_budget_is_used_completely(rows: int, protected: int, span: int, budget: int) -> None:
    view = view_of(rows, min(protected, rows), min(span, rows))
    for stage in stages(budget):
        mask = stage.keep(view)
        assert mask[view.forced].all() and int(mask.sum()) == min(rows, max(budget, int(view.forced.sum())))


def test_without_a_budget_all_rows_stay() -> None:
    assert KeepAll().budget is None and KeepAll().keep(view_of()).all()


def test_ties_go_to_the_later_row() -> None:
    view = replace(view_of(rows=20, protected=0, span=0), mass=torch.ones(20))
    assert H2O(7, recent=0.0).keep(view).tolist() == [False] * 13 + [True] * 7


@given(
    window=st.none() | st.integers(1, 40),
    softcap=st.none() | st.floats(0.1, 5),
    sinks=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=40)
def test_snapkv_averages_attention_weights(window: int | None, softcap: float | None, sinks: bool, seed: int) -> None:
    """Compare by row and head; for some queries all rows within the window were evicted."""
    view, stays = view_of(rows=14, protected=0, span=0, seed=seed), torch.tensor([0, 1, 8, 9, 12, 13])
    params = AttentionParams(0.7, window, softcap, torch.linspace(-2, 3, HEADS) if sinks else None)
    places, keys = view.positions, view.keys(1)[:, stays]
    live = {"positions": places[stays], "forced": view.forced[stays], "keys": lambda layer: keys}
    view = replace(view, **live, attention=lambda layer: params)
    attention = SnapKV(5, window=9, kernel=1).window_attention(view, 1)
    before = int((view.positions < places[-9]).sum())
    assert attention.shape == (HEADS, before)
    for head in range(HEADS):
        total = torch.zeros(before)
        for query, place in zip(view.queries(1)[head, -9:], places[-9:], strict=True):
            scores = 0.7 * keys[head * KV_HEADS // HEADS] @ query
            scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
            near = (view.positions <= place) & (view.positions > place - (window or 10**6))
            weights = torch.where(near, scores.exp(), 0)
            sink = params.sinks[head].exp() if sinks else 0
            total += (weights / (weights.sum() + sink).clamp(min=1e-30))[:before] / 9
        torch.testing.assert_close(attention[head], total, rtol=1e-4, atol=1e-6)


def test_the_memory_is_updated_without_an_eviction() -> None:
    stage, fresh = QueryMemory(budget=100), QueryMemory(budget=100)
    stage.keep(view_of(seed=1))
    for memory in (stage, fresh):
        memory.keep(view_of(seed=2))
    assert not torch.allclose(stage.update_memory(view_of(seed=3)), fresh.update_memory(view_of(seed=3)), atol=1e-3)


def test_sessions_are_identified_by_name_then_query_then_beginning() -> None:
    view = view_of(rows=300)
    nameless = replace(view, session="")
    spanless = replace(nameless, span=torch.zeros_like(view.span))
    keys = [session_key(v) for v in (view, replace(view, session="you"), nameless, spanless)]
    assert len(set(keys)) == 4 and keys[0] == "session me"
    other_end = torch.cat([view.tokens[:256], view.tokens[256:] + 1])
    other_start = torch.cat([view.tokens[:1] + 1, view.tokens[1:]])
    assert session_key(replace(nameless, tokens=other_end)) != keys[2], "the tokens of the span"
    assert session_key(replace(nameless, tokens=other_start)) == keys[2]
    assert session_key(replace(spanless, tokens=other_end)) == keys[3], "the first 256 tokens"
    assert session_key(replace(spanless, tokens=other_start)) != keys[3]


def test_an_empty_session_has_no_memory() -> None:
    nameless, stage = view_of(rows=0, protected=0, span=0, session=""), QueryMemory()
    assert session_key(nameless) == ""
    first = stage.update_memory(nameless)
    stage.update_memory(replace(nameless, intent=-3 * nameless.intent + 1))
    assert torch.equal(stage.update_memory(nameless), first)


def test_the_least_recently_used_of_1024_memories_is_evicted() -> None:
    stage, view = QueryMemory(), view_of()
    flipped = replace(view, intent=view.intent.flip(-1))

    def follow(name: str, view: CacheView) -> torch.Tensor:
        return stage.update_memory(replace(view, session=name))

    alone = follow("0", view)
    for number in range(1, 1024):
        follow(str(number), view)
    assert not torch.allclose(follow("0", flipped), QueryMemory().update_memory(flipped)), "it is still stored"
    follow("one more", view)
    torch.testing.assert_close(follow("1", flipped), QueryMemory().update_memory(flipped))
    assert not torch.allclose(follow("0", view), alone)


def test_a_memory_of_another_model_is_not_used() -> None:
    stage, view = QueryMemory(), view_of()
    stage.update_memory(view)
    smaller = replace(view, intent=view.intent[:, :2])
    torch.testing.assert_close(stage.update_memory(smaller), functional.normalize(smaller.intent, dim=-1))


def saved(folder: Path, head: ResidualHead, **about: Any) -> str:
    path = folder / "head.safetensors"
    save_head(head, path, about)
    return str(path)


def loud(alpha: float = 0.8) -> ResidualHead:
    torch.manual_seed(0)
    head = ResidualHead(DIM)
    head.out.reset_parameters()
    head.alpha.data.fill_(alpha)
    return head


def scores(stage: QueryMemory, view: CacheView) -> torch.Tensor:
    return stage.scores(view, stage.update_memory(view))


def test_an_untrained_head_equals_the_rule(tmp_path: Path) -> None:
    view, untrained = view_of(), saved(tmp_path, ResidualHead(DIM))
    rule = scores(QueryMemory(), view)
    assert torch.equal(scores(QueryMemory(head=untrained), view), rule)
    with beside.loading():
        assert torch.equal(scores(QueryMemory(), view), rule)
    assert sum(parameter.numel() for parameter in ResidualHead(128).parameters()) == 214_274, "as in the paper"


@pytest.mark.parametrize(("alpha", "effective"), [(9.0, 5.0), (-7.0, -5.0), (0.5, 0.5)])
def test_alpha_is_clamped_to_five(tmp_path: Path, alpha: float, effective: float) -> None:
    view, rule = view_of(), scores(QueryMemory(), view_of())
    added = scores(QueryMemory(head=saved(tmp_path, loud(alpha))), view) - rule
    once = scores(QueryMemory(head=saved(tmp_path, loud(1.0))), view) - rule
    torch.testing.assert_close(added, effective * once, rtol=1e-4, atol=1e-5)


def test_a_head_of_another_model_is_refused(tmp_path: Path) -> None:
    head = saved(tmp_path, ResidualHead(DIM + 1))
    with pytest.raises(ModelError, match=f"trained for head_dim {DIM + 1}, the model's is {DIM}; train one with"):
        QueryMemory(budget=9, head=head).keep(view_of())


@given(rows=st.integers(1, 60), size=st.integers(1, 9), budget=st.integers(1, 70), seed=st.integers(0, 9))
@settings(max_examples=60)
def test_by_segment_parts_stay_or_go_as_a_whole(rows: int, size: int, budget: int, seed: int) -> None:
    view = replace(view_of(rows, 3, 5, seed), part_of_row=torch.arange(rows) // size)
    for stage in stages(budget):
        mask, history = replace(stage, grain="segment").keep(view), view.history
        assert bool((mask | ~view.forced).all())
        parts, room = view.part_of_row[history], budget - int(mask.sum())
        for part in parts.unique():
            part_mask = mask[history[parts == part]]
            assert bool(part_mask.all()) or not bool(part_mask.any())
        assert int(mask.sum()) <= max(budget, int(view.forced.sum()))
        assert all(int((parts == part).sum()) > room for part in parts[~mask[history]].unique())


PLANNER = "planners/planner_tiny"
BUDGET = 48


def with_head(head: str | None, **knobs: object) -> MemoryMethod:
    return replace(query_memory(), retention=QueryMemory(budget=40, head=head, **knobs))


def test_an_unsuitable_head_is_refused_before_the_first_turn(engine: Engine, tmp_path: Path) -> None:
    for head, sentence in (
        ("nowhere", r"no retention head in 'nowhere'.*; train one with .*planner=intentkv_rule"),
        ("planner-tiny", r"for head_dim 32, the model's is 8; train one with .*planner=intentkv_rule"),
        (saved(tmp_path, ResidualHead(9)), "for head_dim 9, the model's is 8"),
    ):
        with pytest.raises(ModelError, match=sentence):
            open_session(engine, with_head(head))
    open_session(engine, with_head(None))
    open_session(engine, with_head("nowhere", residual=False))  # the head is not read


@pytest.mark.parametrize(("damage", "sentence"), [
    (lambda raw: raw[: len(raw) // 2], "no retention head in"),
    (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "is damaged"),
    (lambda raw: raw.replace(rb"{\"model", rb"[\"model", 1), r"head\.safetensors.* \(JSONDecodeError.*; train or copy"),
])  # fmt: skip
def test_a_damaged_head_is_refused(damage: Any, sentence: str, engine: Engine, tmp_path: Path) -> None:
    file = Path(saved(tmp_path, ResidualHead(engine.info.head_dim), model="a/b"))
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ModelError, match=sentence):
        load_head(str(file))


@pytest.mark.parametrize("about", ["own", "other", ""])
def test_another_models_head_gives_a_warning(
    about: str, engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights_key = engine.info.weights_key
    record = {"own": {"weights_key": weights_key}, "other": {"weights_key": "abc", "model": "a/b"}, "": {}}[about]
    method = with_head(saved(tmp_path, ResidualHead(engine.info.head_dim), **record))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            open_session(engine, method)
    assert len(caplog.records) == (about == "other")
    if about == "other":
        assert f"was trained for model abc (a/b), this is {weights_key:.12s}" in caplog.text


@pytest.mark.parametrize("name", ["planner-tiny", "planner-tiny-long"])
def test_every_bundled_model_has_its_own_head(name: str) -> None:
    with initialize_config_module("configs", version_base="1.3"):
        config = compose("alfred", ["planner=intentkv", f"model={name}"])
    head, model = load_head(config.memory.retention.head), make_model(config.model)
    assert head.about["weights_key"] == model.spec.weights_key
    weighed = head.about["weighed"]
    assert head.alpha.item() == pytest.approx(min(weighed, key=lambda row: row["nats"])["alpha"], abs=1e-5)


def shipped(*overrides: str) -> MemoryMethod:
    with initialize_config_module("configs", version_base="1.3"):
        settings = ["memory=intentkv", f"memory.retention.budget={BUDGET}", *overrides]
        return make_method(compose("alfred", settings).memory)


def rows_kept(engine: Engine, method: MemoryMethod, references: bool) -> list[list[int]]:
    tokenizer = load_tokenizer(PLANNER)

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    context, order = ids("context grounded\n"), ids("task put the mug on the table\n")
    session = MemorySession(engine, method, CachedEncoder(HashedNgrams()), ids, context_ids=context)
    weights = {name: weight.double() for name, weight in load_file(SHIPPED / "planner-tiny.safetensors").items()}
    transcript = Transcript(engine.model.module)
    reference = IntentKV(transcript, BUDGET, method.retention.decay, weights)
    live_rows, instruction = [], range(0)
    for turn, place in enumerate(["cabinet_1", "table_1", "fridge_1", "cabinet_2", "drawer_3"]):
        session.store.put(place, "receptacle", f"there {place} closed, mug mug_{turn} apple apple_{turn} in it\n")
        query = [*(order if turn == 0 else ()), *ids(f"at {place}\nnext")]
        prefill = session.prefill("put the mug on the table", query, instruction_ids=order if turn == 0 else ())
        ids_of, first = prefill.layout.token_ids.tolist(), prefill.layout.query
        if turn == 0:
            instruction = range(first, first + len(order))
        if references:
            transcript.append(ids_of[len(transcript.ids) :])
            span = sorted({*instruction, *range(first, len(ids_of))})
            reference.keep({*range(len(context)), *span}, span)
            assert session._builder.cache.positions.tolist() == transcript.live
        live_rows.append(session._builder.cache.positions.tolist())
        session.append_turn(ids(f" go to {place}\n"))
        session.advance()
    return live_rows


def test_planner_tiny_evicts_by_its_bundled_head() -> None:
    with TransformersEngine(load_model(PLANNER, "float64")) as engine:
        live_rows = rows_kept(engine, shipped(), references=True)
        assert [len(live) for live in live_rows[1:]] == [BUDGET] * (len(live_rows) - 1)
        assert live_rows != rows_kept(engine, shipped("memory.retention.residual=false"), references=False)


def test_a_head_that_is_not_finite_is_refused(engine: Engine, tmp_path: Path) -> None:
    head = ResidualHead(engine.info.head_dim)
    head.alpha.data.fill_(float("nan"))
    with pytest.raises(ModelError, match="holds numbers that are not finite; train it "):
        load_head(saved(tmp_path, head))
