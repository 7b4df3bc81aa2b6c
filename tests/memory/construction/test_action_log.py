"""Action log: the agent's actions in a task, each line encoded after the lines before it."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.construction.base import Construction
from memory.construction.fixed_blocks import FixedBlocks
from memory.construction.groups import Groups
from memory.construction.per_segment import PerSegment
from memory.construction.prefix import Prefix
from memory.construction.segments import Segments
from memory.construction.static_dynamic import StaticDynamic
from memory.engine.base import Engine
from memory.method import MemoryMethod
from memory.prompt.layout import Unit
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from memory.retrieval.all import All
from memory.retrieval.embedding import Embedding
from memory.segments.groups import Grouping
from memory.segments.store import SegmentStore, prompt_order
from memory.session import MemorySession
from memory.storage.ram import Ram
from tests.memory.houses import furnish, make_house, make_store
from tests.memory.sessions import CONTEXT, QUERY, close, furnished, groups, keep, open_session, plain
from tests.references.isolated import full_reuse

DONE = ("go to cabinet_1", "open cabinet_1", "pick up mug_1", "go to table", "put mug_1")


def reuse(log: int = 512) -> MemoryMethod:
    stages = {"construction": StaticDynamic(log), "recompute": Nothing(), "grouping": Grouping(window=99)}
    return replace(keep(), name="reuse", **stages)


def do(store: SegmentStore, *numbers: int) -> None:
    for number in numbers:
        store.advance()
        store.put(f"did_{number}", "history", f"did {DONE[number % len(DONE)]}\n")


def sizes(store: SegmentStore, count: int) -> list[int]:
    return [len(store.tokens(f"did_{number}")) for number in range(count)]


def plan(construction: Construction, store: SegmentStore) -> list[Unit]:
    ids = prompt_order([segment.id for segment in store], store)
    return construction.plan([store.get(id) for id in ids], store, store.step)


def units(store: SegmentStore, log: int = 512) -> dict[str, Unit]:
    store.graph.update(store)
    return {span.segment: unit for unit in plan(StaticDynamic(log), store) for span in unit.spans}


def test_a_line_follows_the_earlier_lines_of_its_task() -> None:
    store = make_store(Grouping(window=2))
    furnish(store, 1, 2)
    do(store, *range(4))
    lines = [store.tokens(f"did_{number}") for number in range(4)]
    assert [units(store)[f"did_{number}"].preceding for number in range(4)] == [tuple(lines[:n]) for n in range(4)]
    assert all(not unit.preceding for id, unit in units(store).items() if not id.startswith("did_"))
    assert all(not unit.preceding for unit in units(store, log=0).values())
    store.put("finished_1", "task", "finished it\n")
    assert all(not unit.preceding for unit in units(store).values())
    do(store, 4, 5)
    assert units(store)["did_4"].preceding == () and units(store)["did_5"].preceding == (store.tokens("did_4"),)


def test_a_long_log_starts_again() -> None:
    store = make_store()
    do(store, *range(5))
    planned = units(store, log=sum(sizes(store, 3)))
    assert [len(planned[f"did_{number}"].preceding) for number in range(5)] == [0, 1, 2, 0, 1]


def test_lines_of_an_unfinished_task_are_never_static() -> None:
    store = make_store(Grouping(window=2))
    do(store, 0)
    for _ in range(7):
        store.advance()
        assert store.graph.update(store) == []
        with store.graph.quiet_as_static(store):
            assert not store.graph.group_of["did_0"].static
    store.put("finished_1", "task", "finished it\n")
    flips = [flip for _ in range(3) for flip in (store.advance(), *store.graph.update(store))[1:]]
    assert [flip.static for flip in flips].count(True) >= 1 and store.graph.group_of["did_0"].static


@pytest.mark.parametrize("log", [512, 0])
def test_rows_of_a_line_are_reused_after_the_same_log_only(engine: Engine, log: int) -> None:
    session = open_session(engine, replace(groups(), construction=Groups(4, 0.0, log), retrieval=All()))

    def hits() -> list[bool]:
        """Return whether each line of the log was hit in a prompt with a new beginning."""
        session.store.put("first", "object", f"prompt {session.store.changes}\n")
        hit_of = {p.unit.spans[0].segment: p.hit for p in session.prefill("q", QUERY).layout.placements}
        return [hit_of[id] for id in session.store.log]

    session.store.put("first", "object", "prompt\n")
    furnish(session.store, 1, 2)
    for number in range(len(DONE)):
        do(session.store, number)
        assert hits() == [True] * number + [False]
    do(session.store, len(DONE))  # repeats the first action
    assert hits() == [True] * len(DONE) + [log == 0]
    session.store.remove("did_1")
    assert hits() == [True] + [log == 0] * 4


@pytest.fixture(params=[StaticDynamic, PerSegment])
def session(engine: Engine, request: pytest.FixtureRequest) -> MemorySession:
    """Session without static groups, in which both constructions have the same units."""
    return open_session(engine, replace(reuse(), construction=request.param()), budget=40)


def check(engine: Engine, session: MemorySession) -> int:
    """Compare the prompt's logits with transformers' own forward; return the number of encoded tokens."""
    prefill = session.prefill("put mug_1 in cabinet_2", QUERY)
    planned = units(session.store)
    prompt_units = list(dict.fromkeys(planned[s.segment] for s in prefill.layout.segments))
    preceding = [list(chain.from_iterable(unit.preceding)) for unit in prompt_units]
    expected = full_reuse(engine.plain, CONTEXT, [unit.token_ids for unit in prompt_units], QUERY, preceding)
    assert close(prefill.logits, expected[-1:])
    return prefill.counts.encoded_token_layers // engine.info.layers


def test_only_new_lines_and_lines_after_a_removed_line_are_encoded(engine: Engine, session: MemorySession) -> None:
    furnish(session.store, 2, 3)
    check(engine, session)
    for numbers in ((0,), (1,), (2,), (3, 4, 5)):
        do(session.store, *numbers)
        news = sum(len(session.store.tokens(f"did_{number}")) for number in numbers)
        assert (check(engine, session), check(engine, session)) == (news, 0)
    session.store.remove("did_2")
    assert check(engine, session) == news


def test_a_new_line_is_encoded_within_the_prompt(engine: Engine, session: MemorySession) -> None:
    furnish(session.store, 2, 3)
    for number in range(5):
        do(session.store, number)
        layout = session.prefill("put mug_1 in cabinet_2", QUERY).layout
        fused = {span.segment for p in layout.placements if p.fused for span in p.unit.spans}
        assert f"did_{number}" in fused
        lines = sum(sizes(session.store, number))
        assert [p.prefix_block.tokens for p in layout.placements if p.prefix_block] == ([lines] if lines else [])


@pytest.mark.parametrize("room", [0, 1, 10_000, None])
def test_evicted_lines_are_encoded_again(engine: Engine, room: int | None) -> None:
    session = furnished(engine, replace(reuse(), storage=Ram(room)), 1, 2, budget=40)
    for number in range(5):
        do(session.store, number)
        check(engine, session)


@pytest.mark.parametrize("tokens", [1, 1000])
def test_the_log_is_encoded_in_advance(engine: Engine, session: MemorySession, tokens: int) -> None:
    """The log is encoded in pieces of at least one line."""
    furnish(session.store, 2, 3)
    check(engine, session)
    do(session.store, *range(5))
    session.update()
    lines = sizes(session.store, 5) if tokens == 1 else [sum(sizes(session.store, 5))]
    steps = [session.prepare("put mug_1 in cabinet_2", tokens) for _ in lines]
    assert steps == [(size, sum(lines[number + 1 :])) for number, size in enumerate(lines)]
    assert check(engine, session) == 0


@given(st.lists(st.sampled_from(["do", "finish", "undo", "ask"]), max_size=12))
@settings(max_examples=25)
def test_any_actions_give_the_references_rows(engine: Engine, acts: list[str]) -> None:
    session = furnished(engine, reuse(), 1, 2, budget=6)
    for number, act in enumerate(acts):
        if act == "do":
            do(session.store, number)
        elif act == "finish":
            session.store.put(f"finished_{number}", "task", "finished it\n")
        elif act == "undo" and session.store.log:
            session.store.remove(session.store.log[0])
        else:
            check(engine, session)
    check(engine, session)


def test_a_line_in_the_first_place_is_recomputed(engine: Engine) -> None:
    every = MultiHop(Schedule(average=1.0))
    session = open_session(engine, replace(reuse(), recompute=every, retrieval=Embedding(recent=0)), budget=4)
    do(session.store, *range(6))
    for query in DONE:  # selects different lines, without some of the earlier ones
        prefill = session.prefill(query, QUERY)
        assert close(prefill.logits, plain(engine, prefill))


def test_a_rewritten_line_keeps_its_place(engine: Engine) -> None:
    store = make_store()
    do(store, 1)
    store.put("finished_1", "task", "finished it\n")
    do(store, 2, 3)
    store.put("did_1", "history", "did something else\n")
    store.put("did_2", "history", "did something else\n")
    assert store.log == ["did_2", "did_3"]


@pytest.mark.parametrize("construction", [PerSegment(), Segments(), Prefix(), FixedBlocks(size=7), StaticDynamic()])
@pytest.mark.parametrize("step", [0, 10])
def test_units_are_the_chosen_tokens_in_order(construction: Construction, step: int) -> None:
    store = make_house(step)
    ids = prompt_order([segment.id for segment in store], store)
    units = plan(construction, store)
    assert [t for unit in units for t in unit.token_ids] == [t for id in ids for t in store.tokens(id)]
    spelled: dict[str, list[int]] = {}
    for unit in units:
        for span in unit.spans:
            spelled.setdefault(span.segment, []).extend(unit.token_ids[span.start : span.stop])
    assert spelled == {id: list(store.tokens(id)) for id in ids}


def test_fixed_blocks_cut_through_segments_and_shift() -> None:
    store = make_house()
    before = plan(FixedBlocks(size=8), store)
    assert [len(unit.token_ids) for unit in before[:-1]] == [8] * (len(before) - 1)
    store.put("cabinet_1", "receptacle", "cabinet cabinet_1 very open\n")
    after = FixedBlocks(size=8).plan(list(store), store, 1)
    same_order = FixedBlocks(size=8).plan(list(make_house()), make_house(), 0)
    equal = [a.token_ids == b.token_ids for a, b in zip(same_order, after, strict=False)]
    changed = equal.index(False)
    assert not any(equal[changed:])


def test_static_groups_are_one_unit_and_dynamic_segments_their_own() -> None:
    assert {unit.kind for unit in plan(StaticDynamic(), make_house())} == {"segment"}
    store = make_house(10)
    units = plan(StaticDynamic(), store)
    groups = [tuple(span.segment for span in unit.spans) for unit in units if unit.kind == "static_group"]
    assert sorted(groups) == sorted(tuple(g.members) for g in store.graph.groups.values() if g.static)
    assert [span.segment for unit in units if unit.kind == "segment" for span in unit.spans] == ["agent"]
    store.put("mug_1", "object", "mug mug_1 hand\n")
    store.graph.update(store)
    after = plan(StaticDynamic(), store)
    single = {span.segment for unit in after if unit.kind == "segment" for span in unit.spans}
    assert single == {"agent", *store.graph.group_of["mug_1"].members}
    assert {unit for unit in units if unit.kind == "static_group"} > {u for u in after if u.kind == "static_group"}
