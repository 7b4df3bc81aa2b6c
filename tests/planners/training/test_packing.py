"""Packs must say exactly what the planner will see at run time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer

from planners.prompts.text import FOCUS, PROGRESS
from planners.tiny.tokenizer import BOS, PAD, train_tokenizer
from planners.training.packed_attention import HIDE, collate
from planners.training.packing import IGNORE, Mix, Pack, Packer, Slot, _picked
from planners.training.rollout_files import Rollout
from planners.training.trainer import rollout_texts

Make = Callable[..., Rollout]
GOAL = "find mug put diningtable"


@pytest.fixture
def tokenizer(make_rollout: Make) -> Tokenizer:
    texts = [text for seed in range(5) for text in rollout_texts(make_rollout(seed))]
    names = {word for text in texts for word in text.split() if "_" in word}
    return train_tokenizer([*texts, *["where state door now there hand did\n"] * 3], names, 600)


def packs_of(tokenizer: Tokenizer, rollout: Rollout, style: str, **mix: int) -> list[Pack]:
    return list(Packer(lambda text: tokenizer.encode(text).ids, Mix(**mix)).packs(rollout, style))


def read(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=False)


def supervised(slot: Slot) -> tuple[int, ...]:
    return tuple(token for token in slot.labels if token != IGNORE)


def test_a_step_slot_repeats_what_changed_and_hides_the_old_line(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = make_rollout(1)
    (pack,) = packs_of(tokenizer, rollout, "plain", trajectories=0, steps=99, probes=0)
    shown = {name for name, _ in pack.memory}
    assert "agent" not in shown
    (last,) = (slot for slot in pack.slots if read(tokenizer, supervised(slot)).split()[-1] == "done")
    text = read(tokenizer, last.ids)
    mug = next(name for name in last.hidden if name.startswith("mug"))
    assert last.hidden <= shown
    assert f"mug {mug} diningtable_1" in text
    assert "agent at diningtable_1 holding nothing" in text


def test_what_was_to_be_picked_up_again_behind_a_wrong_turn_was_picked_up_once(make_rollout: Make) -> None:
    task = make_rollout(1).tasks[0]
    (pick,) = (step for step in task.steps if step.label.startswith("pick") and step.skill == step.label)
    wrong = replace(pick, skill="go to cabinet 1")
    assert _picked(replace(task, steps=(wrong, wrong, *task.steps))) == 1


def test_labels_are_the_experts_choice_also_where_the_rollout_was_perturbed(
    tokenizer: Tokenizer, make_rollout: Make
) -> None:
    rollout = make_rollout(1)
    wrong = next(step for step in rollout.tasks[0].steps if step.skill != step.label)
    label = wrong.label.replace("mug ", "mug_")
    (pack,) = packs_of(tokenizer, rollout, "linked", trajectories=1, steps=99, probes=0)
    steps = [slot for slot in pack.slots if slot.kind == "step"]
    assert any(read(tokenizer, supervised(slot)).strip().endswith(f" {label}") for slot in steps)
    (trajectory,) = (slot for slot in pack.slots if slot.kind == "trajectory")
    assert "open diningtable_1" not in read(tokenizer, supervised(trajectory))
    assert "failed diningtable_1 cannot be opened" in read(tokenizer, trajectory.ids)


def test_probes_ask_what_the_memory_says(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = make_rollout(2)
    place = {fact.id: fact.place for fact in rollout.tasks[0].facts}
    (pack,) = packs_of(tokenizer, rollout, "plain", trajectories=0, steps=0, probes=1, questions=20)
    lines = read(tokenizer, pack.slots[0].ids).split("\n")
    needles = [line.split() for line in lines if line.strip().startswith("where")]
    assert needles and all(place[name] == answer for _, name, answer in needles)


def test_lines_the_task_touches_survive_sampling(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = make_rollout(3, receptacles=20, objects=20)
    (pack,) = packs_of(tokenizer, rollout, "plain", memory_lines=6, trajectories=0, steps=1, probes=0)
    shown = {name for name, _ in pack.memory}
    mug = rollout.tasks[0].steps[3].facts[0].id
    assert len(shown) <= 6 and {mug, "diningtable_1"} <= shown


def test_a_batch_lets_slots_see_the_memory_but_not_each_other(tokenizer: Tokenizer, make_rollout: Make) -> None:
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
            hidden = batch.slot_bias[number, 0, 0, start : start + len(ids)] <= HIDE / 2
            assert hidden.all() if name in slot.hidden else not hidden.any()
            start += len(ids)
        assert torch.equal(batch.slot_bias[number, 0, :, batch.memory :] == 0, torch.ones(width, width).tril() == 1)


def test_lines_that_are_apart_see_themselves_and_the_first_token(tokenizer: Tokenizer, make_rollout: Make) -> None:
    (pack,) = packs_of(tokenizer, make_rollout(1), "plain", trajectories=0, steps=2, probes=0)
    batch = collate([pack], tokenizer.token_to_id(BOS), tokenizer.token_to_id(PAD), apart=True)
    visible = batch.memory_bias[0, 0] == 0
    start = 1
    for _, ids in pack.memory:
        stop = start + len(ids)
        assert visible[start:stop, 0].all() and not visible[start:stop, 1:start].any()
        assert torch.equal(visible[start:stop, start:stop], torch.ones(len(ids), len(ids)).tril() == 1)
        start = stop
    assert collate([pack], 0, 0).memory_bias is None


def test_plans_have_no_memory_and_every_right_skill_is_supervised(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = replace(make_rollout(1), skills="lota")
    (pack,) = packs_of(tokenizer, rollout, "plain", plans=3)
    assert pack.memory == () and len(pack.slots) == 1
    told = [line.strip() for line in read(tokenizer, supervised(pack.slots[0])).split("\n")]
    expected = [GOAL, *(step.skill for step in rollout.tasks[0].steps if step.skill == step.label)]
    assert len([line for line in told if line]) == len(expected)
    assert "agent at" not in read(tokenizer, pack.slots[0].ids)


def test_goals_may_stand_behind_the_house_they_are_for(tokenizer: Tokenizer, make_rollout: Make) -> None:
    """An instruction can mean only what is there."""
    for skills in ("lota", "grounded"):
        rollout = replace(make_rollout(1), skills=skills)
        (pack,) = packs_of(tokenizer, rollout, "plain", plans=3, housed=True)
        told = "".join(read(tokenizer, ids) for _, ids in pack.memory)
        assert [slot.kind for slot in pack.slots] == ["goal"] and "mug_" in told and not pack.slots[0].hidden


def test_goals_are_said_behind_the_instruction_and_told_with_it(tokenizer: Tokenizer, make_rollout: Make) -> None:
    (pack,) = packs_of(tokenizer, make_rollout(1), "plain", plans=3)
    assert pack.memory == ()
    assert read(tokenizer, supervised(pack.slots[0])).strip() == GOAL
    (pack,) = packs_of(tokenizer, make_rollout(1), "plain", trajectories=1, steps=99, probes=0)
    *steps, told = sorted(pack.slots, key=lambda slot: slot.kind)
    for slot in steps:
        line = next(line for line in read(tokenizer, slot.ids).split("\n") if line.strip().startswith("task"))
        assert line.strip().endswith(f"goal {GOAL}") and GOAL not in read(tokenizer, supervised(slot))
    assert read(tokenizer, supervised(told)).split("\n")[0].strip() == GOAL


def test_the_focus_says_what_a_step_is_for_and_which_one_as_far_as_the_agent_knows(
    tokenizer: Tokenizer, make_rollout: Make
) -> None:
    rollout = make_rollout(1)
    task = rollout.tasks[0]
    mug = next(fact for fact in task.facts if fact.type == "mug" and fact.id in task.steps[3].skill.replace(" ", "_"))

    def foci(told: Rollout) -> list[str]:
        (pack,) = packs_of(tokenizer, told, "plain", trajectories=1, steps=0, probes=0)
        words = [line.split() for line in read(tokenizer, supervised(pack.slots[0])).split("\n")]
        return list(dict.fromkeys(" ".join(line[:FOCUS]) for line in words[1:] if line))

    table = "diningtable diningtable_1 diningtable_1"
    assert foci(rollout) == [f"mug {mug.id} {mug.place}", table, "nothing nothing nothing"]
    later = tuple(fact for fact in task.facts if fact is not mug)
    first, *others = task.steps
    seen = replace(first, facts=(*first.facts, mug))
    found = replace(rollout, tasks=(replace(task, facts=later, steps=(seen, *others)),))
    assert foci(found)[:2] == [f"mug unseen {mug.place}", f"mug {mug.id} {mug.place}"]
    again = replace(task, facts=(), steps=task.steps)  # what is known from an earlier task need not be told again
    (_, pack) = packs_of(tokenizer, replace(rollout, tasks=(task, again)), "plain", trajectories=1, steps=0, probes=0)
    assert "unseen" not in read(tokenizer, supervised(pack.slots[0]))


def test_type_level_skills_have_no_focus(tokenizer: Tokenizer, make_rollout: Make) -> None:
    (pack,) = packs_of(tokenizer, replace(make_rollout(1), skills="lota"), "plain", trajectories=0, steps=99, probes=0)
    (last,) = (slot for slot in pack.slots if "done" in read(tokenizer, supervised(slot)))
    assert read(tokenizer, supervised(last)).split() == ["done"]


def test_a_line_never_stands_without_the_header_it_refers_to(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = make_rollout(4, receptacles=12, objects=20)
    home = {fact.id: fact.place for fact in rollout.tasks[0].facts if fact.category == "object"}
    for lines in range(6, 30, 3):
        (pack,) = packs_of(tokenizer, rollout, "linked", memory_lines=lines, trajectories=0, steps=1, probes=0)
        header = ""
        for name, ids in pack.memory:
            if read(tokenizer, ids).startswith("there"):
                assert header == home[name]
            else:
                header = name


def test_probes_about_moved_things_ask_for_the_latest_place(tokenizer: Tokenizer, make_rollout: Make) -> None:
    rollout = make_rollout(1)
    mug = rollout.tasks[0].steps[3].facts[0].id
    asked = set()
    for seed in range(12):
        packer = Packer(lambda text: tokenizer.encode(text).ids, Mix(80, 0, 0, 8, 20), seed)
        (pack,) = packer.packs(rollout, "linked")
        for slot in pack.slots:
            text = read(tokenizer, slot.ids)
            if f"now mug {mug}" not in text:
                continue
            latest = [line.split()[3] for line in text.split("\n") if f"now mug {mug}" in line][-1]
            asked |= {latest}
            assert f"where {mug} {latest}" in text.replace("\n ", "\n")
    assert asked == {"hand", "diningtable_1"}


def test_packs_of_long_tasks_show_what_the_planner_shows(tokenizer: Tokenizer, make_rollout: Make) -> None:
    """A step after more turns than a query tells: the first of them are history lines in the slot's own tail."""
    rollout = make_rollout(1)
    task = rollout.tasks[0]
    walk = [replace(task.steps[0], facts=())] * (PROGRESS + 2)
    long = replace(rollout, tasks=(replace(task, steps=(*walk, task.steps[-1])),))
    (pack,) = packs_of(tokenizer, long, "plain", trajectories=0, steps=99, probes=0)
    last = max(
        read(tokenizer, slot.ids).replace("\n ", "\n") for slot in pack.slots if "did" in read(tokenizer, slot.ids)
    )
    skill = task.steps[0].skill.replace("cabinet ", "cabinet_")
    lines = last.split("\n")
    assert [line.strip() for line in lines].count(f"next {skill}") >= PROGRESS
    assert 1 <= sum(line.strip().startswith("did") for line in lines) <= 2
