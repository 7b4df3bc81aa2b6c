"""Expressions in a game's grammar, interpreted here instead of being run as Python.

A game of ALFWorld contains the grammar of its text. TextWorld passes expressions in braces to ``eval``, so that a file
could run any code. Games only need three operations: read an attribute of a thing, join texts, and choose the first
text that is not empty: ``{o.indefinite + ' ' + o.name}``, ``{r.name or r.id}``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from keep_agent.errors import DataError

LONGEST = 1000  # characters of an expression


def read_expression(text: str, variables: Mapping[str, Any]) -> Any:
    """Evaluate an expression. Raises DataError for any other operation and for unknown names."""
    if len(text) > LONGEST:
        raise DataError(f"an expression of {len(text)} characters in a game's grammar; restore the game's file")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, variables)
    except (SyntaxError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(
            f"{text!r:.80} in a game's grammar is not run ({error}); restore the game's file: an expression may only "
            "read names of things, join them with + and choose with or"
        ) from error


def _value(node: ast.expr, variables: Mapping[str, Any]) -> Any:
    """Evaluate a syntax node. Raises ValueError for a kind that is not allowed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return variables[node.id]
    if isinstance(node, ast.Attribute) and not node.attr.startswith("_"):
        return _text(getattr(_value(node.value, variables), node.attr))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(_value(node.left, variables)) + _text(_value(node.right, variables))
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        values = [_value(part, variables) for part in node.values]
        return next(filter(None, values), values[-1])
    raise ValueError(f"{type(node).__name__} is not allowed")


def _text(value: Any) -> str | None:
    """Return a text or None. Raises ValueError for any other value, so that no method of an object is reachable."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} is not a text")
    return value
