"""Engine of ALFWorld: TextWorld runs the PDDL games, ALFWorld gives the objects names such as "mug 2".

All effects and texts come from these two packages (alfworld 0.4, textworld 1.7); no rule is reimplemented here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from keep_agent.errors import ConfigError, DataError

EXTRA = "alfworld"
MAX_EXPRESSION = 1000  # characters of an expression in a game's grammar


class Engine:
    """Player of one game at a time. Loading a game takes about 1 s, a command 0.1 s."""

    def __init__(self) -> None:
        """Load the libraries. Raises ConfigError if ALFWorld or TextWorld is not installed."""
        self._player, self._renaming_player = _make_players()
        self._state: Any = None

    def load(self, game: Mapping[str, Any], name: str) -> str:
        """Begin a game and return its opening text. Raises DataError for a game that cannot be played."""
        try:
            with _restored_arguments():
                self._renaming_player.load(game)
                self._state = self._renaming_player.reset()
        except _GrammarError as error:
            raise DataError(f"{name} cannot be played: {error}") from error
        except (SystemExit, Exception) as error:  # parsers raise various errors, Fast Downward raises SystemExit
            raise DataError(f"{name} cannot be played ({type(error).__name__}: {error})") from error
        return self._state["feedback"]

    def do(self, command: str) -> str:
        """Send a command; return the game's answer. Raises DataError for a forbidden expression in the grammar."""
        try:
            self._state, _, _ = self._renaming_player.step(command)
        except _GrammarError as error:
            raise DataError(str(error)) from error
        return self._state["feedback"]

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands possible now."""
        return tuple(self._state["admissible_commands"])

    @property
    def won(self) -> bool:
        """Whether the goal holds now."""
        return bool(self._state["won"])

    def plan(self) -> list[str]:
        """Return the commands of Fast Downward's plan from the current state to the goal; empty if there is no plan."""
        return [command.strip() for command in self._player.plan()]


class _GrammarError(Exception):
    """Forbidden expression in a grammar; no ValueError, since TextWorld answers ValueErrors with "Nothing happens."."""


class EnginePool:
    """Pool of engines: each loads a library that the process can never unload, so engines are reused."""

    def __init__(self) -> None:
        self._idle: list[Engine] = []

    def acquire(self) -> Engine:
        """Return an idle engine, else a new one. Raises ConfigError if ALFWorld is not installed."""
        return self._idle.pop() if self._idle else Engine()

    def release(self, engine: Engine) -> None:
        self._idle.append(engine)


def _make_players() -> tuple[Any, Any]:
    """Return TextWorld's player with a method ``plan``, and ALFWorld's wrapper around it, which names the objects."""
    try:
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld import EnvInfos
        from textworld.envs import PddlEnv
        from textworld.envs.pddl import textgen
    except ImportError as error:
        raise ConfigError(f"ALFWorld's engine is missing ({error}): pip install 'keep-agent[{EXTRA}]'") from error

    def derive(symbol: Any, context: Mapping[str, Any] | None = None) -> list[Any]:
        variables = (context or symbol.context)["variables"]
        try:
            return [textgen.TerminalSymbol(read_expression(symbol.expression, variables))]
        except DataError as error:
            raise _GrammarError(str(error)) from error

    textgen.EvalSymbol.derive = derive  # replaces TextWorld's eval() of text from the game file

    class Player(PddlEnv):
        def plan(self) -> list[str]:
            """Plan from the current state. TextWorld's option ``policy_commands=True`` would plan at every step."""
            return self._pddl_state.replan(self._entity_infos)

    player = Player(EnvInfos(feedback=True, won=True, admissible_commands=True))
    return player, AlfredDemangler(player)


@contextmanager
def _restored_arguments() -> Iterator[None]:
    """Restore ``sys.argv`` after the block: Fast Downward's translator overwrites it."""
    arguments = sys.argv
    try:
        yield
    finally:
        sys.argv = arguments


def read_expression(text: str, variables: Mapping[str, Any]) -> Any:
    """Evaluate an expression in a game's grammar safely; TextWorld would pass it to ``eval``, which runs any code.

    The grammars only read an attribute of an object, join texts, and choose the first non-empty text:
    ``{o.indefinite + ' ' + o.name}``, ``{r.name or r.id}``. Raises DataError for anything else and for unknown names.
    """
    if len(text) > MAX_EXPRESSION:
        problem = f"has {len(text)} characters, but only {MAX_EXPRESSION} are allowed"
        raise DataError(f"an expression in a game's grammar {problem}; restore the game's file")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, variables)
    except (SyntaxError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(
            f"{text!r:.80} in a game's grammar is not run ({error}); restore the game's file: an expression may only "
            "read texts of objects, join them with + and choose with or"
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
