"""Player of scenarios on real engines: reuse of rows, temporary agents, run folders and the command."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from keep_agent.cli import main
from keep_agent.errors import ConfigError, TooLongError
from keep_agent.rollout.run_folder import SUMMARY
from keep_agent.scenarios.runner import REUSE, Player, start_tokens, stop_tokens
from keep_agent.scenarios.scenario import Scenario, find_scenario, shipped
from keep_agent.scenarios.transcript import Transcripts
from keep_agent.scenarios.turn_records import TURNS_FILE, ScenarioFolder, Turn, summarize
from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenizerCoder
from memory.engine.base import Engine, KVCache
from memory.engine.models.chat_template import special_tokens
from memory.engine.models.load import from_config
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.quantization import PackFormat
from planners.bundled import BUNDLED
from tests.keep_agent.agent.playing import small_config

TOKENIZERS = ("planner-tiny", "chat")


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest, chat: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    return chat if request.param == "chat" else load_tokenizer(str(BUNDLED))


class Babbler(TransformersEngine):
    """A tiny random model that generates random tokens, with broken characters among them."""

    def generate(
        self, cache: KVCache, first_logits: torch.Tensor, max_new_tokens: int, stop_ids: Collection[int] = ()
    ) -> list[int]:
        chance = random.Random(cache.next_position)
        drawing = [chance.randrange(first_logits.shape[-1]) for _ in range(chance.randrange(max_new_tokens + 1))]
        stop = next((place for place, token in enumerate(drawing) if token in stop_ids), len(drawing))
        if drawing[:stop]:
            self.append(cache, drawing[:stop])
        return drawing[:stop]


@pytest.fixture(scope="module")
def engine(tokenizer: PreTrainedTokenizerFast) -> Iterator[Engine]:
    with Babbler(from_config(small_config(len(tokenizer)), torch.float32, seed=3), "inline") as random_engine:
        yield random_engine


class Recorded(Transcripts):
    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.prompts: list[tuple[str, str]] = []

    def prompt(self, agent: str) -> str:
        self.prompts.append((agent, super().prompt(agent)))
        return self.prompts[-1][1]


@dataclass(frozen=True)
class Stage:
    engine: Engine
    tokenizer: PreTrainedTokenizerFast

    @property
    def stops(self) -> frozenset[int]:
        return stop_tokens(self.tokenizer, special_tokens(self.tokenizer, self.engine.model.module))

    def memories(self, folder: Path | None = None) -> AgentMemories:
        return AgentMemories(self.engine, TokenizerCoder(self.tokenizer), PackFormat(4), folder, threshold=REUSE)

    def player(self, scenario: Scenario, memories: AgentMemories, run_id: str = "7f", most: int = 3) -> Player:
        return Player(scenario, memories, self.stops, run_id, most)

    def play(self, name: str, folder: Path | None = None, run_id: str = "7f") -> tuple[list[Turn], Recorded]:
        transcripts = Recorded(find_scenario(name))
        with self.memories(folder) as memories:
            turns = list(self.player(transcripts.scenario, memories, run_id, 12).play(transcripts))
            assert memories.stats()["agents"] == sum(agent.permanent for agent in transcripts.scenario.agents.values())
        return turns, transcripts


@pytest.fixture(scope="module")
def stage(engine: Engine, tokenizer: PreTrainedTokenizerFast) -> Stage:
    return Stage(engine, tokenizer)


@pytest.mark.parametrize("name", list(shipped()))
def test_the_first_turn_is_cold_and_later_ones_of_a_permanent_agent_extend_it(stage: Stage, name: str) -> None:
    turns, transcripts = stage.play(name)
    scenario = transcripts.scenario
    assert len(turns) == len(transcripts.prompts) == scenario.turns
    for agent in (key for key, item in scenario.agents.items() if item.permanent):
        pairs = zip(turns, transcripts.prompts, strict=True)
        single = [(turn, prompt) for turn, (name, prompt) in pairs if name == turn.agent == agent]
        assert {turn.memory for turn, _ in single} == {f"persist_{scenario.name}_{agent}"}
        for (before, old), (turn, new) in pairwise(single):
            assert new.startswith(old)
            assert (turn.kind, turn.origin) == ("extend", "hot")
            assert before.kept + before.new <= turn.kept <= before.kept + before.new + before.generated
    for turn in {turn.agent: turn for turn in reversed(turns)}.values():  # the first turn of each agent
        assert (turn.origin, turn.kept) == ("cold", 0)
        assert scenario.agents[turn.agent].permanent or turn.memory == f"coord_7f_{turn.agent}"


def test_a_temporary_agent_remembers_within_a_phase(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\nagents: {a: {system: I am a, permanent: false}}\n"
        "phases: [{name: one, participants: [a], rounds: 2}, {name: two, participants: [a]}]\n"
    )
    scenario = find_scenario(str(file))
    with stage.memories(tmp_path / "rows") as memories:
        turns = list(stage.player(scenario, memories).play())
    assert [turn.origin for turn in turns] == ["cold", "hot", "cold"]
    assert turns[1].kind == "extend"
    assert not list((tmp_path / "rows").glob("*.safetensors"))


def test_a_second_run_reuses_rows_on_the_disk(stage: Stage, tmp_path: Path) -> None:
    first, _ = stage.play("handover", tmp_path, "1")
    names = sorted(path.name.partition("-")[0] for path in tmp_path.glob("*.safetensors"))
    assert names == ["persist_handover_robot_a", "persist_handover_robot_b"]
    second, _ = stage.play("handover", tmp_path, "2")
    warm = {turn.agent: turn for turn in reversed(second)}  # the first turn of each agent
    for agent in ("robot_a", "robot_b"):
        assert (warm[agent].origin, warm[agent].kind) == ("warm", "diverge") and warm[agent].kept > 50
    assert warm["visitor"].origin == "cold"
    assert all(turn.kind == "extend" for turn in second if turn not in warm.values())
    assert summarize(second)["saved_tokens"] > summarize(first)["saved_tokens"]


def test_a_run_that_stops_leaves_no_rows_of_temporary_agents(stage: Stage, tmp_path: Path) -> None:
    with stage.memories(tmp_path) as memories:
        playing = stage.player(find_scenario("handover"), memories).play()
        assert any(turn.agent == "visitor" for turn in playing)
        playing.close()
        assert memories.stats()["agents"] == 2
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("coord_")]


def test_tokens_with_a_newline_end_a_turn(stage: Stage) -> None:
    stops, tokenizer = stage.stops, stage.tokenizer
    assert set(tokenizer.all_special_ids) <= stops and set(tokenizer.encode("\n", add_special_tokens=False)) <= stops
    for token in range(len(tokenizer)):
        assert ("\n" in tokenizer.decode([token])) <= (token in stops)
    assert start_tokens(tokenizer) in ([], [tokenizer.bos_token_id])


def test_a_summary_sums_turns_and_agents(stage: Stage) -> None:
    turns, _ = stage.play("gossip")
    summary = summarize(turns)
    assert summary["turns"] == 20 and summary["hits"] == 16
    assert summary["kinds"]["extend"] >= 16 and sum(summary["kinds"].values()) == 20
    assert summary["prompt_tokens"] == sum(turn.kept + turn.new for turn in turns)
    assert summary["prompt_tokens"] == summary["saved_tokens"] + summary["prefill_tokens"]
    assert sum(sums["prefill_tokens"] for sums in summary["per_agent"].values()) == summary["prefill_tokens"]
    assert 0.5 < summary["saved"] < 1


def test_an_incomplete_line_is_no_turn(stage: Stage, tmp_path: Path) -> None:
    turns, _ = stage.play("handover")
    run = ScenarioFolder.create(tmp_path / "run", {})
    for turn in turns:
        run.commit(turn)
    with (run.path / TURNS_FILE).open("a") as stream:
        stream.write('{"index": 99, "te')
    stored = ScenarioFolder.read(run.path)
    assert [(turn.id, turn.text, turn.audience) for turn in stored] == [(t.id, t.text, t.audience) for t in turns]


Command = Callable[..., None]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """``keep-agent phases`` in a folder of its own."""

    def call(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["keep-agent", "phases", *arguments])
        main()

    monkeypatch.chdir(tmp_path)
    return call


SMALL: Sequence[str] = ("max_tokens=3", "eval.threads=1", "model.dtype=float32")


def test_the_command_prints_turns_and_their_costs(command: Command, capsys: Captured, tiny_model: Path) -> None:
    for folder in ("one", "two"):
        out = f"eval.out={folder}"
        command("handover", "--folder", "rows", "--bits", "8", f"model={tiny_model}", *SMALL, out)
        printed = capsys.readouterr().out
        (run,) = Path(folder).iterdir()
        lines = [json.loads(line) for line in (run / TURNS_FILE).read_text().splitlines()]
        summary = json.loads((run / SUMMARY).read_text())
        assert len(lines) == summary["turns"] == 14
        assert all(f"{line['name']}: {line['text']}  [" in printed for line in lines)
        assert all(text in printed for text in ("visit: Visitor, Robot B", f"{summary['saved_tokens']:,}", str(run)))
        assert (summary["config"]["bits"], summary["config"]["model"]["name"]) == (8, str(tiny_model))
        assert lines[0]["origin"] == ("cold" if folder == "one" else "warm")
    assert len(list(Path("rows").glob("*.safetensors"))) == 2


@pytest.mark.slow
def test_a_killed_run_leaves_whole_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "keep_agent.cli", "phases", "gossip", "eval.out=out", "eval.threads=1"]
    process = subprocess.Popen([*command, "--folder", "rows"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    while len(lines_of(tmp_path)) < 7 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    assert process.wait() != 0
    (run,) = (tmp_path / "out").iterdir()
    lines = lines_of(tmp_path)
    assert len(ScenarioFolder.read(run)) == len(lines) >= 7 and lines[-1].endswith(b"\n")
    assert not (run / SUMMARY).exists()
    subprocess.run([*command, "--folder", "rows", "max_tokens=1"], cwd=tmp_path, stdout=subprocess.DEVNULL, check=True)
    later = max((tmp_path / "out").iterdir(), key=lambda path: path.stat().st_mtime)
    assert ScenarioFolder.read(later)[0].origin == "warm"


def lines_of(folder: Path) -> list[bytes]:
    return [line for file in folder.glob(f"out/*/{TURNS_FILE}") for line in file.read_bytes().splitlines(keepends=True)]


def test_without_a_scenario_the_command_lists_all(command: Command, capsys: Captured) -> None:
    command()
    printed = capsys.readouterr().out
    assert all(name in printed for name in shipped()) and "visitor*" in printed


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("chess", "there is no scenario 'chess'"),
        ("gossip colour=red", "colour"),
        ("gossip max_tokens=0", "max_tokens=0 does not work"),
        ("gossip model=/nowhere", "model=/nowhere is not a configured model"),
        ("gossip --folder file/rows", "name a place that exists"),
    ],
)
def test_an_invalid_command_leaves_no_run(command: Command, capsys: Captured, arguments: str, problem: str) -> None:
    Path("file").touch()
    with pytest.raises(SystemExit) as stop:
        command(*arguments.split())
    error_text = capsys.readouterr().err
    assert stop.value.code == 2 and problem in error_text and error_text.count("\n") == 1
    assert not Path("outputs").exists()


def test_an_agent_with_an_open_prompt_cannot_play(stage: Stage) -> None:
    with stage.memories() as memories:
        memories.open("persist_gossip_ada", "busy")
        with pytest.raises(ConfigError, match="open prompt|is not open"):
            next(stage.player(find_scenario("gossip"), memories).play())


def test_a_prompt_beyond_the_models_positions_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    model, coder = from_config(small_config(len(tokenizer), 128), torch.float32, seed=3), TokenizerCoder(tokenizer)
    turns: list[Turn] = []
    with TransformersEngine(model) as engine, AgentMemories(engine, coder, threshold=REUSE) as memories:
        player = Player(find_scenario("gossip"), memories, frozenset(), "7f", 500)
        with pytest.raises(TooLongError, match="this model accepts at most 127; shorten it"):
            turns.extend(player.play())
    assert all(turn.kept + turn.new + turn.generated <= 128 for turn in turns)
