"""Asynchronous calls of an agent: the event loop stays free meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.outcome import Outcome
    from keep_agent.agent.types import Decision
    from planners.prompts.styles import FactView


class Asynchronous:
    """Twins of the calls that wait."""

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
