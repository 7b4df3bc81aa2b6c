"""Test oracle: VirtualHome's own graph executors, `evolving_graph` of the PyPI package virtualhome.

The package as a whole cannot be imported on Python 3.11. Its executors are pure Python: they are located through the
distribution's metadata and loaded under another name. With explicit node ids they need none of the resource files that
the wheel lacks.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

from envs.wah.action import Action

VERSION = "2.3.0"
Fact = tuple[int, str, int]  # an edge (from, relation, to), or a state of a node (node, state, 0)
_FOLDER = "virtualhome/simulation/evolving_graph"
_NAME = "evolving_graph_of_virtualhome"
# Checks by executor; "" is the module itself. The check of grabbing stays on: our world refuses the same.
_CHECKS = (
    ("WalkExecutor", "check_walk"), ("SitExecutor", "check_sittable"), ("OpenExecutor", "check_openable"),
    ("SwitchExecutor", "check_switchable"), ("", "_check_puttable"),
)  # fmt: skip


def require_oracle() -> None:
    """Skip if the executors are not installed."""
    try:
        version = distribution("virtualhome").version
    except PackageNotFoundError:
        version = "none"
    if version != VERSION:
        pytest.skip(f"needs virtualhome {VERSION}, found {version}: pip install --no-deps virtualhome=={VERSION}")


@cache
def _executors() -> ModuleType:
    """Import the module `evolving_graph.execution` with the modules beside it."""
    package = ModuleType(_NAME)
    package.__path__ = [str(Path(str(distribution("virtualhome").locate_file(_FOLDER))))]
    sys.modules[_NAME] = package
    return importlib.import_module(f"{_NAME}.execution")


class Oracle:
    """A household in VirtualHome's executors; the graph has one character."""

    def __init__(self, graph: Mapping[str, Any]) -> None:
        self._code = _executors()
        inner = self._code.EnvironmentGraph(dict(graph))
        self._state = self._code.EnvironmentState(inner, {}, instance_selection=True)
        self._names = {row["id"]: row["class_name"] for row in graph["nodes"]}
        self._edges = {(row["from_id"], row["relation_type"], row["to_id"]) for row in graph["edges"]}

    def allows(self, action: Action) -> bool:
        """Return whether the executors accept an action, without executing it."""
        return self._run(action, modify=False) is not None

    def do(self, action: Action) -> bool:
        """Execute an action with its checks off if necessary; return False if even then it has no effect."""
        state = self._run(action)
        if state is None:
            with ExitStack() as stack:
                for owner, check in _CHECKS:
                    holder = getattr(self._code, owner) if owner else self._code
                    stack.enter_context(patch.object(holder, check, return_value=True))
                state = self._run(action)
        self._state = state or self._state
        return state is not None

    def facts(self) -> set[Fact]:
        """Return all edges and states, as `EnvironmentState.to_dict`, but ten times as fast."""
        new, removed = (
            self._changed(edges) for edges in (self._state._new_edges_from, self._state._removed_edges_from)
        )
        states = {(node.id, state._name_, 0) for node in self._state.get_nodes() for state in node.states}
        return (self._edges | new) - removed | states

    @staticmethod
    def _changed(edges: Mapping[Any, set[int]]) -> set[Fact]:
        return {(source, word._name_, target) for (source, word), targets in edges.items() for target in targets}

    def amend(self, removed: Iterable[Fact], new: Iterable[Fact]) -> None:
        """Remove facts and add new ones."""
        relations, states = self._code.Relation.__members__, self._code.State.__members__
        for facts, change, edit in (
            (removed, self._state.delete_edge, set.discard),
            (new, self._state.add_edge, set.add),
        ):
            for source, word, target in facts:
                if target:
                    change(self._state.get_node(source), relations[word], self._state.get_node(target))
                else:
                    node = self._state.get_node(source).copy()
                    edit(node.states, states[word])
                    self._state.change_node(node)

    def _run(self, action: Action, modify: bool = True) -> Any:
        """Return the state after one script line; None if it is refused."""
        things = [thing for thing in (action.thing, action.place) if thing]
        parts = [self._code.ScriptObject(self._names[thing], thing) for thing in things]
        line = self._code.ScriptLine(self._code.Action[action.verb.upper()], parts, 1)
        call = self._code.ScriptExecutor.call_action_method
        script, info = self._code.Script([line]), self._code.ExecutionInfo()
        return next(call(script, self._state, info, 0, modify, in_place=modify), None)
