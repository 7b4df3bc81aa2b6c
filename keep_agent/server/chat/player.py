"""Plays a scenario beside everybody else: its turns go by way of the scheduler that conversations use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from keep_agent.errors import ModelError
from keep_agent.phases.run import Answer, Player
from keep_agent.server.chat.turn import Opened, Turn, Wish
from memory.engine.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True)
class SharedPlayer(Player):
    """``begins`` hears of each turn before it runs, so that it can be cancelled; a cancelled one is not said."""

    scheduler: Scheduler
    prompt_chars: int
    begins: Callable[[Turn], None]

    def _answer(self, memory: str, text: str, max_tokens: int) -> Answer:
        heard: list[Opened | str] = []
        wish = Wish(memory, lambda: text, max_tokens, persist=False)
        turn = Turn(self.memories, self.scheduler, self.stops, wish, self.prompt_chars, heard.append)
        self.begins(turn)
        ended = turn.run()
        if ended.reason == "cancelled" or turn.opened is None:
            raise ModelError("the turn was given up, the server is closing: play the scenario anew")
        return Answer(
            text="".join(piece for piece in heard if isinstance(piece, str)),
            kind=turn.opened.kind,
            origin=turn.opened.origin,
            kept=turn.opened.kept,
            new=turn.opened.new,
            generated=ended.generated,
            ttft_ms=ended.ttft_ms or 0.0,
            decode_ms=ended.decode_ms,
        )
