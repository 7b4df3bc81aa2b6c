"""World of ALFWorld: a game in progress, with its engine and the state that its text describes."""

from __future__ import annotations

from weakref import finalize

from envs.alfworld.engine import Engines
from envs.alfworld.scene import Game
from envs.alfworld.text_state import REFUSAL, TextState
from envs.outcome import DONE, Outcome, failed

NO_EFFECT = REFUSAL.rstrip(".").lower()


class World:
    """One game. The agent may read ``state`` only; ``won`` and the expert's plan come from inside the engine."""

    def __init__(self, game: Game, engines: Engines) -> None:
        """Raises DataError for a game that cannot be played, ConfigError if the engine is not installed."""
        self.game, self.engines = game, engines
        self.engine = engines.take()
        finalize(self, engines.give_back, self.engine)
        self.state = TextState()
        self.commands: list[str] = []  # all that were sent, in order
        self.ever_won = False  # whether the goal has held at any time
        self.lamp: str | None = None  # the lamp that the agent went to: no place in ALFWorld, but one for our skills
        self.active: set[str] = set()  # microwaves and faucets that are on: ALFWorld has switches for lamps only
        self.state.begin(self.engine.load(game.read(), str(game.file)))

    def __eq__(self, value: object) -> bool:
        """Compare by game and by what was done in it."""
        if not isinstance(value, World):
            return NotImplemented
        return self.game == value.game and self._progress() == value._progress()

    __hash__ = None  # type: ignore[assignment]

    def _progress(self) -> tuple[object, ...]:
        return self.commands, self.lamp, self.active, self.state

    def copy(self) -> World:
        """Replay every command in another engine: takes about a second, and a tenth of one per command."""
        copy = World(self.game, self.engines)
        for command in self.commands:
            copy.do(command)
        copy.lamp, copy.active = self.lamp, set(self.active)
        return copy

    def begin_task(self) -> None:
        """Keep everything: a game has one task."""

    def do(self, command: str) -> Outcome:
        """Send one of ALFWorld's commands. A failure has no reason, as ALFWorld gives none."""
        answer = self.engine.do(command)
        self.commands.append(command)
        self.state.update(command, answer)
        self.ever_won |= self.won
        return failed(NO_EFFECT) if answer.strip() == REFUSAL else DONE

    @property
    def won(self) -> bool:
        """Whether the goal holds now."""
        return self.engine.won
