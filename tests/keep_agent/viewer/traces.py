"""Trace files written by hand, for what no run leaves behind."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from keep_agent.rollout.trace import SCHEMA
from keep_agent.viewer.runs import Library, Run

EVIL = "<img src=x onerror=\"document.title='broken'\"></script><script>document.title='broken'</script>"


def opening(episode: str = "e", **more: Any) -> dict[str, Any]:
    return {"v": SCHEMA, "event": "episode", "episode": episode, "index": 0, "skills": "lota", "tasks": []} | more


def step(number: int = 0, episode: str = "e", **more: Any) -> dict[str, Any]:
    plain = {"task": 0, "step": number, "instruction": "Go.", "facts": [], "skill": "wait", "ok": True, "message": ""}
    return {"v": SCHEMA, "event": "step", "episode": episode, "scores": []} | plain | more


def end(success: bool, task: int = 0, episode: str = "e") -> dict[str, Any]:
    outcome = {"id": "t", "type": "x", "instruction": "Go.", "success": success, "met": int(success), "total": 1}
    outcome |= {"steps": 1, "expert_steps": 1, "stop": "success" if success else "max_steps"}
    return {"v": SCHEMA, "event": "task", "episode": episode, "task": task} | outcome


def crash(episode: str = "e") -> dict[str, Any]:
    return {"v": SCHEMA, "event": "crash", "episode": episode, "task": 0, "traceback": "Traceback: it broke"}


def prompt(**more: Any) -> dict[str, Any]:
    """The fields of a step with a model: two segments of three rows each, two layers."""
    units = [_unit("static_group", 1, 3, True), _unit("segment", 4, 3, False)]
    segments = [_segment("a", 1, 4, 1), _segment("b", 4, 7, 1)]
    hops = [{"layer": 0, "hops": 1, "edges": [["", "a", 0.2], ["a", "b", 0.5]]}]
    plain = {"token_ids": list(range(9)), "context": 1, "query": 7, "units": units, "segments": segments}
    rest = {"active_rows": [9, 8], "hops": hops, "loads": [], "computes": [], "flips": [], "cold": False}
    return plain | rest | {"timings": {"ttft": 1.0, "score": 2.0}} | more


def _unit(kind: str, start: int, tokens: int, hit: bool) -> dict[str, Any]:
    return {"kind": kind, "start": start, "tokens": tokens, "hit": hit, "block": "0123456789abcdef"}


def _segment(id: str, start: int, stop: int, last_layer: int) -> dict[str, Any]:
    return {"id": id, "start": start, "stop": stop, "last_layer": last_layer}


def write(folder: Path, entries: Iterable[Any]) -> Path:
    """A run folder with a trace and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    (folder / "trace.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def run_of(folder: Path) -> Run:
    """The one run below a folder."""
    (run,) = Library(folder).runs()
    return run
