"""Transcripts: segments are sent once, reused exactly, and the transcript restarts when it is full."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from keep_agent.errors import CapacityError
from memory.engine.base import Engine
from tests.memory.houses import encode_text, furnish
from tests.memory.sessions import (
    APPENDING,
    CONTEXT,
    QUERY,
    close,
    furnished,
    live,
    open_session,
    plain,
    prefix,
    segments,
)


def test_a_transcript_is_sent_once_and_reused_exactly(engine: Engine) -> None:
    session = open_session(engine, replace(prefix(), layout="append"))
    rng = random.Random(1)
    furnish(session.store, cabinets=2, objects=4)
    transcript = list(CONTEXT)
    rates = []
    for turn in range(6):
        prefill = session.prefill("mug_1", QUERY)
        ids = prefill.layout.token_ids.tolist()
        assert ids[: len(transcript)] == transcript and ids[-len(QUERY) :] == QUERY
        assert close(prefill.logits, plain(engine, prefill)) and prefill.counts.invalidated_tokens == 0
        rates.append(prefill.counts.kv_hit_rate)
        session.append_turn([7, 8 + turn])
        transcript = [*ids, 7, 8 + turn]
        live(session, rng)
    assert rates[0] == 0 and min(rates[2:]) > 0.7
    session.reset()
    session.store.put("mug_1", "object", "mug mug_1 hand\n")
    assert session.prefill("q", QUERY).layout.rows == len(CONTEXT) + 4 + len(QUERY)


def test_a_full_transcript_restarts_with_the_whole_query(engine: Engine) -> None:
    session = furnished(engine, replace(prefix(), layout="append"), cabinets=2, mugs=4)
    short, whole, rows, ends = [13] * 8, [*QUERY, 11, 12], [], []
    for _ in range(50):
        prefill = session.prefill("q", short, lambda: whole)
        rows.append(prefill.layout.rows)
        ends.append(prefill.layout.token_ids.tolist()[prefill.layout.query :])
        session.append_turn([7])
    assert max(rows) <= 500 - 256 and rows[0] - len(short) + len(whole) in rows, "it begins again"
    assert close(prefill.logits, plain(engine, prefill)) and ends[0] == short and 1 <= ends.count(whole) <= 3
    assert ends.count(short) + ends.count(whole) == len(ends)


def test_actions_are_sent_as_segments_only_after_a_restart(engine: Engine) -> None:
    session = furnished(engine, replace(prefix(), layout="append"), cabinets=2, mugs=2)
    rows, transcript = [], []
    while len(rows) < 2 or rows[-1] > rows[-2]:
        prefill = session.prefill("q", QUERY)
        rows.append(prefill.layout.rows)
        transcript.append([name for name in segments(prefill) if name.startswith("did")])
        session.append_turn([7])
        session.advance()
        session.store.put(f"did_{len(rows)}", "history", "did it\n")
    assert not any(transcript[:-1])
    assert transcript[-1], "the turns with the actions are cut"


def test_new_segments_begin_on_a_new_line(engine: Engine) -> None:
    session = furnished(engine, replace(prefix(), layout="append"), cabinets=1, mugs=1)
    before = session.prefill("q", QUERY).layout.token_ids.tolist()
    session.append_turn([7])
    assert session.prefill("q", QUERY).layout.token_ids.tolist() == [*before, 7, *QUERY]
    session.append_turn([7])
    news = "agent at cabinet_1 holding nothing\n"
    session.store.put("agent", "agent", news)
    after = session.prefill("q", QUERY).layout.token_ids.tolist()
    assert after == [*before, 7, *QUERY, 7, *encode_text("\n"), *encode_text(news), *QUERY]


@pytest.mark.parametrize("method", [*APPENDING, lambda: replace(prefix(), layout="append")])
@pytest.mark.parametrize("persist", [True, False])
def test_a_refused_turn_leaves_the_transcript_unchanged(engine: Engine, method: object, persist: bool) -> None:
    session, twin = (open_session(engine, method()) for _ in range(2))
    for s in (session, twin):
        furnish(s.store, 8)
        s.prefill("where is mug_1", QUERY)
        s.append_turn([7])
    with pytest.raises(CapacityError, match="the model's 500 positions"):
        session.prefill("where is mug_1", [7] * 5000, persist=persist)
    again, expected = (s.prefill("where is mug_2", QUERY) for s in (session, twin))
    assert torch.equal(again.layout.token_ids, expected.layout.token_ids)
    assert again.counts == expected.counts and again.counts.hit_tokens > 0
