"""Transcripts: told once, reused exactly, begun anew when they are full."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from keep_agent.errors import CapacityError
from memory.engine.base import Engine
from tests.memory.houses import encode_text, furnish
from tests.memory.sessions import APPENDING, CONTEXT, QUERY, close, live, open_session, plain, prefix, segments


def test_transcript_is_told_once_and_reused_exactly(engine: Engine) -> None:
    session = open_session(engine, replace(prefix(), layout="append"))
    rng = random.Random(1)
    furnish(session.store, cabinets=2, objects=4)
    told = list(CONTEXT)
    rates = []
    for turn in range(6):
        prefill = session.prefill("mug_1", QUERY)
        ids = prefill.layout.token_ids.tolist()
        assert ids[: len(told)] == told
        assert ids[-len(QUERY) :] == QUERY
        assert close(prefill.logits, plain(engine, prefill))
        assert prefill.counts.invalidated_tokens == 0
        rates.append(prefill.counts.kv_hit_rate)
        session.append_turn([7, 8 + turn])
        told = [*ids, 7, 8 + turn]
        live(session, rng)
    assert rates[0] == 0
    assert min(rates[2:]) > 0.7
    session.reset()
    session.store.put("mug_1", "object", "mug mug_1 hand\n")
    assert session.prefill("q", QUERY).layout.rows == len(CONTEXT) + 4 + len(QUERY)


def test_transcript_begins_anew_when_it_is_full(engine: Engine) -> None:
    session = open_session(engine, replace(prefix(), layout="append"))
    furnish(session.store, cabinets=2, objects=4)
    rows = []
    for _ in range(50):
        prefill = session.prefill("q", QUERY)
        rows.append(prefill.layout.rows)
        session.append_turn([7])
    assert max(rows) <= 500 - 256
    assert rows.count(rows[0]) > 1
    assert close(prefill.logits, plain(engine, prefill))


def test_a_transcript_that_begins_anew_says_again_what_its_turns_said(engine: Engine) -> None:
    session = open_session(engine, replace(prefix(), layout="append"))
    furnish(session.store, cabinets=2, objects=4)
    short, whole = [13] * 8, [*QUERY, 11, 12]
    ends = []
    for _ in range(50):
        prefill = session.prefill("q", short, lambda: whole)
        ends.append(prefill.layout.token_ids.tolist()[prefill.layout.query :])
        session.append_turn([7])
    assert {tuple(end) for end in ends} == {tuple(short), tuple(whole)}
    assert ends[0] == short and 1 <= ends.count(whole) <= 3


def test_an_executed_skill_is_told_by_its_turn_as_long_as_that_is_there(engine: Engine) -> None:
    session = open_session(engine, replace(prefix(), layout="append"))
    furnish(session.store, cabinets=2, objects=2)
    rows, told = [], []
    while len(rows) < 2 or rows[-1] > rows[-2]:
        prefill = session.prefill("q", QUERY)
        rows.append(prefill.layout.rows)
        told.append([name for name in segments(prefill) if name.startswith("did")])
        session.append_turn([7])
        session.advance()
        session.store.put(f"did_{len(rows)}", "history", "did it\n")
    assert not any(told[:-1])
    assert told[-1], "the turns are gone, so memory speaks for them"


def test_news_begin_on_a_new_line(engine: Engine) -> None:
    session = open_session(engine, replace(prefix(), layout="append"))
    furnish(session.store, cabinets=1, objects=1)
    before = session.prefill("q", QUERY).layout.token_ids.tolist()
    session.append_turn([7])
    assert session.prefill("q", QUERY).layout.token_ids.tolist() == [*before, 7, *QUERY]
    session.append_turn([7])
    moved = "agent at cabinet_1 holding nothing\n"
    session.store.put("agent", "agent", moved)
    after = session.prefill("q", QUERY).layout.token_ids.tolist()
    assert after == [*before, 7, *QUERY, 7, *encode_text("\n"), *encode_text(moved), *QUERY]


@pytest.mark.parametrize("method", [*APPENDING, lambda: replace(prefix(), layout="append")])
@pytest.mark.parametrize("lasting", [True, False])
def test_a_turn_that_is_refused_leaves_the_transcript(engine: Engine, method: object, lasting: bool) -> None:
    session, other = (open_session(engine, method()) for _ in range(2))
    for one in (session, other):
        furnish(one.store, 8)
        one.prefill("where is mug_1", QUERY)
        one.append_turn([7])
    with pytest.raises(CapacityError, match="the model's 500 positions"):
        session.prefill("where is mug_1", [7] * 5000, lasting=lasting)
    again, expected = (one.prefill("where is mug_2", QUERY) for one in (session, other))
    assert torch.equal(again.layout.token_ids, expected.layout.token_ids)
    assert again.counts == expected.counts and again.counts.hit_tokens > 0
