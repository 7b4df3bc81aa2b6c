"""A trace recorded with the real simulator: the goal of one task and 59 consecutive graphs."""

from __future__ import annotations

import gzip
import json
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
def trace(data_root: Path) -> Trace:
    path = data_root / "wah" / "traces" / "test_58_unity_trace.json.gz"
    if not path.is_file():
        pytest.skip(f"needs {path}: KEEP_AGENT_DATA names a folder without it")
    record = json.loads(gzip.decompress(path.read_bytes()))
    for content in record["graphs"]:
        ids = {node["id"] for node in content["nodes"]}
        content["edges"] = [edge for edge in content["edges"] if {edge["from_id"], edge["to_id"]} <= ids]
    return Trace(tuple(record["goal"].items()), [read_graph(content) for content in record["graphs"]])
