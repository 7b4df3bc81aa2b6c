"""Data of Watch-And-Help, with a trace recorded in the real simulator: a goal and 59 consecutive graphs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from envs.wah.data.formats import read_graph
from envs.wah.graph import Graph


@dataclass(frozen=True, slots=True)
class Trace:
    """A goal and one graph per action; edges to nodes that the record lacks are left out."""

    goal: tuple[tuple[str, int], ...]
    graphs: list[Graph]


@pytest.fixture(scope="session")
def wah_data(data_root: Path) -> Callable[[str], Path]:
    """Return a function that returns the path of a file or folder of the data, or skips the test."""

    def path_of(name: str) -> Path:
        if not (path := data_root / "wah" / name).exists():
            pytest.skip(f"needs {path}: KEEP_AGENT_DATA names a folder without it")
        return path

    return path_of


@pytest.fixture(scope="session")
def trace(wah_data: Callable[[str], Path]) -> Trace:
    record = json.loads(gzip.decompress(wah_data("traces/test_58_unity_trace.json.gz").read_bytes()))
    for content in record["graphs"]:
        ids = {node["id"] for node in content["nodes"]}
        content["edges"] = [edge for edge in content["edges"] if {edge["from_id"], edge["to_id"]} <= ids]
    return Trace(tuple(record["goal"].items()), [read_graph(content) for content in record["graphs"]])
