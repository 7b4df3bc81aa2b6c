"""Interface between a robot and its planner: `Decision`, the Protocol `Planning`, and asynchronous calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from envs.outcome import Outcome
    from planners.prompts.styles import FactView

Ready = Callable[[dict[str, Any]], None]  # called with the cost of a prompt, between prefill and choice


@dataclass(frozen=True, slots=True)
class Decision:
    """The skill to execute next. ``number`` counts an agent's decisions from 1; 0: they are not counted."""

    skill: str
    scores: tuple[tuple[str, float], ...] = ()  # the best candidates with their log-likelihoods, best first
    trace: Mapping[str, Any] = field(default_factory=dict)  # the prompt's counts and timings as JSON (docs/api.md)
    number: int = 0
    warnings: tuple[str, ...] = ()  # sentences about facts that the plan lacked


class Planning(Protocol):
    """One robot's planner, in this process or behind a server."""

    def observe(self, facts: Iterable[FactView]) -> None:
        """Record new or changed facts; also called while a skill is carried out."""

    def plan(self, instruction: str, skills: Sequence[str]) -> Decision:
        """Choose the next of ``skills``. A new instruction begins a new task."""

    def report(self, outcome: Outcome) -> None:
        """Record the result of the last decision."""

    def finish(self, success: bool) -> None:
        """End the task."""


class AsyncMethods:
    """Asynchronous versions of an agent's blocking calls."""

    observe: Callable[..., Any]
    plan: Callable[..., Decision]
    report: Callable[..., None]
    finish: Callable[..., None]
    save: Callable[..., None]
    load: Callable[..., None]

    async def aobserve(self, facts: Iterable[FactView | Mapping[str, Any]]) -> None:
        await asyncio.to_thread(self.observe, facts)

    async def aplan(self, instruction: str, skills: Sequence[str], after: int | None = None) -> Decision:
        return await asyncio.to_thread(self.plan, instruction, skills, after=after)

    async def areport(self, outcome: Outcome, number: int | None = None) -> None:
        await asyncio.to_thread(self.report, outcome, number)

    async def afinish(self, success: bool) -> None:
        await asyncio.to_thread(self.finish, success)

    async def asave(self, path: str | Path) -> None:
        await asyncio.to_thread(self.save, path)

    async def aload(self, path: str | Path) -> None:
        await asyncio.to_thread(self.load, path)
