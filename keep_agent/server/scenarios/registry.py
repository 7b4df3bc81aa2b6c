"""Scenarios that are being played, and what of them a token may know.

Whoever may use the id ``persist_{scenario}_{agent}`` hears what that agent hears, whether it is permanent or not. To
begin or end a scenario takes all of its agents; to play on, one. Who may use none does not learn that it is there, and
why a turn failed is told to those only who hear its speaker.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Generator
from dataclasses import dataclass, field

from keep_agent.errors import CapacityError
from keep_agent.scenarios import turn_records as turns
from keep_agent.scenarios.runner import stop_tokens
from keep_agent.scenarios.scenario import Scenario
from keep_agent.scenarios.transcript import Story
from keep_agent.server.auth.tokens import Access
from keep_agent.server.chat.conversations import Conversations
from keep_agent.server.chat.turn import Turn
from keep_agent.server.error_handlers import Conflict, NotFound, Unavailable
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.scenarios.limits import check_scenario
from keep_agent.server.scenarios.player import SharedPlayer

OVER = "the scenario goes on no more: a turn failed, or it was deleted; begin it anew"
log = logging.getLogger(__name__)


def voice(scenario: Scenario, agent: str) -> str:
    """The id that a token must be for to hear what ``agent`` hears; no agent has to be there for it."""
    return f"persist_{scenario.name}_{agent}"


@dataclass(eq=False)
class Running:
    """A scenario on its way. Its turns are played one after another."""

    id: str
    scenario: Scenario
    story: Story
    turns: list[turns.Turn] = field(default_factory=list)
    done: bool = False
    failed: bool = False
    closed: bool = False
    limiter: ConcurrencyLimiter = field(default_factory=lambda: ConcurrencyLimiter(1))  # who plays on
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    playing: Generator[turns.Turn, None, None] | None = None
    turn: Turn | None = None
    working: threading.Lock = field(default_factory=threading.Lock)  # a request may be given up before its thread ends

    def begins(self, turn: Turn) -> None:
        """Heard on the thread that plays."""
        self.turn = turn
        if self.closed:
            turn.cancel()

    def play(self) -> turns.Turn | None:
        """The next turn, on a thread; None if there is none."""
        with self.working:
            return None if self.playing is None else next(self.playing, None)

    def end(self) -> None:
        """On a thread, behind a turn that is still played."""
        with self.working:
            if self.playing is not None:
                self.playing.close()

    def cancel(self) -> None:
        self.closed = True
        if self.turn is not None:
            self.turn.cancel()

    @property
    def voices(self) -> frozenset[str]:
        return frozenset(voice(self.scenario, agent) for agent in self.scenario.agents)

    def ears(self, access: Access) -> frozenset[str]:
        """The agents with whose ears a token hears."""
        return frozenset(agent for agent in self.scenario.agents if access.may(voice(self.scenario, agent)))

    def heard(self, access: Access) -> list[turns.Turn]:
        """The turns so far that the token's agents heard."""
        ears = self.ears(access)
        return [turn for turn in self.turns if not ears.isdisjoint(turn.audience)]

    def audible(self, access: Access) -> int:
        """The turns that the token's agents will have heard in the end."""
        ears = self.ears(access)
        speakers = ((phase, speaker) for phase in self.scenario.phases for speaker in phase.speakers)
        return sum(phase.rounds for phase, speaker in speakers if not ears.isdisjoint(phase.audience(speaker)))

    def may_know_why(self, access: Access) -> bool:
        """Does a token hear who speaks in the turn under way, or everybody? An error may tell of the prompt."""
        ears = self.ears(access)
        speaks = None if self.turn is None else self.turn.request.agent
        heard = [self.scenario.memory_key(agent, self.id) for agent in ears]
        return speaks in heard or len(heard) == len(self.scenario.agents)


class Scenarios:
    """All that are played, on the threads and the scheduler of ``conversations``. Close it before those."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
        self._running: dict[str, Running] = {}
        self._stops = stop_tokens(conversations.tokenizer, conversations.special)
        self._closed = False

    # -- beginning and ending ------------------------------------------------------------------------------------------

    def create(self, access: Access, scenario: Scenario) -> Running:
        """Begin a scenario; nothing is said yet.

        :raises Forbidden: the token is not for all of its agents
        :raises CapacityError: too many are played. A token for certain agents does not learn how many: each id is in
            one scenario at a time, so it may always begin its own
        :raises Conflict: one of them is played: they would have the same rows. Nothing is said of scenarios that have
            the name and other agents
        """
        limits = self._conversations.limits
        voices = {access.require(voice(scenario, agent)) for agent in scenario.agents}
        check_scenario(scenario, limits)
        if self._closed:
            raise Unavailable("this server is closing; ask another, or later")
        if any(not voices.isdisjoint(one.voices) for one in self._running.values()):
            raise Conflict(
                f"a scenario {scenario.name!r} with such an agent is played already: delete it first, or name this one "
                "otherwise"
            )
        if access.all and len(self._running) >= limits.scenarios:
            raise CapacityError(f"{limits.scenarios} scenarios are played, no more are; delete one")
        running = Running(secrets.token_hex(8), scenario, Story(scenario))
        running.playing = self._player(running).play(running.story)
        self._running[running.id] = running
        return running

    def _player(self, running: Running) -> SharedPlayer:
        talks = self._conversations
        return SharedPlayer(
            running.scenario, talks.memories, self._stops, running.id, scheduler=talks.scheduler,
            prompt_chars=talks.limits.prompt_chars, begins=running.begins,
        )  # fmt: skip

    async def delete(self, access: Access, number: str) -> None:
        """End a scenario. Permanent agents keep their rows, the others' are forgotten."""
        running = self.get(access, number)
        for agent in running.scenario.agents:
            access.require(voice(running.scenario, agent))
        await self._end(running)

    async def _end(self, running: Running) -> None:
        running.cancel()
        async with running.lock:
            await self._conversations.in_thread(running.end)
        self._running.pop(running.id, None)

    async def close(self) -> None:
        """End all of them, whatever becomes of one."""
        self._closed = True
        for running in list(self._running.values()):
            running.cancel()
        for running in list(self._running.values()):
            try:
                await self._end(running)
            except Exception:
                log.exception("scenario %s was not ended as it should be", running.id)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def all(self, access: Access) -> list[Running]:
        return [running for running in self._running.values() if running.ears(access)]

    def get(self, access: Access, number: str) -> Running:
        """Raises NotFound, also for one of which the token may hear nothing."""
        running = self._running.get(number)
        if running is None or not running.ears(access):
            raise NotFound(f"there is no scenario {number[:64]!r} that you may hear; POST /v1/scenarios begins one")
        return running

    # -- playing -------------------------------------------------------------------------------------------------------

    async def play(self, access: Access, running: Running) -> turns.Turn | None:
        """The next turn; None if there is none.

        :raises Conflict: it failed before, or was deleted; or it fails in a turn of which the token may not know why
        """
        async with running.lock:
            if running.failed or running.closed:
                raise Conflict(OVER)
            if running.done:
                return None
            turn = await self._next(access, running)
            if turn is None:
                running.done = True
                return None
            running.turns.append(turn)
            running.done = len(running.turns) == running.scenario.turns
            if running.done:  # the last phase ends behind its last turn
                await self._next(access, running)
            return turn

    async def _next(self, access: Access, running: Running) -> turns.Turn | None:
        running.turn = None
        try:
            return await self._conversations.in_thread(running.play)
        except Exception as error:
            running.failed = True
            if running.may_know_why(access):
                raise
            log.warning("scenario %s", running.id, exc_info=True)
            raise Conflict(OVER) from error
