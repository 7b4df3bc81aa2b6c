"""Scenarios: agents, and phases in which some of them converse. docs/phases.md describes the format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from keep_agent.errors import DataError, did_you_mean
from keep_agent.scenarios.field_checks import Field, read_yaml

MAX_TOKENS = 40  # default maximum of generated tokens per turn
SELF_NAME = "You"  # prefix of an agent's own lines in its transcript
TEMPLATE_LIKE = re.compile(r"\$\{[^}]*\}?")
TEMPLATE = re.compile(r"\$\{([a-z0-9_]+)\.([a-z0-9_]+)\[([a-z0-9_]+)\]\}")
MESSAGES = "messages"
TEMPLATE_EXAMPLE = f"${{PHASE.{MESSAGES}[AGENT]}}"  # inserts an agent's transcript of an earlier phase


@dataclass(frozen=True)
class Agent:
    """An agent. ``permanent``: its memory persists over all phases; otherwise each phase starts from ``system``."""

    key: str
    name: str  # prefix of the agent's lines in the other agents' transcripts
    system: str
    permanent: bool = True


@dataclass(frozen=True)
class PhaseNote:
    """Text for the agents ``to`` at the start of a phase. Only a note for a single agent may contain templates."""

    text: str
    to: tuple[str, ...]


@dataclass(frozen=True)
class Phase:
    """Phase: in each round all ``speakers`` speak in order. ``audience_by_speaker`` restricts who hears a speaker."""

    name: str
    participants: tuple[str, ...]
    speakers: tuple[str, ...]
    rounds: int
    notes: tuple[PhaseNote, ...]
    audience_by_speaker: Mapping[str, tuple[str, ...]]
    max_tokens: int

    def audience(self, speaker: str) -> tuple[str, ...]:
        """Return the agents that hear ``speaker``, itself included."""
        listeners = self.audience_by_speaker.get(speaker, self.participants)
        return tuple(agent for agent in self.participants if agent in listeners or agent == speaker)

    def reaches(self, agent: str) -> bool:
        return any(agent in self.audience(speaker) for speaker in self.speakers)


@dataclass(frozen=True)
class Scenario:
    name: str
    about: str
    agents: Mapping[str, Agent]
    phases: tuple[Phase, ...]

    @property
    def turns(self) -> int:
        return sum(phase.rounds * len(phase.speakers) for phase in self.phases)

    def memory_key(self, agent: str, run_id: str) -> str:
        """Return the id of an agent's stored KV rows. It is unique, since neither names nor run ids contain ``_``."""
        if self.agents[agent].permanent:
            return f"persist_{self.name}_{agent}"
        return f"coord_{run_id}_{agent}"


def shipped() -> dict[str, Path]:
    folder = Path(str(files("configs").joinpath("phases")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_scenario(name: str) -> Scenario:
    """Load a scenario by the path of a file, or by the name of a packaged scenario. Raises DataError."""
    path = Path(name) if Path(name).is_file() else shipped().get(name)
    if path is None:
        known, hint = ", ".join(shipped()), did_you_mean(name, shipped())
        raise DataError(f"there is no scenario {name!r}; give a file, or one of: {known}{hint}")
    return _scenario(read_yaml(path))


def make_scenario(content: Mapping[str, Any], file: str = "scenario") -> Scenario:
    """Make a scenario from the content of a YAML file. Raises DataError, naming ``file``."""
    return _scenario(Field(content, file))


def _scenario(field: Field) -> Scenario:
    field.keys(("name", "about", "agents", "phases"), ("name", "agents", "phases"))
    agents = {key: _agent(key, agent) for key, agent in field.get("agents").items()}
    if not agents:
        raise field.get("agents").error("there are none; add one")
    names = [SELF_NAME.lower()]
    for agent in agents.values():
        if agent.name.lower() in names or ":" in agent.name:
            problem = f"{agent.key} cannot be called {agent.name!r}; give it another name, without a colon"
            raise field.get("agents").error(problem)
        names.append(agent.name.lower())
    phases: dict[str, Phase] = {}
    for item in field.get("phases").elements():
        phase = _phase(item, agents, phases)
        phases[phase.name] = phase
    unused = set(agents).difference(*(phase.participants for phase in phases.values()))
    if unused:
        raise field.get("agents").error(f"{', '.join(sorted(unused))} takes part in no phase; add it to one")
    return Scenario(field.get("name").word("-"), field.get("about", "-").line(), agents, tuple(phases.values()))


def _agent(key: str, field: Field) -> Agent:
    field.keys(("name", "system", "permanent"), ("system",))
    Field(key, field.file, field.place).word()
    name, system = field.get("name", key), field.get("system")
    _check_templates(system, (), {})
    return Agent(key, name.line(), system.text(), field.get("permanent", True).switch())


def _phase(field: Field, agents: Mapping[str, Agent], earlier: Mapping[str, Phase]) -> Phase:
    known = ("name", "participants", "speakers", "rounds", "opening", "instructions", "audience", "max_tokens")
    field.keys(known, ("name", "participants"))
    name = field.get("name").word()
    if name in earlier:
        raise field.get("name").error(f"an earlier phase is called {name}, too; give it another name")
    participants = field.get("participants").names(tuple(agents), "an agent")
    speakers = field.get("speakers", list(participants)).names(participants, "a participant")
    audience = {
        Field(agent, to.file, to.place).one_of(speakers, "a speaker"): to.names(participants, "a participant")
        for agent, to in field.get("audience", {}).items()
    }
    rounds, most = field.get("rounds", 1).count(), field.get("max_tokens", MAX_TOKENS).count()
    return Phase(name, participants, speakers, rounds, _notes(field, participants, earlier), audience, most)


def _notes(field: Field, participants: tuple[str, ...], earlier: Mapping[str, Phase]) -> tuple[PhaseNote, ...]:
    """Return the openings in order, then the instructions of single agents."""
    notes: list[tuple[Field, tuple[str, ...]]] = []
    opening = field.get("opening", [])
    if isinstance(opening.value, str):
        notes.append((opening, participants))
    elif opening.value != []:
        for item in opening.elements():
            item.keys(("text", "to"), ("text",))
            to = item.get("to", list(participants)).names(participants, "a participant")
            notes.append((item.get("text"), to))
    for agent, text in field.get("instructions", {}).items():
        Field(agent, text.file, text.place).one_of(participants, "a participant")
        notes.append((text, (agent,)))
    for text, to in notes:
        _check_templates(text, to, earlier)
    return tuple(PhaseNote(text.text(), to) for text, to in notes)


def _check_templates(field: Field, to: tuple[str, ...], earlier: Mapping[str, Phase]) -> None:
    """Check that a template names an earlier phase and an agent that heard it, and is only sent to this agent."""
    try:
        templates = list(template_references(field.text()))
    except ValueError as error:
        raise field.error(str(error)) from None
    for phase, agent in templates:
        if phase not in earlier:
            known = ", ".join(earlier) or "none"
            raise field.error(f"{phase!r} is not an earlier phase; the earlier phases are: {known}")
        listeners = [reader for reader in earlier[phase].participants if earlier[phase].reaches(reader)]
        if agent not in listeners:
            raise field.error(f"{agent!r} heard nothing of phase {phase!r}; it was heard by: {', '.join(listeners)}")
        if to != (agent,):
            raise field.error(f"{', '.join(to)} would read what {agent} heard; put it in instructions.{agent}")


def template_references(text: str) -> Iterator[tuple[str, str]]:
    """Yield the phases and agents that the templates in ``text`` name. Raises ValueError for any other ``${``."""
    for match in TEMPLATE_LIKE.findall(text):
        parts = TEMPLATE.fullmatch(match)
        if parts is None:
            raise ValueError(f"{match} is not a template; write {TEMPLATE_EXAMPLE}")
        if parts[2] != MESSAGES:
            raise ValueError(f"{match} names {parts[2]!r}, which a phase does not have; write {TEMPLATE_EXAMPLE}")
        yield parts[1], parts[3]


def fill_templates(text: str, transcript: Callable[[str, str], str]) -> str:
    """Replace each template by ``transcript(phase, agent)``; templates in inserted texts are not expanded."""
    return TEMPLATE.sub(lambda parts: transcript(parts[1], parts[3]), text)
