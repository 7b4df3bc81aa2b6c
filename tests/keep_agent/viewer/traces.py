"""Synthetic trace files for states that no recorded run has."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from keep_agent.rollout.trace import SCHEMA
from keep_agent.viewer.history import History
from keep_agent.viewer.runs import Run, RunLibrary
from keep_agent.viewer.trace_index import EpisodeIndex

EVIL = "<img src=x onerror=\"document.title='broken'\"></script><script>document.title='broken'</script>"


def opening(episode: str = "e", **fields: Any) -> dict[str, Any]:
    return {"v": SCHEMA, "event": "episode", "episode": episode, "index": 0, "skills": "lota", "tasks": []} | fields


def step(number: int = 0, episode: str = "e", **fields: Any) -> dict[str, Any]:
    plain = {"task": 0, "step": number, "instruction": "Go.", "facts": [], "skill": "wait", "ok": True, "message": ""}
    return {"v": SCHEMA, "event": "step", "episode": episode, "scores": []} | plain | fields


def end(success: bool, task: int = 0, episode: str = "e") -> dict[str, Any]:
    outcome = {"id": "t", "type": "x", "instruction": "Go.", "success": success, "met": int(success), "total": 1}
    outcome |= {"steps": 1, "expert_steps": 1, "stop": "success" if success else "max_steps"}
    return {"v": SCHEMA, "event": "task", "episode": episode, "task": task} | outcome


def crash(episode: str = "e") -> dict[str, Any]:
    return {"v": SCHEMA, "event": "crash", "episode": episode, "task": 0, "traceback": "Traceback: it broke"}


def prompt(**fields: Any) -> dict[str, Any]:
    """Return the fields of a step with a model: two segments of three rows each, two layers."""
    units = [{"kind": "static_group", "start": 1, "hit": True}, {"kind": "segment", "start": 4, "hit": False}]
    segments = [{"id": id, "start": start, "stop": start + 3, "last_layer": 1} for id, start in (("a", 1), ("b", 4))]
    plain = {
        "token_ids": list(range(9)), "context": 1, "query": 7, "segments": segments,
        "units": [unit | {"tokens": 3, "block": "0123456789abcdef"} for unit in units],
        "hops": [{"layer": 0, "hops": 1, "edges": [["", "a", 0.2], ["a", "b", 0.5]]}],
        "active_rows": [9, 8], "loads": [], "computes": [], "flips": [], "cold": False,
        "timings": {"ttft": 1.0, "score": 2.0},
    }  # fmt: skip
    return plain | fields


def write(folder: Path, entries: Iterable[Any]) -> Path:
    """Write a run folder with a trace alone; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    (folder / "trace.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def run_of(folder: Path) -> Run:
    (run,) = RunLibrary(folder).runs()
    return run


def first(run: Run) -> EpisodeIndex:
    return next(iter(run.index.refresh().values()))


def append(run: Path, *entries: Any) -> None:
    """Append entries to the trace of a run, or bytes as they are."""
    with (run / "trace.jsonl").open("ab") as stream:
        for entry in entries:
            stream.write(entry if isinstance(entry, bytes) else json.dumps(entry).encode() + b"\n")


def write_hostile(folder: Path) -> Path:
    """Write a run whose texts are markup."""
    entry = step(0, EVIL, skill=EVIL, message=EVIL, instruction=EVIL, extra={"written": [["a", EVIL]]}, **prompt())
    fact = {"id": EVIL, "category": "object", "type": "x", "states": [EVIL]}
    return write(folder, [opening(EVIL), entry | {"facts": [fact], "scores": [[EVIL, -1.0]]}])


def history_of(*changes: tuple[int, str, Any]) -> History[Any]:
    """Return the history of changes (step, id, value)."""
    history: History[Any] = History()
    for change in changes:
        history.add(*change)
    return history
