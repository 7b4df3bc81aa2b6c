"""Packs contain exactly the prompts that the planner sees at run time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer

from planners.prompts.preamble import preamble
from planners.prompts.text import FOCUS, PROGRESS
from planners.tiny.tokenizer import BOS, PAD
from planners.training.packed_attention import MASKED_BIAS, collate
from planners.training.packing import (
    IGNORE,
    PREAMBLE,
    PREAMBLE_LINES,
    PackedExample,
    Packer,
    PromptForm,
    Slot,
    SlotMix,
    _pick_count,
)
from planners.training.rollout_files import Rollout

Make = Callable[..., Rollout]
GOAL = "find mug put diningtable"


def packs_of(tokenizer: Tokenizer, rollout: Rollout, style: str, **mix: int) -> list[PackedExample]:
    return list(Packer(lambda text: tokenizer.encode(text).ids, SlotMix(**mix)).packs(rollout, style))


def read(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=False)


def targets(slot: Slot) -> tuple[int, ...]:
    return tuple(token for token in slot.labels if token != IGNORE)


def test_a_step_slot_repeats_what_changed_and_hides_the_old_line(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = make_rollout(1)
    (pack,) = packs_of(tokenizer, rollout, "plain", trajectories=0, steps=99, probes=0)
    memory = {name for name, _ in pack.memory}
    assert "agent" not in memory
    (last,) = (slot for slot in pack.slots if read(tokenizer, targets(slot)).split()[-1] == "done")
    text = read(tokenizer, last.ids)
    mug = next(name for name in last.hidden_lines if name.startswith("mug"))
    assert last.hidden_lines <= memory and f"mug {mug} diningtable_1" in text
    assert "agent at diningtable_1 holding nothing" in text


def test_a_repeated_pick_label_after_a_wrong_turn_counts_once(make_rollout: Make) -> None:
    task = make_rollout(1).tasks[0]
    (pick,) = (step for step in task.steps if step.label.startswith("pick") and step.skill == step.label)
    wrong = replace(pick, skill="go to cabinet 1")
    assert _pick_count(replace(task, steps=(wrong, wrong, *task.steps))) == 1


def test_labels_are_the_experts_choice_where_a_rollout_was_perturbed(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = make_rollout(1)
    wrong = next(step for step in rollout.tasks[0].steps if step.skill != step.label)
    label = wrong.label.replace("mug ", "mug_")
    (pack,) = packs_of(tokenizer, rollout, "linked", trajectories=1, steps=99, probes=0)
    steps = [slot for slot in pack.slots if slot.kind == "step"]
    assert any(read(tokenizer, targets(slot)).strip().endswith(f" {label}") for slot in steps)
    (trajectory,) = (slot for slot in pack.slots if slot.kind == "trajectory")
    assert "open diningtable_1" not in read(tokenizer, targets(trajectory))
    assert "failed diningtable_1 cannot be opened" in read(tokenizer, trajectory.ids)


def test_probes_ask_about_the_memory(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = make_rollout(2)
    place = {fact.id: fact.place for fact in rollout.tasks[0].facts}
    (pack,) = packs_of(tokenizer, rollout, "plain", trajectories=0, steps=0, probes=1, questions=20)
    lines = read(tokenizer, pack.slots[0].ids).split("\n")
    needles = [line.split() for line in lines if line.strip().startswith("where")]
    assert needles and all(place[name] == answer for _, name, answer in needles)


def test_sampling_keeps_the_lines_that_the_task_touches(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = make_rollout(3, receptacles=20, objects=20)
    (pack,) = packs_of(tokenizer, rollout, "plain", memory_lines=6, trajectories=0, steps=1, probes=0)
    memory = {name for name, _ in pack.memory}
    mug = rollout.tasks[0].steps[3].facts[0].id
    assert len(memory) <= 6 and {mug, "diningtable_1"} <= memory


def test_slots_see_the_memory_but_not_each_other(tokenizer: Tokenizer, make_rollout: Make) -> None:
    (pack,) = packs_of(tokenizer, make_rollout(1), "plain", trajectories=0, steps=99, probes=0)
    batch = collate([pack], tokenizer.token_to_id(BOS), tokenizer.token_to_id(PAD))
    memory = 1 + pack.memory_tokens
    assert batch.ids[0, 0] == tokenizer.token_to_id(BOS)
    assert torch.equal(batch.positions[0, :memory], torch.arange(memory))
    width = (batch.ids.shape[1] - batch.memory) // batch.slots
    for number, slot in enumerate(pack.slots):
        assert batch.positions[0, batch.memory + number * width] == memory
        start = 1
        for name, ids in pack.memory:
            hidden = batch.slot_bias[number, 0, 0, start : start + len(ids)] <= MASKED_BIAS / 2
            assert hidden.all() if name in slot.hidden_lines else not hidden.any()
            start += len(ids)
        assert torch.equal(batch.slot_bias[number, 0, :, batch.memory :] == 0, torch.ones(width, width).tril() == 1)


@pytest.mark.parametrize("style", ["plain", "linked", "natural"])
def test_a_memory_begins_with_the_preamble_of_its_style(tokenizer: Tokenizer, make_rollout: Make, style: str) -> None:
    rollout, mix = make_rollout(1), SlotMix(trajectories=0, steps=2, probes=0)
    encode = lambda text: tokenizer.encode(text).ids  # noqa: E731
    forms = [PromptForm(preamble_share=share) for share in (0, 1)]
    plain, long = (next(Packer(encode, mix, form=form).packs(rollout, style)) for form in forms)
    first, *rest = long.memory
    assert first == (PREAMBLE, tuple(encode(preamble(style, PREAMBLE_LINES)))) and (*rest,) == plain.memory


@pytest.mark.parametrize("share", [0, 1])
def test_separate_lines_see_themselves_the_first_token_and_the_preamble(
    tokenizer: Tokenizer, make_rollout: Make, share: int
) -> None:
    mix, form = SlotMix(trajectories=0, steps=2), PromptForm(preamble_share=share)
    packer = Packer(lambda text: tokenizer.encode(text).ids, mix, form=form)
    (pack,) = packer.packs(make_rollout(1), "plain")
    batch = collate([pack], tokenizer.token_to_id(BOS), tokenizer.token_to_id(PAD), separate=True)
    visible = batch.memory_bias[0, 0] == 0
    start = shared = 1
    for name, ids in pack.memory:
        stop = start + len(ids)
        shared = stop if name == PREAMBLE else shared
        assert visible[start:stop, : min(start, shared)].all() and not visible[start:stop, shared:start].any()
        assert torch.equal(visible[start:stop, start:stop], torch.ones(len(ids), len(ids)).tril() == 1)
        start = stop
    assert collate([pack], 0, 0).memory_bias is None


def test_plans_have_no_memory_and_every_right_skill_is_a_target(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = replace(make_rollout(1), skills="lota")
    (pack,) = packs_of(tokenizer, rollout, "plain", wordings=3, plan=True)
    assert pack.memory == () and len(pack.slots) == 1
    lines = [line.strip() for line in read(tokenizer, targets(pack.slots[0])).split("\n")]
    expected = [GOAL, *(step.skill for step in rollout.tasks[0].steps if step.skill == step.label)]
    assert len([line for line in lines if line]) == len(expected)
    assert "agent at" not in read(tokenizer, pack.slots[0].ids)


def test_goals_in_the_house_follow_its_memory(tokenizer: Tokenizer, make_rollout: Make) -> None:
    for skills in ("lota", "grounded"):
        rollout = replace(make_rollout(1), skills=skills)
        (pack,) = packs_of(tokenizer, rollout, "plain", wordings=3, after_memory=True)
        memory = "".join(read(tokenizer, ids) for _, ids in pack.memory)
        assert [slot.kind for slot in pack.slots] == ["goal"] and "mug_" in memory and not pack.slots[0].hidden_lines


def test_goals_are_targets_and_part_of_later_queries(tokenizer: Tokenizer, make_rollout: Make) -> None:
    for skills in ("lota", "grounded"):
        (pack,) = packs_of(tokenizer, replace(make_rollout(1), skills=skills), "plain", wordings=3)
        assert pack.memory == () and read(tokenizer, targets(pack.slots[0])).strip() == GOAL
    (pack,) = packs_of(tokenizer, make_rollout(1), "plain", trajectories=1, steps=99, probes=0)
    *steps, trajectory = sorted(pack.slots, key=lambda slot: slot.kind)
    for slot in steps:
        line = next(line for line in read(tokenizer, slot.ids).split("\n") if line.strip().startswith("task"))
        assert line.strip().endswith(f"goal {GOAL}") and GOAL not in read(tokenizer, targets(slot))
    assert read(tokenizer, targets(trajectory)).split("\n")[0].strip() == GOAL


def test_the_focus_names_the_target_of_a_step_as_far_as_it_is_known(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = make_rollout(1)
    task = rollout.tasks[0]
    mug = next(fact for fact in task.facts if fact.type == "mug" and fact.id in task.steps[3].skill.replace(" ", "_"))

    def foci(rollout: Rollout) -> list[str]:
        (pack,) = packs_of(tokenizer, rollout, "plain", trajectories=1, steps=0, probes=0)
        words = [line.split() for line in read(tokenizer, targets(pack.slots[0])).split("\n")]
        return list(dict.fromkeys(" ".join(line[:FOCUS]) for line in words[1:] if line))

    table = "diningtable diningtable_1 diningtable_1"
    assert foci(rollout) == [f"mug {mug.id} {mug.place}", table, "nothing nothing nothing"]
    later = tuple(fact for fact in task.facts if fact is not mug)
    first, *rest = task.steps
    reveal = replace(first, facts=(*first.facts, mug))
    partial = replace(rollout, tasks=(replace(task, facts=later, steps=(reveal, *rest)),))
    assert foci(partial)[:2] == [f"mug unseen {mug.place}", f"mug {mug.id} {mug.place}"]
    again = replace(task, facts=(), steps=task.steps)  # facts of an earlier task stay known
    (_, pack) = packs_of(tokenizer, replace(rollout, tasks=(task, again)), "plain", trajectories=1, steps=0, probes=0)
    assert "unseen" not in read(tokenizer, targets(pack.slots[0]))


def test_type_level_skills_have_no_focus(tokenizer: Tokenizer, make_rollout: Make) -> None:
    (pack,) = packs_of(tokenizer, replace(make_rollout(1), skills="lota"), "plain", trajectories=0, steps=99, probes=0)
    (last,) = (slot for slot in pack.slots if "done" in read(tokenizer, targets(slot)))
    assert read(tokenizer, targets(last)).split() == ["done"]


def test_a_member_line_is_never_without_its_header(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = make_rollout(4, receptacles=12, objects=20)
    header_of = {fact.id: fact.place for fact in rollout.tasks[0].facts if fact.category == "object"}
    for lines in range(6, 30, 3):
        (pack,) = packs_of(tokenizer, rollout, "linked", memory_lines=lines, trajectories=0, steps=1, probes=0)
        header = ""
        for name, ids in pack.memory:
            if read(tokenizer, ids).startswith("there"):
                assert header == header_of[name]
            else:
                header = name


def test_probes_about_moved_things_ask_for_the_latest_place(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = make_rollout(1)
    mug = rollout.tasks[0].steps[3].facts[0].id
    places = set()
    for seed in range(12):
        packer = Packer(lambda text: tokenizer.encode(text).ids, SlotMix(80, 0, 0, 8, 20), seed)
        (pack,) = packer.packs(rollout, "linked")
        for slot in pack.slots:
            text = read(tokenizer, slot.ids)
            if f"now mug {mug}" not in text:
                continue
            latest = [line.split()[3] for line in text.split("\n") if f"now mug {mug}" in line][-1]
            places |= {latest}
            assert f"where {mug} {latest}" in text.replace("\n ", "\n")
    assert places == {"hand", "diningtable_1"}


def test_packs_of_long_tasks_have_history_lines_in_the_tail(tokenizer: Tokenizer, make_rollout: Make) -> None:
    """The first turns of a step with more turns than a query shows are history lines in the slot's own tail."""
    rollout = make_rollout(1)
    task = rollout.tasks[0]
    walk = [replace(task.steps[0], facts=())] * (PROGRESS + 2)
    long = replace(rollout, tasks=(replace(task, steps=(*walk, task.steps[-1])),))
    (pack,) = packs_of(tokenizer, long, "plain", trajectories=0, steps=99, probes=0)
    last = max(text.replace("\n ", "\n") for slot in pack.slots if "did" in (text := read(tokenizer, slot.ids)))
    skill = task.steps[0].skill.replace("cabinet ", "cabinet_")
    lines = [line.strip() for line in last.split("\n")]
    assert lines.count(f"next {skill}") >= PROGRESS and 1 <= sum(line.startswith("did") for line in lines) <= 2
