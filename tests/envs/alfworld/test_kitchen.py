"""A kitchen in ALFWorld's own engine: text becomes facts, skills become commands."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from envs.alfworld.engine import Engine, EnginePool
from envs.alfworld.env import AlfworldEnv
from envs.alfworld.knowledge import Knowledge
from envs.alfworld.scene import Episode
from envs.alfworld.setting import AlfworldSetting
from envs.alfworld.world import GameWorld
from envs.fact import Fact
from envs.setting import demonstrate
from keep_agent.errors import ConfigError, DataError, SkillError
from tests.envs.alfworld.kitchen import INSTRUCTION

HEAT = (
    "go to countertop 1", "pick up egg 1", "go to microwave 1", "open microwave 1", "put egg 1 in microwave 1",
    "close microwave 1", "turn on microwave 1", "turn off microwave 1", "open microwave 1", "pick up egg 1",
    "go to cabinet 1", "open cabinet 1", "put egg 1 in cabinet 1", "done",
)  # fmt: skip


def make_setting(engines: EnginePool, **choices: str) -> AlfworldSetting:
    """Return a setting that shares the pool of engines."""
    setting = AlfworldSetting(**choices)
    setting.engines = engines
    return setting


@pytest.fixture
def setting(engines: EnginePool) -> AlfworldSetting:
    return make_setting(engines)


@pytest.fixture
def world(setting: AlfworldSetting, kitchen: Episode) -> GameWorld:
    return setting.begin(kitchen)


@pytest.fixture
def engine(engines: EnginePool) -> Iterator[Engine]:
    engine = engines.acquire()
    yield engine
    engines.release(engine)


def play(setting: AlfworldSetting, world: GameWorld, *skills: str) -> list[str]:
    """Execute skills that all succeed; return the commands sent to the engine."""
    before = len(world.commands)
    for skill in skills:
        outcome = setting.space.execute(world, skill)
        assert outcome.ok, (skill, outcome)
    return world.commands[before:]


def test_the_opening_names_the_receptacles(world: GameWorld, kitchen: Episode) -> None:
    assert kitchen.tasks[0].instruction == INSTRUCTION and kitchen.id == "trial_kitchen"
    facts = Knowledge(world).update()
    assert [fact.id for fact in facts] == [
        *("cabinet_1", "countertop_1", "faucet_1", "fridge_1", "microwave_1", "sidetable_1", "sinkbasin_1", "agent")
    ]
    assert facts[0] == Fact("cabinet_1", "receptacle", "cabinet", states=("unseen",))
    assert facts[2] == Fact("faucet_1", "receptacle", "faucet", states=("off",))
    assert facts[-1] == Fact("agent", "agent", "agent")


def test_text_becomes_facts(setting: AlfworldSetting, world: GameWorld) -> None:
    knowledge = Knowledge(world)
    knowledge.update()
    play(setting, world, "go to sidetable 1")
    assert knowledge.update() == [
        Fact("sidetable_1", "receptacle", "sidetable"),
        Fact("desklamp_1", "receptacle", "desklamp", "sidetable_1", states=("off",)),
        Fact("mug_1", "object", "mug", "sidetable_1"),
        Fact("agent", "agent", "agent", "sidetable_1", sees=("mug_1",)),
    ]
    play(setting, world, "pick up mug 1", "go to cabinet 1")
    assert knowledge.update() == [
        Fact("cabinet_1", "receptacle", "cabinet", states=("closed", "unseen")),
        Fact("mug_1", "object", "mug", "agent"),
        Fact("agent", "agent", "agent", "cabinet_1", holds="mug_1"),
    ]
    play(setting, world, "open cabinet 1")
    assert knowledge.update() == [
        Fact("cabinet_1", "receptacle", "cabinet", states=("open",)),
        Fact("mug_2", "object", "mug", "cabinet_1"),
        Fact("agent", "agent", "agent", "cabinet_1", holds="mug_1", sees=("mug_2",)),
    ]
    assert knowledge.update() == []


def test_a_heated_egg_wins_the_game(setting: AlfworldSetting, world: GameWorld, kitchen: Episode) -> None:
    assert setting.conditions(world, kitchen.tasks[0]) == (0, 1)
    for skill in HEAT:
        assert skill in setting.space.admissible(world), skill
        play(setting, world, skill)
    assert setting.conditions(world, kitchen.tasks[0]) == (1, 1)


def test_turning_on_the_microwave_heats_what_is_in_it(setting: AlfworldSetting, world: GameWorld) -> None:
    play(setting, world, *HEAT[:6])
    assert play(setting, world, "turn on microwave 1") == [
        "open microwave 1", "take egg 1 from microwave 1", "heat egg 1 with microwave 1", "move egg 1 to microwave 1",
        "close microwave 1",
    ]  # fmt: skip
    knowledge = Knowledge(world)
    facts = {fact.id: fact for fact in knowledge.update()}
    assert facts["egg_1"] == Fact("egg_1", "object", "egg", "microwave_1", states=("hot",))
    assert facts["microwave_1"].states == ("closed", "on")
    assert "turn off microwave 1" in setting.space.admissible(world)
    assert setting.space.execute(world, "turn on microwave 1").message == "microwave 1 is already on"
    assert "open microwave 1" not in setting.space.admissible(world)
    assert setting.space.execute(world, "open microwave 1").message == "microwave 1 is on, turn it off first"
    assert play(setting, world, "turn off microwave 1") == []
    assert [fact.id for fact in knowledge.update()] == ["microwave_1"]


def test_closing_the_fridge_cools_what_is_in_it(setting: AlfworldSetting, world: GameWorld) -> None:
    play(setting, world, "go to countertop 1", "pick up egg 1", "go to fridge 1", "open fridge 1")
    play(setting, world, "put egg 1 in fridge 1")
    assert play(setting, world, "close fridge 1") == [
        "take apple 1 from fridge 1", "cool apple 1 with fridge 1", "move apple 1 to fridge 1",
        "take egg 1 from fridge 1", "cool egg 1 with fridge 1", "move egg 1 to fridge 1",
        "close fridge 1",
    ]  # fmt: skip
    assert world.state.marks == {"apple_1": {"cold"}, "egg_1": {"cold"}}


def test_a_fridge_is_closed_with_a_full_hand_and_slicing_leaves_one_object(
    setting: AlfworldSetting, world: GameWorld
) -> None:
    play(setting, world, "go to countertop 1", "pick up butterknife 1", "go to fridge 1", "open fridge 1")
    assert play(setting, world, "close fridge 1") == ["close fridge 1"]
    assert not world.state.marks and world.state.holding == "butterknife_1"
    play(setting, world, "open fridge 1")
    assert "slice apple 1" in setting.space.admissible(world)
    assert play(setting, world, "slice apple 1") == ["slice apple 1 with butterknife 1"]
    assert world.state.marks == {"apple_1": {"sliced"}}


def test_a_faucet_cleans_what_is_in_its_basin(setting: AlfworldSetting, world: GameWorld) -> None:
    fetch = ("go to countertop 1", "pick up butterknife 1", "go to sinkbasin 1")
    play(setting, world, *fetch, "put butterknife 1 in sinkbasin 1")
    assert play(setting, world, "turn on faucet 1") == [
        "take butterknife 1 from sinkbasin 1", "clean butterknife 1 with sinkbasin 1",
        "move butterknife 1 to sinkbasin 1",
    ]  # fmt: skip
    assert world.state.marks == {"butterknife_1": {"clean"}}
    assert {"turn off faucet 1", "pick up butterknife 1"} < set(setting.space.admissible(world))


def test_a_lamp_can_be_a_destination_also_after_a_failed_walk(setting: AlfworldSetting, world: GameWorld) -> None:
    assert "go to desklamp 1" not in setting.space.admissible(world)
    assert not setting.space.execute(world, "go to desklamp 1").ok
    play(setting, world, "go to sidetable 1", "go to countertop 1")
    assert play(setting, world, "go to desklamp 1") == ["go to sidetable 1"]
    knowledge = Knowledge(world)
    assert knowledge.update()[-1] == Fact("agent", "agent", "agent", "desklamp_1")
    assert play(setting, world, "turn on desklamp 1") == ["use desklamp 1"]
    assert [fact.states for fact in knowledge.update()] == [("on",)]
    assert not {"turn on desklamp 1", "turn off desklamp 1", "go to desklamp 1"} & set(setting.space.admissible(world))
    play(setting, world, "go to countertop 1")
    assert knowledge.update()[-1].place == "countertop_1"
    play(setting, world, "go to sidetable 1", "go to desklamp 1")
    knowledge = Knowledge(world)
    before = knowledge.update()[-1]
    assert before.place == "desklamp_1"
    for skill in ("go to desklamp 1", "go to cabinet 99"):
        with suppress(SkillError):
            assert not setting.space.execute(world, skill).ok
        assert world.lamp == "desklamp_1"


def test_impossible_skills_fail_with_a_reason(setting: AlfworldSetting, world: GameWorld) -> None:
    play(setting, world, "go to microwave 1")
    for skill, reason in {
        "pick up egg 1": "nothing happens",
        "open fridge 1": "nothing happens",
        "turn off faucet 1": "nothing happens",
        "go to cabinet 7": "nothing happens",
        "put egg 1 in microwave 1": "nothing happens",
        "turn on microwave 1": "there is nothing to heat in microwave 1",
    }.items():
        outcome = setting.space.execute(world, skill)
        assert (outcome.ok, outcome.message) == (False, reason), skill
    play(setting, world, "open microwave 1")
    assert setting.space.execute(world, "turn on microwave 1").message == "microwave 1 is open, close it first"
    for words in ("fly to the moon", "heat egg 1 with microwave 1", "look", ""):
        with pytest.raises(SkillError, match="unknown skill"):
            setting.space.execute(world, words)


def test_admissible_skills_name_only_what_the_text_mentions(setting: AlfworldSetting, world: GameWorld) -> None:
    places = ("cabinet", "countertop", "fridge", "microwave", "sidetable", "sinkbasin")
    assert setting.space.admissible(world) == (*(f"go to {place} 1" for place in places), "done")
    play(setting, world, "go to countertop 1")
    walks = tuple(f"go to {place} 1" for place in places if place != "countertop")
    assert setting.space.admissible(world) == (*walks, "pick up butterknife 1", "pick up egg 1", "done")


def test_the_commands_skill_set(engines: EnginePool, kitchen: Episode) -> None:
    setting = make_setting(engines, skills="commands")
    world = setting.begin(kitchen)
    play(setting, world, "go to countertop 1", "take egg 1 from countertop 1", "go to microwave 1")
    commands = setting.space.admissible(world)
    assert {"open microwave 1", "heat egg 1 with microwave 1", "go to cabinet 1", "done"} < set(commands)
    assert not [text for text in commands if text.startswith(("look", "inventory", "examine", "help"))]
    assert setting.space.execute(world, "heat egg 1 with fridge 1").message == "nothing happens"
    with pytest.raises(SkillError):
        setting.space.execute(world, "pick up egg 1")


@pytest.mark.parametrize("skills", ["grounded", "commands"])
def test_the_experts_plan_in_both_skill_sets(skills: str, engines: EnginePool, kitchen: Episode) -> None:
    setting = make_setting(engines, skills=skills)
    world = setting.begin(kitchen)
    plan = demonstrate(setting, world, kitchen.tasks[0], 40)
    assert plan[-1] == "done" and world.won and len(plan) == (14 if skills == "grounded" else 8)


def test_a_copy_is_independent(setting: AlfworldSetting, world: GameWorld) -> None:
    play(setting, world, *HEAT[:7])
    copy = world.copy()
    assert (copy.state, copy.active, copy.commands) == (world.state, {"microwave_1"}, world.commands)
    assert setting.space.admissible(copy) == setting.space.admissible(world)
    play(setting, copy, *HEAT[7:])
    assert copy.won and not world.won
    play(setting, world, *HEAT[7:])
    assert world.won


def test_a_goal_holds_at_the_end_or_at_any_time(setting: AlfworldSetting, kitchen: Episode, world: GameWorld) -> None:
    play(setting, world, *HEAT[:-1], "pick up egg 1")
    ever = AlfworldSetting(scored="ever")
    assert setting.conditions(world, kitchen.tasks[0]) == (0, 1)
    assert ever.conditions(world, kitchen.tasks[0]) == (1, 1)


def test_the_environment_passes_gymnasiums_checker(engines: EnginePool, kitchen: Episode) -> None:
    env = gymnasium.make("keep_agent:ALFWorld-v0", episodes=(kitchen,), max_steps=4, render_mode="ansi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped, skip_render_check=True)
    observation, info = env.reset(seed=3)
    assert observation["instruction"] == INSTRUCTION and info["goal"] == (0, 1)
    assert "at somewhere, holding nothing" in env.render()


def test_a_game_that_cannot_be_played_is_named(engine: Engine, world: GameWorld) -> None:
    for change in ({"pddl_problem": "(define (problem"}, {"pddl_domain": "()"}, {"grammar": "none"}):
        with pytest.raises(DataError, match="broken game"):
            engine.load(world.game.read() | change, "a broken game")
    assert "Your task is to" in engine.load(world.game.read(), "a good one")


def test_a_game_runs_no_code(engine: Engine, world: GameWorld, tmp_path: Path) -> None:
    """TextWorld alone would pass expressions in braces to eval()."""
    mark, game = tmp_path / "executed", world.game.read()
    grammar = game["grammar"].replace("Your task is to", f"{{open('{mark}', 'w').name}} Your task is to")
    with pytest.raises(DataError, match="is not run"):
        engine.load(game | {"grammar": grammar}, "a hostile game")
    assert not mark.exists()


def test_a_forbidden_expression_in_an_answer_is_an_error_and_not_a_failure(engine: Engine, world: GameWorld) -> None:
    """The command was executed: the answer "Nothing happens." would be wrong."""
    game = world.game.read()
    engine.load(game, "a good one")
    command = next(text for text in engine.commands if text.startswith("go to"))
    good = engine.do(command)
    answer = next(line for line in good.splitlines() if line.strip())[:12]
    assert answer in game["grammar"]
    engine.load(game | {"grammar": game["grammar"].replace(answer, f"{{r.name.lower()}} {answer}")}, "a changed one")
    with pytest.raises(DataError, match="is not run"):
        engine.do(command)


def test_loading_keeps_the_process_arguments(engine: Engine, world: GameWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["some", "arguments"])
    engine.load(world.game.read(), "a game")
    assert sys.argv == ["some", "arguments"]


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"observability": "full"}, "ALFWorld's text shows only what is seen; use partial"),
        ({"observability": "some"}, "observability='some' is unknown"),
        ({"skills": "lota"}, "skills='lota' is unknown; use one of grounded, commands"),
        ({"scored": "never"}, "scored='never' is unknown"),
        ({"max_steps": 0}, "max_steps is 0"),
    ],
)
def test_bad_choices_are_errors(choices: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        AlfworldEnv(episodes=(), **choices)


@pytest.mark.parametrize("missing", ["alfworld", "textworld"])
def test_a_missing_package_is_an_error_with_the_pip_command(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=r"pip install 'keep-agent\[alfworld\]'"):
        Engine()


def test_importing_the_environment_loads_no_engine() -> None:
    code = "import sys, envs.alfworld.env, envs.alfworld.spec; print({'alfworld', 'textworld'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
