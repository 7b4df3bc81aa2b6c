"""Player of a scenario on a server: its turns go through the scheduler that conversations use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from keep_agent.scenarios.runner import Answer, Player
from keep_agent.server.chat.turn import GenerationRequest, Prefilled, Turn
from keep_agent.server.error_handlers import Unavailable
from memory.engine.models.chat_template import SpecialTokens
from memory.engine.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True)
class SharedPlayer(Player):
    """``begins`` hears of each turn before it runs, so that it can be cancelled; a cancelled one is not said."""

    scheduler: Scheduler
    prompt_chars: int
    begins: Callable[[Turn], None]

    def _answer(self, memory: str, text: str, max_tokens: int) -> Answer:
        pieces: list[Prefilled | str] = []
        request = GenerationRequest(memory, lambda: text, max_tokens, persist=False)
        special = SpecialTokens(frozenset(self.stops))
        turn = Turn(self.memories, self.scheduler, special, request, self.prompt_chars, pieces.append)
        self.begins(turn)
        end = turn.run()
        if end.reason == "cancelled" or turn.prefilled is None:
            raise Unavailable("the turn was given up, the server is closing: begin the scenario again")
        return Answer(
            text="".join(piece for piece in pieces if isinstance(piece, str)),
            **asdict(turn.prefilled),
            generated=end.generated,
            ttft_ms=end.ttft_ms or 0.0,
            decode_ms=end.decode_ms,
        )
