"""Viewer in another application, in a process of its own, since NiceGUI mounts once per process."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path

from tests.keep_agent.viewer.traces import EVIL, opening, step, write

SCRIPT = """
import json, sys, threading
from pathlib import Path
from fastapi import FastAPI
from fastapi.testclient import TestClient
from keep_agent.errors import ConfigError
from keep_agent.viewer.runs import RunLibrary
from keep_agent.viewer.server import mount

entered, go, runs = threading.Event(), threading.Event(), RunLibrary.runs

def slow_runs(library):
    entered.set()
    go.wait()
    return runs(library)

app = FastAPI()
app.get("/api")(lambda: "other")
mount(app, lambda: Path(sys.argv[1]), "/look")
answers = {}
with TestClient(app) as http:
    RunLibrary.runs = slow_runs
    for page in ("/look/episode?run=.&episode=e", "/look/"):
        entered.clear(), go.clear()
        opening = threading.Thread(target=http.get, args=(page,))
        opening.start()
        entered.wait()
        answers["while " + page] = (http.get("/api").status_code, "")
        go.set(), opening.join()
    RunLibrary.runs = runs
    for path in ("/look/", "/look", "/look/episode?run=.&episode=e", "/look/episode?run=..&episode=e", "/api"):
        answer = http.get(path)
        answers[path] = (answer.status_code, answer.text)
try:
    mount(FastAPI(), Path("."))
except ConfigError as error:
    answers["again"] = (0, str(error))
print(json.dumps(answers))
"""


def test_viewer_is_mounted_beside_other_routes(tmp_path: Path) -> None:
    write(tmp_path, [opening(), step(instruction=EVIL)])
    process = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True)
    answers = json.loads(process.stdout.splitlines()[-1])
    assert {path: code for path, (code, _) in answers.items()} == dict.fromkeys(answers, 200) | {"again": 0}
    assert answers["/api"][1] == '"other"' and "has served a viewer before" in answers["again"][1]
    assert "no run '..'" in html.unescape(answers["/look/episode?run=..&episode=e"][1])
    page = answers["/look/"][1]
    assert "onerror" in page, "the hostile instruction is in the list"
    assert EVIL not in page and not re.search(r"<img[^>]*onerror", page)
    assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page)
