"""Files of scenarios: what they may hold; everything else is refused with file, place and remedy."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from keep_agent.errors import DataError
from keep_agent.scenarios.scenario import MAX_TOKENS, Note, find_scenario, make_scenario, shipped
from memory.files.agent_files import agent_path

GOOD: dict[str, Any] = {
    "name": "tea-time",
    "agents": {
        "ada": {"name": "Ada", "system": "You are Ada."},
        "ben": {"system": "You are Ben.\n"},
        "cat": {"system": "You are a cat.", "permanent": False},
    },
    "phases": [
        {"name": "tea", "participants": ["ada", "ben"], "opening": "You have tea.", "rounds": 2},
        {
            "name": "walk",
            "participants": ["cat", "ada", "ben"],
            "speakers": ["ada"],
            "opening": [{"text": "It rains."}, {"text": "You are wet.", "to": ["cat"]}],
            "instructions": {"ben": "You said: ${tea.messages[ben]}"},
            "audience": {"ada": ["ben"]},
            "max_tokens": 7,
        },
    ],
}


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    """GOOD with another value at a place."""
    changed_content = deepcopy(GOOD)
    inner: Any = changed_content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return changed_content


def test_a_scenario_is_read() -> None:
    scenario = make_scenario(GOOD)
    tea, walk = scenario.phases
    assert scenario.turns == 5 and scenario.about == "-"
    assert (scenario.agents["ben"].name, scenario.agents["ben"].permanent) == ("ben", True)
    assert (tea.speakers, tea.rounds, tea.max_tokens) == (("ada", "ben"), 2, MAX_TOKENS)
    assert tea.notes == (Note("You have tea.\n", ("ada", "ben")),)
    assert [note.to for note in walk.notes] == [("cat", "ada", "ben"), ("cat",), ("ben",)]
    assert (walk.audience("ada"), walk.max_tokens) == (("ada", "ben"), 7)


def test_all_texts_end_a_line() -> None:
    scenario = make_scenario(GOOD)
    texts = [agent.system for agent in scenario.agents.values()]
    texts += [note.text for phase in scenario.phases for note in phase.notes]
    assert all(text.endswith("\n") and not text.endswith("\n\n") for text in texts)


def test_keys_of_memories_are_the_papers_and_nobody_elses() -> None:
    scenario = make_scenario(GOOD)
    assert scenario.memory_key("ada", "7f") == "persist_tea-time_ada"
    assert scenario.memory_key("cat", "7f") == "coord_7f_cat"


def test_the_longest_names_are_good_for_files() -> None:
    agents = {letter * 24: {"system": "You listen."} for letter in "ab"}
    phase = {"name": "tea", "participants": list(agents)}
    scenario = make_scenario({"name": "s" * 24, "agents": agents, "phases": [phase]})
    for agent in agents:
        assert agent_path(Path("root"), scenario.memory_key(agent, "0123abcd"), "model")


@pytest.mark.parametrize(
    ("content", "place", "problem"),
    [
        (changed("colour", to=1), "top level", "unknown key 'colour'; use name"),
        (changed("name", to="tea_time"), "name", "'tea_time' is no name"),
        (changed("agents", to={}), "agents", "there are none"),
        (changed("agents", to=["ada"]), "agents", "no mapping"),
        (changed("agents", 3, to={"system": "x"}), "agents", "key 3 is no text"),
        (changed("agents", "Ada", to={"system": "x"}), "agents.Ada", "'Ada' is no name"),
        (changed("agents", "ada", "sytem", to="x"), "agents.ada", "unknown key 'sytem'"),
        (changed("agents", "ada", to={}), "agents.ada", "system is missing"),
        (changed("agents", "ada", "system", to=" "), "agents.ada.system", "is no text"),
        (changed("agents", "ada", "permanent", to="yes"), "agents.ada.permanent", "use true or false"),
        (changed("agents", "ada", "name", to="ben"), "agents", "ben cannot be called 'ben'"),
        (changed("agents", "ada", "name", to="you"), "agents", "ada cannot be called 'you'"),
        (changed("agents", "dan", to={"system": "x"}), "agents", "dan takes part in no phase"),
        (changed("phases", to=[]), "phases", "no list of one or more"),
        (changed("phases", 1, "name", to="tea"), "phases[1].name", "an earlier phase is called tea"),
        (changed("phases", 0, "participants", to=["ada", "eve"]), "phases[0].participants[1]", "'eve' is no agent"),
        (changed("phases", 0, "participants", to=["ada", "ada"]), "phases[0].participants[1]", "is there twice"),
        (changed("phases", 0, "participants", to="ada"), "phases[0].participants", "no list"),
        (changed("phases", 0, "speakers", to=["cat"]), "phases[0].speakers[0]", "'cat' is no participant"),
        (changed("phases", 0, "rounds", to=0), "phases[0].rounds", "use 1 or more"),
        (changed("phases", 0, "rounds", to=True), "phases[0].rounds", "use 1 or more"),
        (changed("phases", 0, "max_tokens", to="many"), "phases[0].max_tokens", "use 1 or more"),
        (changed("phases", 0, "opening", to=3), "phases[0].opening", "3 is no list"),
        (changed("phases", 1, "opening", 1, "to", to=["dog"]), "phases[1].opening[1].to[0]", "'dog' is no participant"),
        (
            changed("phases", 0, "instructions", to={"cat": "x"}),
            "phases[0].instructions.cat",
            "'cat' is no participant",
        ),
        (changed("phases", 1, "audience", to={"ben": ["ada"]}), "phases[1].audience.ben", "'ben' is no speaker"),
    ],
)
def test_what_does_not_work_is_refused_with_its_place(content: dict[str, Any], place: str, problem: str) -> None:
    with pytest.raises(DataError) as error:
        make_scenario(content, "mine.yaml")
    assert str(error.value).startswith(f"mine.yaml: {place}: ") and problem in str(error.value)
    assert ";" in str(error.value)  # behind it stands what to do


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("${lunch.messages[ben]}", "'lunch' is no phase before this text is read; there are: tea"),
        ("${walk.messages[ben]}", "'walk' is no phase before this text is read; there are: tea"),
        ("${tea.messages[cat]}", "'cat' heard nothing of phase 'tea'; agents that did: ada, ben"),
        ("${tea.messages[dog]}", "'dog' heard nothing of phase 'tea'"),
        ("${tea.messages[ada]}", "ben would read what ada heard; put it in instructions.ada"),
        ("${tea.words[ben]}", "asks for 'words'"),
        ("${tea.messages}", "is no template; write ${PHASE.messages[AGENT]}"),
        ("${tea.messages[ben]", "is no template"),
        ("${oc.env:HOME}", "is no template"),
        ("${tea.messages[ben].__class__}", "is no template"),
        ("${}", "is no template"),
    ],
)
def test_templates_that_cannot_be_filled_are_refused_at_load(template: str, problem: str) -> None:
    with pytest.raises(DataError, match=r"phases\[1\]\.instructions\.ben: ") as error:
        make_scenario(changed("phases", 1, "instructions", "ben", to=f"See {template}."))
    assert problem in str(error.value)


def test_a_template_needs_a_reader_of_its_own_and_someone_who_was_heard() -> None:
    with pytest.raises(DataError, match=r"opening: cat, ada, ben would read what ben heard"):
        make_scenario(changed("phases", 1, "opening", to="${tea.messages[ben]}"))
    with pytest.raises(DataError, match=r"system: 'tea' is no phase before this text is read; there are: none"):
        make_scenario(changed("agents", "ben", "system", to="${tea.messages[ben]}"))
    deaf = changed("phases", 0, "speakers", to=["ada"])
    deaf["phases"][0]["audience"] = {"ada": ["ada"]}
    with pytest.raises(DataError, match="'ben' heard nothing of phase 'tea'; agents that did: ada"):
        make_scenario(deaf)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: [", "is no YAML"),
        ("name: tea\nname: walk\n", "'name' is there twice"),
        ("name: !!python/object/apply:os.getcwd []\n", "is no YAML"),
        ("about: 2024-02-30\n", "is no YAML .*day is out of range"),
        ("about: !!bool perhaps\n", "is no YAML"),
        ("about: !!timestamp later\n", "is no YAML"),
        ("about: !!int ''\n", "is no YAML"),
        ("!!map [a]\n", "is no YAML"),
        (f"about: {':'.join(['1'] * 200)}.5\n", "is no YAML"),
        ("- tea\n", "no mapping"),
        ("", "None is no mapping"),
        ("\xff", "is not UTF-8 text"),
    ],
)
def test_files_that_hold_no_scenario(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=problem) as error:
        find_scenario(str(file))
    assert str(file) in str(error.value)


def test_scenarios_that_come_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(shipped()) == ["gossip", "handover", "prisoners_dilemma"]
    for name in shipped():
        scenario = find_scenario(name)
        assert scenario.name == name.replace("_", "-") and scenario.about != "-"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="there is no scenario 'chess'; give a file, or one of: gossip, handover"):
        find_scenario("chess")


def test_the_file_of_a_scenario_is_found_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gossip").write_text(shipped()["handover"].read_text())
    assert find_scenario("gossip").name == "handover"


def test_speakers_hear_themselves() -> None:
    for phase in (*find_scenario("handover").phases, *make_scenario(GOOD).phases):
        for speaker in phase.speakers:
            assert {speaker} <= set(phase.audience(speaker)) <= set(phase.participants)
