"""A game that is being played: ALFWorld's engine, and what its text has told."""

from __future__ import annotations

from weakref import finalize

from envs.alfworld.engine import Engines
from envs.alfworld.scene import Game
from envs.alfworld.text_state import NOTHING, Told
from envs.outcome import DONE, Outcome, failed

HAPPENS_NOT = NOTHING.rstrip(".").lower()


class World:
    """One game. ``told`` is all that an agent may look at; ``won`` and the expert's plan are the engine's."""

    def __init__(self, game: Game, engines: Engines) -> None:
        """Raises DataError for a game that cannot be played, ConfigError without the engine."""
        self.game, self.engines = game, engines
        self.engine = engines.take()
        finalize(self, engines.give_back, self.engine)
        self.told = Told()
        self.commands: list[str] = []  # said so far
        self.reached = False  # whether the goal has ever held
        self.facing: str | None = None  # the lamp gone to: no place to ALFWorld, but one to our skills
        self.running: set[str] = set()  # microwaves and faucets turned on: ALFWorld has no switches but those of lamps
        self.told.begin(self.engine.load(game.read(), str(game.file)))

    def __eq__(self, other: object) -> bool:
        """Whether the same was done in the same game."""
        if not isinstance(other, World):
            return NotImplemented
        return self.game == other.game and self._done() == other._done()

    __hash__ = None  # type: ignore[assignment]

    def _done(self) -> tuple[object, ...]:
        return self.commands, self.facing, self.running, self.told

    def copy(self) -> World:
        """Another engine, in which everything is done once more: about a second, and a tenth per command."""
        other = World(self.game, self.engines)
        for command in self.commands:
            other.do(command)
        other.facing, other.running = self.facing, set(self.running)
        return other

    def begin_task(self) -> None:
        """A game has one task."""

    def do(self, command: str) -> Outcome:
        """Say one of ALFWorld's commands. It gives no reason when it fails."""
        answer = self.engine.do(command)
        self.commands.append(command)
        self.told.hear(command, answer)
        self.reached |= self.won
        return failed(HAPPENS_NOT) if answer.strip() == NOTHING else DONE

    @property
    def won(self) -> bool:
        """Whether the goal holds now."""
        return self.engine.won
