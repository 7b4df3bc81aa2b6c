"""Rewordings keep the task and change its words; the same instruction and seed give the same words."""

from __future__ import annotations

import pytest

from envs.rewording import ASIDES, REWORDINGS, SYNONYMS, reword, reworded
from envs.worlds import GENERATED
from keep_agent.errors import ConfigError

TEXT = "Wash the mug and put it in the fridge, then turn on the desk lamp."


@pytest.mark.parametrize("kind", REWORDINGS)
def test_a_rewording_depends_on_instruction_and_seed_only(kind: str) -> None:
    assert reword(TEXT, kind) == reword(TEXT, kind) != TEXT
    assert len({reword(TEXT, kind, seed) for seed in range(20)}) > 3


def test_polite_requests_contain_the_instruction() -> None:
    for seed in range(20):
        assert TEXT[1:].rstrip(".") in reword(TEXT, "polite", seed)


def test_typos_change_single_letters_of_a_few_long_words() -> None:
    for seed in range(50):
        old, new = TEXT.split(), reword(TEXT, "typos", seed).split()
        changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        assert len(changed) == 1 and all(abs(len(a) - len(b)) <= 1 and a[0] == b[0] for a, b in changed)


def test_synonyms_replace_whole_words() -> None:
    for seed in range(20):
        text = reword(TEXT, "synonyms", seed)
        assert "fridge" not in text.replace("refrigerator", "") and " mug " in text
        assert any(word in text for word in SYNONYMS["fridge"]) and any(word in text for word in SYNONYMS["lamp"])
    assert reword("a lampshade", "synonyms") == "a lampshade"


def test_several_sentences_follow_an_unrelated_one() -> None:
    for seed in range(10):
        text = reword(TEXT, "sentences", seed)
        extra = next(extra for extra in ASIDES if text.startswith(extra))
        assert text == f"{extra} Wash the mug. Put it in the fridge. Turn on the desk lamp."


def test_all_draws_one_of_the_kinds() -> None:
    kinds = set()
    for seed in range(60):
        text = reword(TEXT, "all", seed)
        if text.startswith(ASIDES):
            kinds.add("sentences")
        elif TEXT[1:].rstrip(".") in text:
            kinds.add("polite")
        elif len(text.split()) == len(TEXT.split()) and "Wash" in text:
            kinds.add("typos")
        else:
            kinds.add("synonyms")
    assert kinds == set(REWORDINGS) - {"all"}


def test_episodes_keep_everything_else() -> None:
    spec = GENERATED["alfred"].spec
    episodes = spec.episodes(None, "valid", stream=2, limit=3)
    new = reworded(episodes, "polite")
    assert len(new) == len(new[:2]) + 1 == 3
    for old, changed in zip(episodes, new, strict=True):
        assert [t.id for t in old.tasks] == [t.id for t in changed.tasks]
        assert all(a.instruction != b.instruction for a, b in zip(old.tasks, changed.tasks, strict=True))
        assert old.scene == changed.scene
    with pytest.raises(ConfigError, match="env.rewording"):
        reworded(episodes, "rude")
