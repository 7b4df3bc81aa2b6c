"""Which scenarios are played for others: no larger ones than a server can bear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keep_agent.scenarios.scenario import Scenario, find_scenario, make_scenario, shipped
from keep_agent.scenarios.templates import references
from keep_agent.server.chat.settings import ChatLimits
from keep_agent.server.error_handlers import NotFound, Refused


class BadScenario(Refused):
    """One that is larger than it may be."""


def shipped_scenario(name: str) -> Scenario:
    """One that comes with the package, and never a file of this machine."""
    if name not in shipped():
        raise NotFound(f"there is no scenario {name[:64]!r}; use one of: {', '.join(shipped())}, or send a whole one")
    return find_scenario(str(shipped()[name]))


def sent_scenario(content: Mapping[str, Any], limits: ChatLimits) -> Scenario:
    """What a client sent; counted before it is looked at, for that takes time. Raises DataError, BadScenario."""
    agents, phases = content.get("agents"), content.get("phases")
    _check("agents", len(agents) if isinstance(agents, dict) else 0, limits.scenario_agents)
    _check("phases", len(phases) if isinstance(phases, list) else 0, limits.scenario_turns)
    return make_scenario(content)


def check_scenario(scenario: Scenario, limits: ChatLimits) -> None:
    """Raises BadScenario."""
    _check("agents", len(scenario.agents), limits.scenario_agents)
    _check("turns", scenario.turns, limits.scenario_turns)
    _check("max_tokens of a turn", max(phase.max_tokens for phase in scenario.phases), limits.scenario_tokens)
    notes = [note.text for phase in scenario.phases for note in phase.notes]
    _check("templates", sum(1 for text in notes for _ in references(text)), limits.scenario_templates)


def _check(what: str, found: int, most: int) -> None:
    if found > most:
        raise BadScenario(f"the scenario has {found} {what}, at most {most} are played here; use fewer")
