"""JSON routes: answers, and errors with a text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from keep_agent.viewer.json_routes import data_router
from keep_agent.viewer.runs import Library
from keep_agent.viewer.step_model import step_view
from tests.keep_agent.viewer.traces import opening, run_of, step, write


def client(root: Path) -> TestClient:
    app = FastAPI()
    app.include_router(data_router(Library(root), "/data"))
    return TestClient(app)


def test_step_is_the_view_of_the_step_model(keep_run: Path) -> None:
    run = run_of(keep_run)
    for key, episode in run.index.refresh().items():
        answer = client(keep_run).get("/data/step", params={"run": ".", "episode": key, "step": 1})
        assert answer.json() == json.loads(step_view(run, episode, 1).to_json())


def test_growing_run_is_read_in_parts(tmp_path: Path) -> None:
    write(tmp_path, [opening(), step()])
    http, query = client(tmp_path), {"run": ".", "episode": "e"}
    assert http.get("/data/episode", params=query).json()["steps"] == 1
    with (tmp_path / "trace.jsonl").open("a") as stream:
        stream.write(json.dumps(step(1, skill="done")) + "\n" + '{"v": 1, "ev')
    later = http.get("/data/episode", params={**query, "since": 1}).json()
    assert (later["steps"], [outline["skill"] for outline in later["outlines"]], later["problem"]) == (2, ["done"], "")
    assert http.get("/data/episodes").json()[0]["steps"] == 2


def test_damaged_line_is_a_problem_beside_the_valid_steps(tmp_path: Path) -> None:
    write(tmp_path, [opening(), step(), "no json"])
    body = client(tmp_path).get("/data/episode", params={"run": ".", "episode": "e"}).json()
    assert body["steps"] == 1
    assert "trace.jsonl:3 is not JSON" in body["problem"]


@pytest.mark.parametrize(
    ("route", "query", "text"),
    [
        ("episode", {"run": "../x"}, "no run '../x'"),
        ("episode", {"episode": "f"}, "no episode 'f'"),
        ("step", {"step": 9}, "none has number 9"),
        ("step", {"step": -1}, "none has number -1"),
        ("picture", {"step": 0}, "no picture"),
        ("picture", {"step": 1}, "is no picture in"),
    ],
)
def test_missing_content_is_an_error(route: str, query: dict, text: str, tmp_path: Path) -> None:
    write(tmp_path, [opening(), step(), step(1, frame="../../etc/passwd")])
    answer = client(tmp_path).get(f"/data/{route}", params={"run": ".", "episode": "e", "step": 0} | query)
    assert answer.status_code == 404
    assert text in answer.json()["detail"]


def test_pictures_are_served_by_step(random_run: Path) -> None:
    http, key = client(random_run), next(iter(run_of(random_run).index.refresh()))
    for number in (-1, 0, 1):
        answer = http.get("/data/picture", params={"run": ".", "episode": key, "step": number})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
        assert answer.content.startswith(b"\x89PNG")
