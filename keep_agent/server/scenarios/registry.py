"""Registry of running scenarios (scripted conversations of agents). Each access token reads only its agents' turns.

A token for the id ``persist_{scenario}_{agent}`` reads the agent's transcript. Creating or deleting a scenario needs a
token for all its agents; playing it needs a token for one of them. For other tokens the scenario does not exist (404).
The reason of a failed turn is shown to tokens for its speaker, or for all agents of the scenario; others get 409.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from keep_agent.errors import CapacityError
from keep_agent.scenarios import turn_records as turns
from keep_agent.scenarios.runner import GeneratedText, Player, stop_tokens
from keep_agent.scenarios.scenario import Scenario, find_scenario, make_scenario, shipped, template_references
from keep_agent.scenarios.transcript import Transcripts
from keep_agent.server.auth.tokens import Access
from keep_agent.server.chat.conversations import Conversations
from keep_agent.server.chat.turn import GenerationRequest, PromptReuse, Turn
from keep_agent.server.error_handlers import Conflict, NotFound, Refused, Unavailable
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.settings import ChatLimits
from memory.engine.models.chat_template import SpecialTokens
from memory.engine.scheduler.scheduler import Scheduler

SCENARIO_OVER = "the scenario has ended: a turn failed, or it was deleted; begin it again"
log = logging.getLogger(__name__)


class BadScenario(Refused):
    """A scenario that exceeds the server's limits."""


def shipped_scenario(name: str) -> Scenario:
    """Return a scenario of the package, never a file of this machine. Raises NotFound."""
    if name not in shipped():
        raise NotFound(f"there is no scenario {name[:64]!r}; use one of: {', '.join(shipped())}, or send a whole one")
    return find_scenario(str(shipped()[name]))


def sent_scenario(content: Mapping[str, Any], limits: ChatLimits) -> Scenario:
    """Return a client's scenario. Counts are checked first, since parsing takes time. Raises DataError, BadScenario."""
    agents, phases = content.get("agents"), content.get("phases")
    _check(
        ("agents", len(agents) if isinstance(agents, dict) else 0, limits.scenario_agents),
        ("phases", len(phases) if isinstance(phases, list) else 0, limits.scenario_turns),
    )
    return make_scenario(content)


def _check(*counts: tuple[str, int, int]) -> None:
    for name, count, most in counts:
        if count > most:
            raise BadScenario(f"the scenario has {count} {name}, more than the {most} allowed here; use fewer")


def owner_id(scenario: Scenario, agent: str) -> str:
    """Return the id that stands for ``agent`` in tokens: a token for this id may read the agent's transcript."""
    return f"persist_{scenario.name}_{agent}"


def owner_ids(scenario: Scenario) -> list[str]:
    return [owner_id(scenario, agent) for agent in scenario.agents]


@dataclass(frozen=True, kw_only=True)
class SharedPlayer(Player):
    """Player on the scheduler of conversations. ``on_turn_start`` gets each turn, to cancel it if necessary."""

    scheduler: Scheduler
    prompt_chars: int
    on_turn_start: Callable[[Turn], None]

    def _answer(self, memory: str, text: str, max_tokens: int) -> GeneratedText:
        items: list[PromptReuse | str] = []
        request = GenerationRequest(memory, lambda: text, max_tokens, persist=False)
        special = SpecialTokens(frozenset(self.stops))
        turn = Turn(self.memories, self.scheduler, special, request, self.prompt_chars, items.append)
        self.on_turn_start(turn)
        end = turn.run()
        if end.reason == "cancelled" or turn.prefilled is None:
            raise Unavailable("the turn was cancelled, since the server is closing: begin the scenario again")
        return GeneratedText(
            text="".join(item for item in items if isinstance(item, str)), **asdict(turn.prefilled),
            generated=end.generated, ttft_ms=end.ttft_ms or 0.0, decode_ms=end.decode_ms,
        )  # fmt: skip


@dataclass(eq=False)
class RunningScenario:
    id: str
    scenario: Scenario
    transcripts: Transcripts
    turns: list[turns.Turn] = field(default_factory=list)
    done: bool = False
    failed: bool = False
    is_closed: bool = False
    limiter: ConcurrencyLimiter = field(default_factory=lambda: ConcurrencyLimiter(1))  # one request at a time plays it
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    generator: Generator[turns.Turn, None, None] | None = None
    turn: Turn | None = None
    thread_lock: threading.Lock = field(default_factory=threading.Lock)

    def on_turn_start(self, turn: Turn) -> None:
        """Store the current turn, so that `cancel` can end it. The thread that plays the turn calls this."""
        self.turn = turn
        if self.is_closed:
            turn.cancel()

    def play(self) -> turns.Turn | None:
        """Play the next turn and return it; return None after the last. Blocks: call it on a thread."""
        with self.thread_lock:  # the thread of a cancelled request may still be playing
            return None if self.generator is None else next(self.generator, None)

    def end(self) -> None:
        """End the scenario after the running turn. Blocks: call it on a thread."""
        with self.thread_lock:
            if self.generator is not None:
                self.generator.close()

    def cancel(self) -> None:
        self.is_closed = True
        if self.turn is not None:
            self.turn.cancel()

    def readable_agents(self, access: Access) -> frozenset[str]:
        """Return the agents whose transcripts a token may read."""
        return frozenset(agent for agent in self.scenario.agents if access.may(owner_id(self.scenario, agent)))

    def readable_turns(self, access: Access) -> list[turns.Turn]:
        """Return the turns so far that the token's agents heard."""
        readable = self.readable_agents(access)
        return [turn for turn in self.turns if not readable.isdisjoint(turn.audience)]

    def count_readable_turns(self, access: Access) -> int:
        """Return the number of turns of the whole scenario that the token's agents hear."""
        readable = self.readable_agents(access)
        speakers = ((phase, speaker) for phase in self.scenario.phases for speaker in phase.speakers)
        return sum(phase.rounds for phase, speaker in speakers if not readable.isdisjoint(phase.audience(speaker)))


class Scenarios:
    """All running scenarios. They use threads and scheduler of ``conversations``: close the scenarios first."""

    player = SharedPlayer

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
        self._running: dict[str, RunningScenario] = {}
        self._stops = stop_tokens(conversations.tokenizer, conversations.special)
        self._is_closed = False

    def create(self, access: Access, scenario: Scenario) -> RunningScenario:
        """Create a scenario; no turn is played yet. ``limits.scenarios`` applies only to tokens for any agent.

        :raises Forbidden: the token is not for all agents of the scenario
        :raises CapacityError: too many scenarios are running
        :raises Conflict: a running scenario of the same name has one of these agents, and so the same KV rows
        """
        limits = self._conversations.limits
        owners = {access.require(agent) for agent in owner_ids(scenario)}
        notes = [note.text for phase in scenario.phases for note in phase.notes]
        _check(
            ("agents", len(scenario.agents), limits.scenario_agents),
            ("turns", scenario.turns, limits.scenario_turns),
            ("max_tokens of a turn", max(phase.max_tokens for phase in scenario.phases), limits.scenario_tokens),
            ("templates", sum(1 for text in notes for _ in template_references(text)), limits.scenario_templates),
        )
        if self._is_closed:
            raise Unavailable("this server is closing; use another, or try again later")
        if any(not owners.isdisjoint(owner_ids(running.scenario)) for running in self._running.values()):
            raise Conflict(
                f"a scenario {scenario.name!r} with one of these agents is running: delete it first, or give this one "
                "another name"
            )
        if access.all and len(self._running) >= limits.scenarios:
            raise CapacityError(f"{limits.scenarios} scenarios are running, which is the limit; delete one")
        running = RunningScenario(secrets.token_hex(8), scenario, Transcripts(scenario))
        player = self.player(
            scenario, self._conversations.memories, self._stops, running.id, scheduler=self._conversations.scheduler,
            prompt_chars=limits.prompt_chars, on_turn_start=running.on_turn_start,
        )  # fmt: skip
        running.generator = player.play(running.transcripts)
        self._running[running.id] = running
        return running

    async def delete(self, access: Access, id: str) -> None:
        """End a scenario. Permanent agents keep their KV rows; the rows of other agents are deleted."""
        running = self.get(access, id)
        for agent in owner_ids(running.scenario):
            access.require(agent)
        await self._end(running)

    async def _end(self, running: RunningScenario) -> None:
        running.cancel()
        async with running.lock:
            await self._conversations.in_thread(running.end)
        self._running.pop(running.id, None)

    async def close(self) -> None:
        self._is_closed = True
        for running in list(self._running.values()):
            running.cancel()
        for running in list(self._running.values()):
            try:
                await self._end(running)
            except Exception:
                log.exception("scenario %s could not be ended", running.id)

    def all(self, access: Access) -> list[RunningScenario]:
        return [running for running in self._running.values() if running.readable_agents(access)]

    def get(self, access: Access, id: str) -> RunningScenario:
        """Return a scenario. Raises NotFound, also for one that the token may not read."""
        running = self._running.get(id)
        if running is None or not running.readable_agents(access):
            raise NotFound(f"there is no scenario {id[:64]!r} that you may read; POST /v1/scenarios begins one")
        return running

    async def play(self, access: Access, running: RunningScenario) -> turns.Turn | None:
        """Play and return the next turn; None after the last. Raises Conflict after a failed turn or `delete`."""
        async with running.lock:
            if running.failed or running.is_closed:
                raise Conflict(SCENARIO_OVER)
            if running.done:
                return None
            turn = await self._next(access, running)
            if turn is not None:
                running.turns.append(turn)
            running.done = turn is None or len(running.turns) == running.scenario.turns
            if turn is not None and running.done:  # lets the generator end the last phase
                await self._next(access, running)
            return turn

    async def _next(self, access: Access, running: RunningScenario) -> turns.Turn | None:
        running.turn = None
        try:
            return await self._conversations.in_thread(running.play)
        except Exception as error:
            running.failed = True
            readable, turn, agents = running.readable_agents(access), running.turn, running.scenario.agents
            keys = [running.scenario.memory_key(agent, running.id) for agent in readable]
            if len(readable) == len(agents) or (turn is not None and turn.request.agent in keys):
                raise  # other tokens must not see the error, which may quote the prompt
            log.warning("scenario %s", running.id, exc_info=True)
            raise Conflict(SCENARIO_OVER) from error
