"""Terminal output of scenarios: tables of scenarios and sums, lines of phases and turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from keep_agent.scenarios.scenario import Phase, Scenario
from keep_agent.scenarios.turn_records import COLD, Turn


def scenarios_table(scenarios: Mapping[str, Scenario]) -> Table:
    table = Table(title="scenarios: keep-agent phases NAME, or a file of your own")
    for heading in ("name", "agents", "phases", "turns", "about"):
        table.add_column(heading, no_wrap=heading == "name")
    for name, scenario in scenarios.items():
        agents = ", ".join(agent.key if agent.permanent else f"{agent.key}*" for agent in scenario.agents.values())
        phases = ", ".join(phase.name for phase in scenario.phases)
        table.add_row(name, agents, phases, str(scenario.turns), scenario.about)
    table.caption = "* forgets after each phase"
    return table


def phase_text(phase: Phase, scenario: Scenario) -> Text:
    names = ", ".join(scenario.agents[agent].name for agent in phase.participants)
    return Text.assemble("\n", (phase.name, "bold"), f": {names}")


def turn_text(turn: Turn) -> Text:
    """Return a message and its cost."""
    match = f"{turn.kind}: kept {turn.kept}" if turn.hit else COLD
    cost = f"  [{match}, new {turn.new}, {turn.ttft_ms:.0f} ms]"
    return Text.assemble((f"{turn.name}: ", "cyan"), turn.text, (cost, "dim"))


def sums_table(summary: Mapping[str, Any], title: str) -> Table:
    """Return a row per agent and one for all; ``saved`` is relative to computing all prompts without reuse."""
    table = Table(title=title)
    table.add_column("agent", no_wrap=True)
    for heading in ("turns", "hits", "prompt tokens", "computed", "saved", "saved %", "ttft ms (p50)", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for agent, sums in summary["per_agent"].items():
        table.add_row(agent, *_cells(sums))
    table.add_section()
    table.add_row("all", *_cells(summary))
    return table


def _cells(sums: Mapping[str, Any]) -> Iterable[str]:
    for name in ("turns", "hits", "prompt_tokens", "prefill_tokens", "saved_tokens"):
        yield f"{sums[name]:,}"
    yield f"{100 * sums['saved']:.1f}"
    yield f"{sums['ttft_ms']:.1f}"
    yield f"{sums['seconds']:.2f}"
