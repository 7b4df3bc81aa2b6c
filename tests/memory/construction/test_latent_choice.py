"""Latent selection among units that were encoded separately: selection, order and cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from memory.construction.fixed_blocks import FixedBlocks
from memory.construction.latent_choice import UnitChoice
from memory.construction.per_segment import PerSegment
from memory.construction.static_dynamic import StaticDynamic
from memory.engine.base import Engine
from memory.method import MemoryMethod
from memory.prompt.report import StepTimer
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from memory.retrieval.all import All
from memory.retrieval.latent import Latent
from memory.session import MemorySession
from memory.stages import Retrieval
from tests.memory import sessions
from tests.memory.houses import encode_text
from tests.memory.sessions import check_present, edit, episode, furnished, open_session, reuse


def method(retrieval: Retrieval, **stages: Any) -> MemoryMethod:
    return replace(reuse(), retrieval=retrieval, **stages)


@pytest.mark.parametrize("construction", [PerSegment(), FixedBlocks(size=5), StaticDynamic()])
@pytest.mark.parametrize("recompute", [Nothing(), MultiHop(Schedule("linear", 0.4))])
def test_a_latent_choice_among_isolated_units(engine: Engine, construction: Any, recompute: Any) -> None:
    """Selected units stay in prompt order; selecting all equals no selection."""
    parts = {"construction": construction, "recompute": recompute}
    few, many = (open_session(engine, method(Latent(top_k=k), **parts)) for k in (4, 400))
    everything = open_session(engine, method(All(), **parts))
    picked = set()
    for a, b, c in zip(*(episode(session, 6) for session in (few, many, everything)), strict=True):
        assert torch.equal(b.logits, c.logits)  # although one encodes new units within the prefill, the other before it
        assert replace(b.counts, loaded_bytes=0) == replace(c.counts, loaded_bytes=0)
        order = [unit.identity for unit in c.units]
        names = [unit.identity for unit in a.units]
        assert names == [name for name in order if name in set(names)] and len(set(names)) == 4
        assert a.counts.encoded_token_layers - c.counts.encoded_token_layers == len(sessions.QUERY) * sessions.LAYERS
        assert a.counts.invalidated_tokens == c.counts.invalidated_tokens
        picked.update(names)
    assert len(picked) > 4


def test_text_in_front_takes_part_in_the_selection(engine: Engine) -> None:
    """All new rows are queries, as if the text in front began the query."""
    front, choices, scored = encode_text("cabinet cabinet_3 closed\n"), [], []
    for front_ids, query in ((front, sessions.QUERY), ((), [*front, *sessions.QUERY]), ((), sessions.QUERY)):
        session = furnished(engine, method(Latent(top_k=4)))
        session.prefill("q", sessions.QUERY)
        prefill = session.prefill("q", query, front_ids=front_ids)
        choices.append([unit.identity for unit in prefill.units if unit.identity])
        scored.append(prefill.counts.encoded_token_layers)
    assert choices[0] == choices[1] != choices[2]
    assert scored[0] == scored[1] == (len(front) + len(sessions.QUERY)) * sessions.LAYERS


def add_repeated_lines(session: MemorySession, lines: int = 60, texts: int = 3, objects: int = 20) -> list[str]:
    """Add ``objects``, then history ``lines`` of few ``texts``; return the ids of the lines."""
    for i in range(objects):
        session.store.put(f"mug_{i}", "object", f"mug mug_{i} on the table\n")
    ids = [f"did_{i}" for i in range(lines)]
    for i, id in enumerate(ids):
        session.advance()
        session.store.put(id, "history", f"did go to cabinet_{i % texts}\n")
    return ids


@pytest.mark.parametrize("unit", ["blocks", "tokens"])
@pytest.mark.parametrize("top_k", [1, 5, 60])
def test_units_with_equal_text_share_a_block_but_are_selected_separately(engine: Engine, unit: str, top_k: int) -> None:
    """The selection fits into ``top_k`` and contains the latest of equal lines."""
    choice = Latent(top_k=top_k, unit=unit)
    session = open_session(engine, method(choice, construction=PerSegment(log=0)))
    lines = add_repeated_lines(session)
    prefill = session.prefill("go to cabinet_1", encode_text("did go to cabinet_1\n"))
    room = top_k - (len(prefill.units) if unit == "blocks" else prefill.counts.memory_tokens)
    assert 0 <= room < (1 if unit == "blocks" else 7), "a line has 5 tokens, an object 6"
    selected_segments = {id for use in prefill.units for id in use.segments}
    for text in range(3):
        of_text = [id in selected_segments for id in lines[text::3]]
        assert of_text == sorted(of_text)


def test_a_choice_of_all_counts_every_unit(engine: Engine) -> None:
    for top_k, left_out in ((12, 0), (11, 1)):
        session = open_session(engine, method(Latent(top_k=top_k)))
        add_repeated_lines(session, lines=10, texts=2, objects=2)
        prefill = session.prefill("q", sessions.QUERY)
        assert len(prefill.units) == 12 - left_out
        assert (prefill.timings.ask == 0) == (not left_out), "nothing is scored if all units fit"


def test_the_selected_units_are_those_of_the_boxes(engine: Engine) -> None:
    """Compare with one matrix of all keys: a block of one token is its own box."""
    every = open_session(engine, method(All(), construction=FixedBlocks(size=1)))
    everything = next(episode(every, 1))
    session = open_session(engine, method(Latent(top_k=6, layers=[2]), construction=FixedBlocks(size=1)))
    prefill = next(episode(session, 1))
    (query,) = engine.query_states(engine.encode([(None, sessions.CONTEXT)])[0], sessions.QUERY, [2])
    blocks = {unit.identity: every.method.storage.get(unit.identity) for unit in everything.units}
    keys = torch.cat([block.k[2] for block in blocks.values()], 1).repeat_interleave(2, 0)
    ranking = (query @ keys.mT).softmax(-1).sum(0).amax(0).argsort(descending=True).tolist()
    names = [unit.identity for unit in everything.units]
    best = [n for number in ranking for n in reversed(range(len(names))) if names[n] == list(blocks)[number]]
    assert [unit.identity for unit in prefill.units] == [names[n] for n in sorted(best[:6])]


@given(steps=sessions.EDITS)
@settings(max_examples=8)
def test_a_stale_version_is_never_selected(engine: Engine, steps: list) -> None:
    """Law 10: boxes are deleted with their blocks."""
    session = furnished(engine, method(Latent(top_k=4)), cabinets=2, mugs=6)
    for edits in steps:
        edit(session, edits)
        prefill = session.prefill("mug_1", sessions.QUERY)
        check_present(session, prefill)
        session.advance()


def test_boxes_of_deleted_blocks_are_deleted(engine: Engine) -> None:
    choice = UnitChoice(engine, Latent(top_k=1))
    blocks = engine.encode([(None, [5, 6]), (None, [7, 8, 9])], ["a", "b"])
    for front_ids in (blocks, blocks[1:], blocks[:1], blocks[::-1]):
        names = [block.identity for block in front_ids]
        numbers, _ = choice.choose(names, dict(zip(names, front_ids, strict=True)), None, [5], StepTimer())
        assert len(numbers) == 1 and numbers[0] < len(front_ids) and len(choice._choice.index) == len(front_ids)
