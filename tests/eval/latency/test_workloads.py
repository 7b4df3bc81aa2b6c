"""Workloads: at each step exactly the configured number of segments changes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from eval.latency.cells import FixedLengthFormat
from eval.latency.scripts import Recordings, Script, sample_candidates
from eval.latency.workloads import NO_CANDIDATES, Workload, make_workload
from memory.engine.models.tokenizer import load_tokenizer
from memory.segments.store import SegmentStore
from planners.bundled import BUNDLED
from planners.prompts.formats import PlainFormat
from planners.prompts.styles import PlainStyle
from planners.prompts.text import PROGRESS
from tests.eval.latency.conftest import latency_config


@pytest.fixture(scope="module")
def recordings() -> Recordings:
    return Recordings(latency_config())


def plan(**changes: object) -> Workload:
    return Workload(**{"segments": 12, "store": 12, "churn": 2, "steps": 6, "candidates": None, "age": 11, **changes})


def memories(script: Script) -> list[dict[str, str]]:
    """Return the memory at every step by id, including the action log that a planner writes."""
    store, states = SegmentStore(), []
    for edit in script.static_edits:
        store.put(edit.id, edit.category, edit.text)
    for number, step in enumerate(script.steps):
        if number > PROGRESS:
            history = PlainStyle().history(number - PROGRESS, "skill")
            store.put(history.id, history.category, history.text)
        for edit in step.edits:
            if edit.text is None:
                store.remove(edit.id)
            elif edit.category != "agent":
                store.put(edit.id, edit.category, edit.text)
        states.append({segment.id: segment.text for segment in store})
    return states


@pytest.mark.parametrize(("churn", "size"), [(0, 12), (1, 12), (4, 12), (16, 40), (9, 12), (16, 10)])
def test_churn_segments_change_and_the_memory_keeps_its_size(churn: int, size: int, recordings: Recordings) -> None:
    (script,) = make_workload(plan(churn=churn, store=size, steps=PROGRESS + 4), recordings)
    states = memories(script)
    assert {len(memory) for memory in states} == {size}
    for before, after in pairwise(states):
        changed = {id for id in after if after[id] != before[id]}
        assert len(changed) == min(churn, size)
        if churn <= size // 2:
            assert not any(id.startswith("old_task") for id in changed), "finished tasks are static"
        else:
            assert sum(not id.startswith("old_task") for id in changed) == size // 2, "objects change first"


def test_half_of_a_synthetic_memory_is_old_and_all_lines_differ(recordings: Recordings) -> None:
    (script,) = make_workload(plan(store=1000), recordings)
    assert len(script.static_edits) == 500 and script.age == 11
    assert len(set(memories(script)[0].values())) == 1000


def test_a_seed_determines_the_workload(recordings: Recordings) -> None:
    assert make_workload(plan(), recordings) == make_workload(plan(), recordings)
    assert make_workload(plan(), recordings) != make_workload(plan(seed=1), recordings)


def test_a_replay_repeats_the_facts_of_the_world(recordings: Recordings) -> None:
    real = recordings[0]
    first, *rest = make_workload(plan(churn="alfred", store=60, steps=len(real.steps) + 3), recordings)
    assert [step.edits for step in first.steps] == [step.edits for step in real.steps]
    assert first.steps[-1].finished is not None and first.steps[-1].finished.success
    assert [len(script.steps) for script in rest] == [3] and rest[0].instruction == recordings[1].instruction


def test_a_replay_is_filled_with_finished_tasks(recordings: Recordings) -> None:
    (script,) = make_workload(plan(churn="alfred", store=60, steps=2), recordings)
    assert len(memories(script)[0]) == 60 and script.static_edits
    (script,) = make_workload(plan(churn="alfred", store=4, steps=2), recordings)
    assert not script.static_edits and len(memories(script)[0]) > 4


def test_candidates_are_spread_and_include_the_executed_skill() -> None:
    skills = [f"find a {number}" for number in range(100)]
    candidates = sample_candidates(skills, "find a 33", 10)
    assert len(set(candidates)) == 10 and "find a 33" in candidates and "find a 0" in candidates
    assert max(int(skill.split()[-1]) for skill in candidates) > 80
    assert sample_candidates(skills, "find a 33", None) == tuple(skills) == sample_candidates(skills, "find a 33", 200)


def test_without_candidates_nothing_is_scored(recordings: Recordings) -> None:
    (script,) = make_workload(plan(candidates=0), recordings)
    assert {step.admissible for step in script.steps} == {NO_CANDIDATES}
    plain = PlainFormat(load_tokenizer(str(BUNDLED)))
    assert len(plain.candidate(NO_CANDIDATES[0])) == 1, "the prompt's logits score it"


@pytest.mark.parametrize("tokens", [8, 40])
def test_every_segment_has_a_fixed_number_of_its_own_tokens(tokens: int) -> None:
    plain = PlainFormat(load_tokenizer(str(BUNDLED)))
    fixed_length = FixedLengthFormat(plain, tokens)
    newline = plain.line("\n")
    for text in ("mug mug_1 cabinet_3 clean\n", "finished put a mug in the sink and then turn on the tap succeeded\n"):
        ids, words = fixed_length.line(text), plain.line(text)[:-1]
        assert len(ids) == tokens and ids[-1:] == newline and newline[0] not in ids[:-1]
        common = min(len(words), tokens - 1)
        assert ids[:common] == words[-common:] and set(ids[:-1]) <= set(words)
    assert fixed_length.line("\n") == newline and fixed_length.candidate("find a mug") == plain.candidate("find a mug")
