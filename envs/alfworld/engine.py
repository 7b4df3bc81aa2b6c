"""ALFWorld's own engine: TextWorld's player of PDDL games, and ALFWorld's names of things.

All that happens, and every sentence about it, is theirs (alfworld 0.4, textworld 1.7); no rule is repeated here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from envs.alfworld.expressions import read_expression
from keep_agent.errors import ConfigError, DataError

EXTRA = "alfworld"


class Engine:
    """Plays one game at a time. Loading takes about a second, a command a tenth of one."""

    def __init__(self) -> None:
        """Raises ConfigError where ALFWorld or TextWorld is not installed."""
        self._player, self._named = _make()
        self._state: Any = None

    def load(self, game: Mapping[str, Any], name: str) -> str:
        """Begin a game; returns its opening text. Raises DataError for one that cannot be played."""
        try:
            with _undisturbed():
                self._named.load(game)
                self._state = self._named.reset()
        except _Refused as refused:
            raise DataError(f"{name} cannot be played: {refused}") from refused
        except (SystemExit, Exception) as error:  # whatever parser gives up: Fast Downward's even ends the process
            raise DataError(f"{name} cannot be played ({type(error).__name__}: {error})") from error
        return self._state["feedback"]

    def do(self, command: str) -> str:
        """Say a command; returns the answer, "Nothing happens." if it cannot be done now.

        :raises DataError: the game's grammar holds what is not read; the command has been done by then
        """
        try:
            self._state, _, _ = self._named.step(command)
        except _Refused as refused:
            raise DataError(str(refused)) from refused
        return self._state["feedback"]

    @property
    def commands(self) -> tuple[str, ...]:
        """What can be done now."""
        return tuple(self._state["admissible_commands"])

    @property
    def won(self) -> bool:
        """Whether the goal holds now."""
        return bool(self._state["won"])

    def plan(self) -> list[str]:
        """Commands that lead from here to the goal, by Fast Downward, who knows everything; none if it finds none."""
        return [command.strip() for command in self._player.plan()]


class _Refused(Exception):
    """Of an expression. No ValueError, as a DataError is: TextWorld says "Nothing happens." for one, though it has."""


class Engines:
    """Engines to be used again: each holds a library of its own, which never leaves the process once it is loaded."""

    def __init__(self) -> None:
        self._idle: list[Engine] = []

    def take(self) -> Engine:
        """One that nobody uses. Raises ConfigError where none can be had."""
        return self._idle.pop() if self._idle else Engine()

    def give_back(self, engine: Engine) -> None:
        self._idle.append(engine)


def _make() -> tuple[Any, Any]:
    """TextWorld's player, with a way to ask for its plan, and the same with ALFWorld's names."""
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
            raise _Refused(str(error)) from error

    textgen.EvalSymbol.derive = derive  # instead of eval(), to which it would give what a game's file says

    class Player(PddlEnv):
        def plan(self) -> list[str]:
            """What its ``policy_commands`` would be: it only tells them at every step or never."""
            return self._pddl_state.replan(self._entity_infos)

    player = Player(EnvInfos(feedback=True, won=True, admissible_commands=True))
    return player, AlfredDemangler(player)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Fast Downward's translator writes arguments of its own over the process's."""
    arguments = sys.argv
    try:
        yield
    finally:
        sys.argv = arguments
