from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from keep_agent.errors import DataError
from planners.tiny.tokenizer import train_tokenizer
from planners.training.lessons import Lesson, endless_lessons, lesson_files, pack_lessons, read_lessons, write_lessons
from planners.training.packing import IGNORE, rounded

STEPS = (("walk to the desk", "go desk"), ("take the mug", "find mug"), ("leave it on the bed", "put bed"))
MUG = Lesson("Put a mug on the bed.", "find mug put bed", STEPS)


@pytest.fixture
def tokenizer() -> Tokenizer:
    words = "task lota grounded goal\n"
    return train_tokenizer([words, *(f"{text} {goal}\n".lower() for text, goal in STEPS)] * 20, set(), 300)


def test_lessons_are_read_as_written(tmp_path: Path) -> None:
    lessons = [MUG, Lesson("Heat an egg", "find egg heat egg", ())]
    assert write_lessons(tmp_path / "a.lessons.gz", lessons) == 2
    (file,) = lesson_files(tmp_path)
    assert list(read_lessons(file)) == lessons


def test_a_draw_is_the_task_or_some_neighbouring_steps() -> None:
    rng = random.Random(0)
    draws = {MUG.draw(rng) for _ in range(300)}
    assert (MUG.text, MUG.goal) in draws and ("walk to the desk take the mug", "go desk find mug") in draws
    assert ("walk to the desk leave it on the bed", "go desk put bed") not in draws
    assert len(draws) == 7  # the task, three steps, two pairs, all three
    assert Lesson("x", "find x", ()).draw(rng) == ("x", "find x")


def test_packs_have_no_memory_and_only_goals_are_targets(tokenizer: Tokenizer) -> None:
    result = list(pack_lessons([MUG] * 40, lambda text: tokenizer.encode(text).ids, 200, random.Random(1)))
    slots = [slot for pack in result for slot in pack.slots]
    assert len(slots) == 40 and len(result) > 1 and all(pack.memory == () for pack in result)
    assert all(len(pack.slots) * rounded(max(len(slot.ids) for slot in pack.slots)) <= 200 for pack in result)
    goals = {goal for _, goal in STEPS}
    for slot in slots:
        query = tokenizer.decode([token for token, label in zip(slot.ids, slot.labels, strict=True) if label == IGNORE])
        answer = tokenizer.decode([label for label in slot.labels if label != IGNORE])
        assert query.split()[0] == "task" and query.split()[-1] == "goal"
        assert any(goal in " ".join(answer.split()) for goal in goals)


def test_every_lesson_is_drawn_once_per_round(tmp_path: Path) -> None:
    write_lessons(tmp_path / "a.lessons.gz", [Lesson(f"text {n}", "find x", ()) for n in range(10)])
    draw = endless_lessons(lesson_files(tmp_path), random.Random(0))
    first = draw(5) + draw(5)
    assert len({lesson.text for lesson in first}) == 10
    assert len(draw(5)) == 5
    draw = endless_lessons(lesson_files(tmp_path), random.Random(0))
    texts = [lesson.text for _ in range(10) for lesson in draw(3)]  # the rest of a round comes before the next
    assert all(len(set(texts[start : start + 10])) == 10 for start in (0, 10, 20)), texts


def test_a_file_with_a_damaged_byte_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.lessons.gz"
    write_lessons(file, [Lesson(f"text {n}", "find x", ()) for n in range(50)])
    whole = file.read_bytes()
    for place in range(10, len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(DataError, match=r"a\.lessons\.gz:\d+ is not a lesson"):
            list(read_lessons(file))


@pytest.mark.parametrize("line", ["no json", '{"version": 9}', '{"version": 1, "text": "x"}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "a.lessons.gz"
    write_lessons(file, [MUG])
    with gzip.open(file, "at") as stream:
        stream.write(line + "\n")
    with pytest.raises(DataError, match=r"a\.lessons\.gz:2 is not a lesson .*write it again"):
        list(read_lessons(file))
