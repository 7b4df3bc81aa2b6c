"""Expressions in a game's grammar: names of things put together, read here instead of run as Python.

A game of ALFWorld carries the grammar of its own text. TextWorld hands what stands there in braces to ``eval``, so a
file could run any code. Games only read attributes of the things in a sentence, join texts, and choose the first that
is not empty: ``{o.indefinite + ' ' + o.name}``, ``{r.name or r.id}``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from keep_agent.errors import DataError

LONGEST = 1000  # characters of an expression


def read_expression(text: str, variables: Mapping[str, Any]) -> Any:
    """The value of an expression. Raises DataError for one that does anything else, or names what is not there."""
    if len(text) > LONGEST:
        raise DataError(f"an expression of {len(text)} characters in a game's grammar; restore the game's file")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, variables)
    except (SyntaxError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(
            f"{text!r:.80} in a game's grammar is not run ({error}); restore the game's file: names of things, joined "
            "by + or chosen by or, are all that it may hold"
        ) from error


def _value(node: ast.expr, variables: Mapping[str, Any]) -> Any:
    """Raises ValueError for a kind of node that is not read."""
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
    raise ValueError(f"{type(node).__name__} is none of them")


def _text(value: Any) -> str | None:
    """Raises ValueError for what is neither text nor nothing: no method of an object is reached."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} is no text")
    return value
