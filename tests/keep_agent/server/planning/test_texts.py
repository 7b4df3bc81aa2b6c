"""Texts with characters that some programs take for the end of a line, from a client through the server and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.agent.client import Client, ServerError, lines
from tests.keep_agent.server.planning.shared import SKILLS

SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"
JOINED = "pick up note\u00adbook\u00a01, \u0645\u06cc\u200c\u0631\u0648\u0645"


def test_a_streamed_plan_survives_every_separator(serve: Callable[..., Any]) -> None:
    instruction, failure = f"put a mug{SEPARATORS}in the fridge", f"the{SEPARATORS}door is locked"
    with serve() as served, Client(served.url, patience=0) as client:
        agent = client.agent("kitchen")
        agent.observe([Fact("\u0645\u06cc\u200c\u0631\u0648\u0645", "object", "note\u00adbook", "cabinet_1")])
        ready: list[Any] = []
        decision = agent.plan(instruction, [JOINED], ready.append, trace="full")
        assert (decision.skill, decision.scores[0][0], len(ready)) == (JOINED, JOINED, 1)
        agent.report(Outcome(False, failure))
        told = agent.plan(instruction, [JOINED, *SKILLS], ready.append, trace="full").trace
        assert told["instruction"] == instruction
        assert agent.about().decisions == 2


@pytest.mark.parametrize("letter", ["\u2028", "\u2029", "\x85", "\n", "\x00"])
def test_a_separator_in_a_skill_or_a_fact_is_refused_with_a_sentence(serve: Callable[..., Any], letter: str) -> None:
    with serve() as served, Client(served.url, patience=0) as client:
        agent = client.agent("kitchen")
        for call in (
            lambda: agent.plan("get the mug", [f"go{letter}home"], lambda cost: None),
            lambda: agent.observe([Fact(f"mug{letter}1", "object", "mug")]),
        ):
            with pytest.raises(ServerError) as error:
                call()
            assert error.value.status == 400


def test_lines_end_at_newlines_wherever_the_parts_are_cut() -> None:
    content = f"event: ready\ndata: {SEPARATORS}é\n\nevent: decision".encode()
    for size in range(1, len(content) + 1):
        parts = [content[start : start + size] for start in range(0, len(content), size)]
        assert list(lines(parts)) == ["event: ready", f"data: {SEPARATORS}é", "", "event: decision"]
