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
from keep_agent.robots.mcap.messages import CHANNELS, entry_messages, event_messages
from keep_agent.robots.mcap_log import McapLog, episode_of, write_episode
from keep_agent.robots.scripted import ScriptedPlanning
from keep_agent.robots.task.events import Executed, Feedback, Planned
from keep_agent.rollout.trace import agent_entry

PIXEL = b"\x89PNG\r\n"


class Messages:
    """Messages of an MCAP file by topic, each valid against the schema in the file."""

    def __init__(self, data: bytes) -> None:
        self.times: dict[str, list[int]] = defaultdict(list)  # nanoseconds
        self.contents: dict[str, list[dict]] = defaultdict(list)
        for schema, channel, message in make_reader(BytesIO(data)).iter_messages():
            assert (schema.encoding, channel.message_encoding) == ("jsonschema", "json")
            content = json.loads(message.data)
            jsonschema_rs.validator_for(json.loads(schema.data)).validate(content)
            self.times[channel.topic].append(message.log_time)
            self.contents[channel.topic].append(content)

    def values(self, topic: str, field: str) -> list:
        return [content[field] for content in self.contents[topic]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluate the planner in two episodes."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        options = ["planner=keep", "eval.episodes=2", f"eval.out={folder}", "env.skills=grounded"]
        patch.setattr(sys, "argv", ["eval.alfred", *options, "env.observability=partial", "env.max_steps=4"])
        with pytest.raises(SystemExit) as end:
            eval_alfred()
    assert not end.value.code
    return next(folder.iterdir())


def test_command_converts_an_episode_by_its_id(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries, out = episode_of(run, "1"), tmp_path / "new" / "episode.mcap"
    episode = entries[0]["episode"]
    monkeypatch.setattr(sys, "argv", ["mcap_log", str(run), "--episode", episode, "--out", str(out)])
    mcap_log.main()
    assert f"{len(entries)} entries of {episode}" in capsys.readouterr().err
    messages = Messages(out.read_bytes())
    assert set(messages.values("/keep/decision", "episode")) == {episode}
    steps = [entry for entry in entries if entry["event"] == "step"]
    for field in ("skill", "ok"):
        assert messages.values("/keep/decision", field) == [step[field] for step in steps]
    assert messages.values("/keep/facts", "facts") == [step["facts"] for step in steps if step["facts"]]
    memory = messages.contents["/keep/memory"][-1]
    assert 0 < memory["hits"] <= memory["tokens"] == len(steps[-1]["token_ids"])
    assert steps[0]["instruction"] in messages.values("/keep/log", "message")[0]
    assert all(later - earlier >= 10**9 for earlier, later in pairwise(messages.times["/keep/decision"]))
    assert [file.name for file in out.parent.iterdir()] == [out.name]


@pytest.mark.parametrize(("episode", "text"), [("unknown", "no episode 'unknown'"), ("7", "it has 2")])
def test_unknown_episode_or_a_folder_without_a_trace_is_an_error(run: Path, episode: str, text: str) -> None:
    with pytest.raises(DataError, match=text):
        episode_of(run, episode)
    with pytest.raises(DataError, match="trace.jsonl"):
        episode_of(run.parent, episode)


def test_pictures_and_crashes_are_converted(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "a.png").write_bytes(PIXEL)
    crash = {"v": 1, "event": "crash", "episode": "e", "task": 0, "traceback": "it broke", "frame": "frames/a.png"}
    without_picture = crash | {"traceback": "again", "frame": "frames/missing.png"}
    write_episode([crash, without_picture], tmp_path / "out.mcap", tmp_path)
    messages = Messages((tmp_path / "out.mcap").read_bytes())
    [picture] = messages.contents["/keep/frame"]
    assert (base64.b64decode(picture["data"]), picture["format"]) == (PIXEL, "png")
    assert messages.values("/keep/log", "message") == ["it broke", "again"]
    assert messages.values("/keep/log", "level") == [4, 4]


def test_trace_of_an_agent_begins_with_its_name() -> None:
    assert [key for key, _ in entry_messages(agent_entry("kitchen"), 0, lambda name: None)] == ["log"]


def test_running_session_is_logged(tmp_path: Path) -> None:
    robot, path = symbolic(), tmp_path / "live.mcap"
    with mcap_log.mcap_log(path) as log:
        session = RobotSession(ScriptedPlanning(robot), robot, limits=Limits(period=0.01), watch=log)
        report = session.run(robot.task.instruction)
    messages = Messages(path.read_bytes())
    assert messages.values("/keep/decision", "skill") == [*(step.skill for step in report.steps), "done"]
    texts = messages.values("/keep/log", "message")
    assert (texts[0], texts[-1]) == (report.instruction, str(report))
    facts = [fact for row in messages.values("/keep/facts", "facts") for fact in row]
    assert any(fact["category"] == "agent" for fact in facts) and "/keep/memory" not in messages.times


def test_failure_without_a_reason_is_a_warning_with_a_text() -> None:
    live = event_messages(Executed("wave", Outcome(False), 1.0), 0)
    step = {"event": "step", "episode": "e", "facts": [], "skill": "wave", "ok": False, "message": ""}
    for messages in (live, entry_messages(step, 0, lambda name: None)):
        [log] = [content for key, content in messages if key == "log"]
        assert (log["level"], log["message"]) == (3, "it did not work")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_log_of_an_interrupted_task_is_complete(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "half.mcap"
    with pytest.raises(error), mcap_log.mcap_log(path) as log:
        log(Feedback("wave", "begins"))
        raise error
    with pytest.raises(ConfigError, match="already exists"), mcap_log.mcap_log(path):
        pass
    assert len(Messages(path.read_bytes()).times["/keep/log"]) == 1, "a second log does not replace it"


def test_failed_conversion_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"entry 1 of the episode is not an entry of a trace \(KeyError"):
        write_episode([{"event": "step"}], tmp_path / "half.mcap")
    assert not list(tmp_path.iterdir())


def test_infinite_score_is_left_out() -> None:
    """JSON has no infinity, and Foxglove refuses a message with one."""
    decision = Decision("wave", (("wave", -0.5), ("nod", float("-inf"))), number=1)
    [(_, message)] = event_messages(Planned(decision, 0.1), 0)
    assert message["scores"] == [{"skill": "wave", "score": -0.5}]


def test_events_after_close_are_dropped() -> None:
    stream = BytesIO()
    log = McapLog(stream)
    log(Feedback("wave", "begins"))
    log.close()
    data = stream.getvalue()
    log(Feedback("wave", "goes on"))
    log.close()
    assert stream.getvalue() == data and len(Messages(data).times["/keep/log"]) == 1


def test_schemas_refuse_an_empty_message() -> None:
    for schema in CHANNELS.values():
        with pytest.raises(jsonschema_rs.ValidationError):
            jsonschema_rs.validator_for(schema).validate({})
