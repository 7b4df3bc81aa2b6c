from __future__ import annotations

import base64
import json
import sys
from collections import defaultdict
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import jsonschema_rs
import pytest
from mcap.reader import make_reader

from envs.outcome import Outcome
from eval.alfred import main as eval_alfred
from keep_agent.agent.types import Decision
from keep_agent.errors import ConfigError, DataError
from keep_agent.robots import Limits, RobotSession, mcap_log, symbolic
from keep_agent.robots.mcap.messages import CHANNELS, of_entry, of_event
from keep_agent.robots.mcap_log import McapLog, episode_of, write_episode
from keep_agent.robots.scripted import ScriptedPlanning
from keep_agent.robots.task.events import Executed, Feedback, Planned
from keep_agent.rollout.trace import agent_entry

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def messages(data: bytes) -> dict[str, list[tuple[int, dict]]]:
    """By topic, with their times in nanoseconds; each is valid against the schema that the file has for it."""
    found: dict[str, list[tuple[int, dict]]] = defaultdict(list)
    for schema, channel, message in make_reader(BytesIO(data)).iter_messages():
        assert (schema.encoding, channel.message_encoding) == ("jsonschema", "json")
        content = json.loads(message.data)
        jsonschema_rs.validator_for(json.loads(schema.data)).validate(content)
        found[channel.topic].append((message.log_time, content))
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes of the real planner."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        options = ["planner=keep", "eval.episodes=2", f"eval.out={folder}", "env.skills=grounded"]
        patch.setattr(sys, "argv", ["eval.alfred", *options, "env.observability=partial", "env.max_steps=4"])
        with pytest.raises(SystemExit) as ended:
            eval_alfred()
    assert not ended.value.code
    return next(folder.iterdir())


def test_an_episode_of_the_planner(run: Path, tmp_path: Path) -> None:
    entries = episode_of(run, "1")
    out = tmp_path / "new" / "episode.mcap"
    assert write_episode(entries, out, run) == len(entries)
    found = messages(out.read_bytes())
    steps = [entry for entry in entries if entry["event"] == "step"]
    assert [content["skill"] for _, content in found["/keep/decision"]] == [step["skill"] for step in steps]
    assert [content["ok"] for _, content in found["/keep/decision"]] == [step["ok"] for step in steps]
    assert [content["facts"] for _, content in found["/keep/facts"]] == [s["facts"] for s in steps if s["facts"]]
    memory = found["/keep/memory"][-1][1]
    assert memory["tokens"] == len(steps[-1]["token_ids"])
    assert 0 < memory["hits"] <= memory["tokens"]
    assert steps[0]["instruction"] in found["/keep/log"][0][1]["message"]
    times = [time for time, _ in found["/keep/decision"]]
    assert all(later - earlier >= 10**9 for earlier, later in pairwise(times))
    assert [file.name for file in out.parent.iterdir()] == [out.name]


def test_the_command_writes_an_episode_by_its_id(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = episode_of(run, "1")[0]["episode"]
    out = tmp_path / "one.mcap"
    monkeypatch.setattr(sys, "argv", ["mcap_log", str(run), "--episode", wanted, "--out", str(out)])
    mcap_log.main()
    assert wanted in capsys.readouterr().err
    assert all(content["episode"] == wanted for _, content in messages(out.read_bytes())["/keep/decision"])


@pytest.mark.parametrize(("episode", "what"), [("nobody", "no episode 'nobody'"), ("7", "it has 2")])
def test_an_episode_that_is_none_is_named(run: Path, episode: str, what: str) -> None:
    with pytest.raises(DataError, match=what):
        episode_of(run, episode)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="trace.jsonl"):
        episode_of(tmp_path)


def test_pictures_and_crashes(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "a.png").write_bytes(PIXEL)
    told = {"v": 1, "event": "crash", "episode": "e", "task": 0, "traceback": "it broke", "frame": "frames/a.png"}
    lost = {"v": 1, "event": "crash", "episode": "e", "task": 0, "traceback": "again", "frame": "frames/gone.png"}
    write_episode([told, lost], tmp_path / "out.mcap", tmp_path)
    found = messages((tmp_path / "out.mcap").read_bytes())
    [(_, picture)] = found["/keep/frame"]
    assert (base64.b64decode(picture["data"]), picture["format"]) == (PIXEL, "png")
    assert [(content["message"], content["level"]) for _, content in found["/keep/log"]] == [
        ("it broke", 4),
        ("again", 4),
    ]


def test_an_agents_trace_begins_with_its_name() -> None:
    assert [key for key, _ in of_entry(agent_entry("kitchen"), 0, lambda name: None)] == ["log"]


def test_a_session_is_logged_as_it_goes(tmp_path: Path) -> None:
    robot = symbolic()
    path = tmp_path / "live.mcap"
    with mcap_log.mcap_log(path) as log:
        session = RobotSession(ScriptedPlanning(robot), robot, limits=Limits(period=0.01), watch=log)
        report = session.run(robot.task.instruction)
    found = messages(path.read_bytes())
    skills = [content["skill"] for _, content in found["/keep/decision"]]
    assert skills == [*(step.skill for step in report.steps), "done"]
    said = [content["message"] for _, content in found["/keep/log"]]
    assert said[0] == report.instruction
    assert said[-1] == str(report)
    assert any(fact["category"] == "agent" for _, content in found["/keep/facts"] for fact in content["facts"])
    assert "/keep/memory" not in found


def test_a_failure_without_a_reason_is_a_warning_that_says_so() -> None:
    live = of_event(Executed("wave", Outcome(False), 1.0), 0)
    step = {"event": "step", "episode": "e", "facts": [], "skill": "wave", "ok": False, "message": ""}
    for told in (live, of_entry(step, 0, lambda name: None)):
        log = [content for key, content in told if key == "log"]
        assert [(one["level"], one["message"]) for one in log] == [(3, "it did not work")]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_log_of_a_task_that_was_broken_off_is_kept(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "half.mcap"
    with pytest.raises(error), mcap_log.mcap_log(path) as log:
        log(Feedback("wave", "begins"))
        raise error
    assert len(messages(path.read_bytes())["/keep/log"]) == 1
    with pytest.raises(ConfigError, match="is there already"), mcap_log.mcap_log(path):
        pass
    assert len(messages(path.read_bytes())["/keep/log"]) == 1, "an earlier log is not lost"


def test_an_episode_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"entry 1 of the episode is no entry of a trace \(KeyError"):
        write_episode([{"event": "step"}], tmp_path / "half.mcap")
    assert not list(tmp_path.iterdir())


def test_a_score_that_is_no_number_is_left_out() -> None:
    """JSON has no infinity, and Foxglove refuses a message with one."""
    decision = Decision("wave", (("wave", -0.5), ("nod", float("-inf"))), number=1)
    [(_, message)] = of_event(Planned(decision, 0.1), 0)
    assert message["scores"] == [{"skill": "wave", "score": -0.5}]


def test_what_comes_after_the_end_is_dropped() -> None:
    stream = BytesIO()
    log = McapLog(stream)
    log(Feedback("wave", "begins"))
    log.close()
    size = len(stream.getvalue())
    log(Feedback("wave", "goes on"))
    log.close()
    assert len(stream.getvalue()) == size
    assert len(messages(stream.getvalue())["/keep/log"]) == 1


def test_schemas_refuse_what_they_do_not_describe() -> None:
    for channel in CHANNELS.values():
        with pytest.raises(jsonschema_rs.ValidationError):
            jsonschema_rs.validator_for(json.loads(channel.text)).validate({})
