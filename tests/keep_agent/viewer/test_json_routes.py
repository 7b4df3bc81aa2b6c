from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from keep_agent.viewer.json_routes import data_router
from keep_agent.viewer.runs import RunLibrary
from keep_agent.viewer.step_model import step_view
from tests.keep_agent.viewer.traces import append, first, opening, prompt, run_of, step, write


def client(root: Path) -> TestClient:
    app = FastAPI()
    app.include_router(data_router(RunLibrary(root), "/data"))
    return TestClient(app)


def test_step_is_the_view_of_the_step_model(keep_run: Path) -> None:
    run, http = run_of(keep_run), client(keep_run)
    for key, episode in run.index.refresh().items():
        for number in range(len(episode.positions)):
            answer = http.get("/data/step", params={"run": ".", "episode": key, "step": number})
            assert answer.json() == json.loads(json.dumps(asdict(step_view(run, episode, number))))


def test_growing_run_is_read_up_to_a_damaged_line(tmp_path: Path) -> None:
    write(tmp_path, [opening(), step()])
    http, query = client(tmp_path), {"run": ".", "episode": "e"}
    assert http.get("/data/episode", params=query).json()["steps"] == 1
    append(tmp_path, step(1, skill="done", **prompt()), b'{"v": 1, "ev')
    later = http.get("/data/episode", params={**query, "since": 1}).json()
    assert (later["steps"], [outline["skill"] for outline in later["outlines"]], later["problem"]) == (2, ["done"], "")
    assert 0 < later["outlines"][0]["computed"] < 1
    assert http.get("/data/episodes").json()[0]["steps"] == 2
    append(tmp_path, b"\n")
    damaged = http.get("/data/episode", params=query).json()
    assert damaged["steps"] == 2 and "trace.jsonl:4 is not JSON" in damaged["problem"]


@pytest.mark.parametrize(
    ("route", "query", "text"),
    [
        ("episode", {"run": "../x"}, "no run '../x'"),
        ("episode", {"episode": "f"}, "no episode 'f'"),
        ("step", {"step": 3}, "has 3 steps, from 0, but no step 3"),
        ("step", {"step": -1}, "has 3 steps, from 0, but no step -1"),
        ("picture", {"step": 0}, "no picture"),
        ("picture", {"step": 1}, "is not a picture in"),
        ("picture", {"step": 2}, "is missing"),
    ],
)
def test_missing_content_is_an_error(route: str, query: dict, text: str, tmp_path: Path) -> None:
    write(tmp_path, [opening(), step(), step(1, frame="../../etc/passwd"), step(2, frame="frames/e/0009.jpg")])
    answer = client(tmp_path).get(f"/data/{route}", params={"run": ".", "episode": "e", "step": 0} | query)
    assert answer.status_code == 404 and text in answer.json()["detail"]


def test_pictures_are_served_by_step(random_run: Path) -> None:
    http, key = client(random_run), first(run_of(random_run)).key
    for number in (-1, 0, 1):
        answer = http.get("/data/picture", params={"run": ".", "episode": key, "step": number})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
        assert answer.content.startswith(b"\x89PNG")
