"""Loading and generation of conversations: complete, correct, and with an error message for every fault."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from eval.chat.conversation import ADVERSARIAL, Conversation, Line, Question, Session, Turn, check_unit, draw, lines_of
from eval.chat.generated import PEOPLE, RELATION_BY_NAME, Relation, debates, generate_conversations
from eval.chat.loader import load_conversations
from keep_agent.errors import ConfigError, DataError


def locomo_row() -> dict:
    return {
        "speaker_a": "Ada",
        "speaker_b": "Ben",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Ada", "dia_id": "D1:1", "text": "Look\nhere!", "blip_caption": "a photo of a dog"},
            {"speaker": "Ben", "dia_id": "D1:2", "text": "Nice."},
        ],
        "session_10_date_time": "9 June, 2023",
        "session_10": [{"speaker": "Ben", "dia_id": "D10:1", "text": "I moved."}],
        "session_2_date_time": "10 May, 2023",
        "session_2": [{"speaker": "Ada", "dia_id": "D2:1", "text": "Bye."}],
        "session_1_summary": "Ada shows a dog.",
        "qa": [
            {"question": "Since when?", "answer": 2022, "evidence": ["D1:1; D2:1", "D"], "category": 2},
            {"question": "Would she?", "answer": "Yes; she likes dogs", "evidence": ["D1:1"], "category": 3},
            {"question": "Whose cat?", "adversarial_answer": "Ada's", "evidence": [], "category": 5},
            {"question": "Is it?", "adversarial_answer": "Yes", "answer": "No", "evidence": [], "category": 5},
        ],
    }


def longmemeval_row() -> dict:
    return {
        "question_id": "abc", "question_type": "knowledge-update", "question": "How many?", "answer": 3,
        "question_date": "2023/06/01 (Thu) 10:00", "haystack_session_ids": ["s2", "s1"],
        "haystack_dates": ["2023/05/30 (Tue) 09:00", "2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [
            [{"role": "user", "content": "Now three.", "has_answer": True}, {"role": "assistant", "content": "Fine."}],
            [{"role": "user", "content": "I have two."}],
        ],
    }  # fmt: skip


def write(path: Path, value: object) -> Path:
    text = json.dumps(value).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def personamem_files(folder: Path, **changes: str) -> Path:
    texts = "Persona: a gardener.", "I like roses.", "Later.", "Now I like tulips."
    messages = [{"role": role, "content": text} for role, text in zip(("system", "user") * 2, texts, strict=True)]
    (folder / "shared_contexts_32k.jsonl").write_text(json.dumps({"c1": messages}) + "\n")
    row = {
        "question_id": "q", "question_type": "recall", "user_question_or_message": "Which flowers?",
        "correct_answer": "(b)", "all_options": "['(a) Roses (red).', \"(b) It's tulips.\"]",
        "shared_context_id": "c1", "end_index_in_shared_context": "4",
    } | changes  # fmt: skip
    path = folder / "questions_32k.csv"
    with path.open("w", newline="") as stream:
        table = csv.DictWriter(stream, row)
        table.writeheader()
        table.writerows([row, row | {"question_id": "early", "end_index_in_shared_context": "2"}])
    return path


@pytest.mark.parametrize("name", ["26.json", "26.json.gz"])
def test_locomo_as_it_is_published(tmp_path: Path, name: str) -> None:
    (talk,) = load_conversations(write(tmp_path / name, locomo_row()))
    assert talk.id == "26" and [session.id for session in talk.sessions] == ["D1", "D2", "D10"]
    assert talk.sessions[0].turns[0] == Turn("D1:1", "Ada", "Look\nhere! (shows a photo of a dog)")
    since, would, whose, really = talk.questions
    assert (since.answer, since.category, since.evidence) == ("2022", "temporal", ("D1:1", "D2:1"))
    assert (would.answer, would.category) == ("Yes", "open-domain")
    assert (whose.answer, whose.category, whose.adversarial) == ("", ADVERSARIAL, True)
    assert really.answer == "No" and really.adversarial


def test_locomo_in_one_list_has_its_sessions_one_level_deeper(tmp_path: Path) -> None:
    row = locomo_row()
    wrapped = {"sample_id": "conv-26", "qa": row.pop("qa"), "conversation": row}
    (talk,) = load_conversations(write(tmp_path / "locomo10.json", [wrapped]))
    assert talk.id == "conv-26" and len(talk.sessions) == 3 and len(talk.questions) == 4


def test_longmemeval_sessions_are_sorted_by_date(tmp_path: Path) -> None:
    unknown = longmemeval_row() | {"question_id": "abc_abs"}
    talk, abstain = load_conversations(write(tmp_path / "longmemeval_s.json", [longmemeval_row(), unknown]))
    assert [session.date[:10] for session in talk.sessions] == ["2023/05/20", "2023/05/30"]
    (question,) = talk.questions
    assert (question.answer, question.category, question.evidence) == ("3", "knowledge-update", ("D2:1",))
    assert question.date.startswith("2023/06/01")
    assert abstain.questions[0].adversarial and abstain.questions[0].answer == ""


def test_a_repeated_conversation_is_refused(tmp_path: Path) -> None:
    for name in ("longmemeval_oracle.json", "longmemeval_s.json"):
        write(tmp_path / name, [longmemeval_row()])
    with pytest.raises(DataError, match="conversation 'abc' occurs 2 times; give files without repetitions"):
        load_conversations(tmp_path)


def test_personamem_excludes_messages_after_the_end_index(tmp_path: Path) -> None:
    personamem_files(tmp_path)
    early, whole = load_conversations(tmp_path)
    assert [len(c.sessions) for c in (early, whole)] == [1, 2] and early.group == whole.group == "c1"
    (question,) = whole.questions
    assert question.choices == ("Roses (red).", "It's tulips.") and question.answer == "It's tulips."
    assert early.sessions[0] == whole.sessions[0]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_lines_of_personamem_end_at_line_feeds_alone(tmp_path: Path, separator: str) -> None:
    personamem_files(tmp_path)
    contexts = tmp_path / "shared_contexts_32k.jsonl"
    text = contexts.read_text("utf-8").replace("I like", f"I{separator}like")
    contexts.write_text(text, encoding="utf-8", newline="\r\n")
    assert load_conversations(tmp_path)[1].sessions[0].turns[-1].text.endswith("like roses.")


INVALID_LOCOMO = [
    ({"qa": None}, "field 'qa' should be list"),
    ({"session_2": [{"speaker": "Ada", "dia_id": "D2:1"}]}, r"session_2, turn 1: the field 'text' is missing"),
    ({"session_2": ["Bye."]}, r"session_2, turn 1: an object with the field 'text' was expected, not str"),
    ({"session_10_date_time": 9}, "field 'session_10_date_time' should be str, but it is int"),
    ({"qa": [{"question": "?", "category": 9}]}, "qa 1: category 9 is unknown"),
    ({"qa": [{"question": "?", "category": 1, "evidence": []}]}, "qa 1: the field 'answer' is missing"),
    ({"session_2": [{"speaker": "A", "dia_id": "D1:1", "text": "Bye."}]}, "have the id 'D1:1'"),
]
INVALID_LONGMEMEVAL = [
    ({"haystack_dates": ["2023/05/30"]}, "2 haystack_sessions but 1 haystack_dates"),
    ({"haystack_sessions": [[{"role": "user"}], []]}, "sessions 1, turn 1: the field 'content' is missing"),
    ({"haystack_sessions": ["a", "b"]}, "a list of turns was expected, not str"),
    ({"answer": None}, "field 'answer' should be"),
]
INVALID_PERSONAMEM = [
    ({"shared_context_id": "c2"}, "shared_context_id 'c2' is not in"),
    ({"end_index_in_shared_context": "x"}, "should be a number"),
    ({"all_options": "roses"}, "'all_options' should be a list"),
    ({"correct_answer": "(d)"}, r"correct_answer '\(d\)' is not one of the labels"),
]


@pytest.mark.parametrize(("change", "message"), [*INVALID_LOCOMO, *INVALID_LONGMEMEVAL, *INVALID_PERSONAMEM])
def test_an_invalid_file_is_refused_with_place_and_field(tmp_path: Path, change: dict, message: str) -> None:
    if (change, message) in INVALID_PERSONAMEM:
        file = personamem_files(tmp_path, **change)
    else:
        is_locomo = (change, message) in INVALID_LOCOMO
        file = write(tmp_path / "26.json", locomo_row() | change if is_locomo else [longmemeval_row() | change])
    with pytest.raises(DataError, match=message):
        load_conversations(file)


def test_files_without_conversations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no conversations"):
        load_conversations(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        load_conversations(tmp_path / "nowhere.json")
    with pytest.raises(DataError, match="neither a field 'qa' nor"):
        load_conversations(write(tmp_path / "a.json", {"a": 1}))
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(DataError, match=r"b\.json is not JSON"):
        load_conversations(tmp_path / "b.json")
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(b"{}")[:-9])
    with pytest.raises(DataError, match=r"c\.json\.gz is damaged"):
        load_conversations(tmp_path / "c.json.gz")


def test_the_published_locomo_is_loaded_completely(data_root: Path) -> None:
    folder = data_root / "locomo"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}: KEEP_AGENT_DATA names a folder without locomo/")
    conversations = load_conversations(folder)
    assert len(conversations) == 7
    assert sum(len(c.questions) for c in conversations) == 1434
    assert sum(len(s.turns) for c in conversations for s in c.sessions) == 3950
    assert Counter(q.category for c in conversations for q in c.questions)[ADVERSARIAL] == 325
    for conversation in conversations:
        assert all(piece.text.count("\n") == 1 for s in conversation.sessions for piece in lines_of(s, "turn"))
        ids = {turn.id for session in conversation.sessions for turn in session.turns}
        known = [id in ids for question in conversation.questions for id in question.evidence]
        assert sum(known) >= len(known) - 1  # one id in the source is wrong


def test_a_session_becomes_a_date_and_turns_or_a_single_segment() -> None:
    turns = Turn("D1:1", "Ada", "Look\n here!"), Turn("D1:2", "Ben", " "), Turn("D1:3", "B", "x")
    session = Session("D1", "8 May", turns)
    *lines, last = lines_of(session, "turn")
    assert lines == [
        Line("D1", "session", "conversation on 8 May\n"), Line("D1:1", "turn", "Ada: Look here!\n", "D1")
    ]  # fmt: skip
    assert last.id == "D1:3"
    (whole,) = lines_of(session, "session")
    assert whole.text == "conversation on 8 May | Ada: Look here! | B: x\n"
    assert [piece.parent for piece in lines_of(Session("D1", "", session.turns), "turn")] == [None, None]
    with pytest.raises(ConfigError, match="unit=word"):
        check_unit("word")


def test_a_conversation_refuses_repeated_ids_and_answers_outside_the_choices() -> None:
    turn = Turn("D1:1", "Ada", "Hello")
    with pytest.raises(DataError, match="have the id 'D1:1'"):
        Conversation("c", (Session("D1", "", (turn, turn)),), ())
    with pytest.raises(DataError, match="not one of its 2 choices"):
        Conversation("c", (), (Question("q", "?", "c", "multiple-choice", ("a", "b")),))


def test_a_limit_draws_the_same_questions_in_order() -> None:
    talks = generate_conversations(2, 3, 10, 2, seed=0)
    everything = draw(talks, None, 0)
    some = draw(talks, 5, 3)
    places = [everything.index(item) for item in some]
    assert len(some) == 5 and places == sorted(places) and some == draw(talks, 5, 3) != draw(talks, 5, 4)
    assert draw(talks, 999, 0) == everything


def test_generated_conversations_are_a_function_of_their_seed() -> None:
    first, again, different = (generate_conversations(2, 3, 8, 3, seed) for seed in (1, 1, 2))
    assert first == again != different and first[:1] == generate_conversations(1, 3, 8, 3, seed=1)
    (talk,) = generate_conversations(1, 5, 7, 4, seed=0)
    assert len(talk.sessions) == 5 and {len(session.turns) for session in talk.sessions} == {7}
    with pytest.raises(ConfigError, match=r"generated\.speakers=9"):
        generate_conversations(1, 3, 8, 9, seed=0)


def test_generated_questions_cover_every_category() -> None:
    kinds = {question.category for c in generate_conversations(10, 4, 12, 2, seed=0) for question in c.questions}
    assert kinds == {"single-hop", "multi-hop", "temporal", "open-domain", "update", "multiple-choice", ADVERSARIAL}


def test_generated_answers_are_the_latest_values() -> None:
    """Verify the answers from the turns alone."""
    for conversation in generate_conversations(20, 4, 12, 3, seed=0):
        turns = {turn.id: (turn, session) for session in conversation.sessions for turn in session.turns}
        order = list(turns)
        for question in conversation.questions:
            for id in question.evidence:
                turn, session = turns[id]
                if question.category == "temporal":
                    assert question.answer == session.date and question.text.split()[2] == turn.speaker
                elif question.category != "multi-hop":
                    assert question.answer in turn.text and turn.speaker in question.text
                    later = [turns[later_id][0] for later_id in order[order.index(id) + 1 :]]
                    matches = [r for r in RELATION_BY_NAME.values() if turn.text in sentences(r, question.answer)]
                    changes = {text for r in matches for text in sentences(r, *r.values)}
                    assert not any(t.speaker == turn.speaker and t.text in changes for t in later)
            assert bool(question.evidence) != question.adversarial


def sentences(relation: Relation, *values: str) -> set[str]:
    """Return every sentence that states one of ``values``."""
    return {form.format(value) for value in values for form in (relation.statement, relation.update)}


def test_no_speaker_mentions_the_answer_of_an_adversarial_question() -> None:
    for conversation in generate_conversations(20, 4, 12, 2, seed=0):
        turns = [turn for session in conversation.sessions for turn in session.turns]
        for question in conversation.questions:
            if question.adversarial:
                people = (*PEOPLE, "Ines")
                relation = next(r for r in RELATION_BY_NAME.values() if question.text in map(r.question.format, people))
                answers = sentences(relation, *relation.values)
                assert not any(turn.speaker in question.text and turn.text in answers for turn in turns)


def test_debates_interleave_notes_with_reused_contributions() -> None:
    prompts = debates(1, 3, 2, seed=0)
    assert len(prompts) == 6 and {prompt.group for prompt in prompts} == {"debate-1"}
    counts: Counter[str] = Counter()
    for prompt in prompts:
        (session,) = prompt.sessions
        assert [turn.speaker == "note" for turn in session.turns] == [True, False] * 2
        counts.update(turn.text for turn in session.turns)
        (question,) = prompt.questions
        evidence = next(turn for turn in session.turns if turn.id == question.evidence[0])
        assert f" {question.answer} " in evidence.text
    contributions = {text: count for text, count in counts.items() if text.startswith("In round")}
    assert set(contributions.values()) == {2}, "both other agents must read the same words"
    assert all(count == 1 for text, count in counts.items() if text not in contributions)
