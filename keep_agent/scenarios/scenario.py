"""Scenarios: agents, and the phases in which some of them talk. docs/phases.md has the format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from keep_agent.errors import DataError, did_you_mean
from keep_agent.scenarios.field_checks import Field, read_yaml
from keep_agent.scenarios.templates import references

SUFFIX = ".yaml"
MAX_TOKENS = 40  # of a turn
YOU = "You"  # what an agent is called in its own transcript


@dataclass(frozen=True)
class Agent:
    """``permanent``: its memory goes on from phase to phase; else it begins each phase with ``system`` alone."""

    key: str
    name: str  # what others call it
    system: str
    permanent: bool = True


@dataclass(frozen=True)
class Note:
    """Text that the agents ``to`` read when a phase begins. It may hold templates if that is one agent."""

    text: str
    to: tuple[str, ...]


@dataclass(frozen=True)
class Phase:
    """``rounds`` times the ``speakers`` say something in turn; who is named in ``heard_by`` speaks to those alone."""

    name: str
    participants: tuple[str, ...]
    speakers: tuple[str, ...]
    rounds: int
    notes: tuple[Note, ...]
    heard_by: Mapping[str, tuple[str, ...]]
    max_tokens: int

    def audience(self, speaker: str) -> tuple[str, ...]:
        """Who hears what ``speaker`` says, the speaker included."""
        hearers = self.heard_by.get(speaker, self.participants)
        return tuple(agent for agent in self.participants if agent in hearers or agent == speaker)

    def hears(self, agent: str) -> bool:
        """Is anything said that ``agent`` hears?"""
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
        """The id under which an agent's rows are kept; a scenario's name has no ``_``, so no two share one."""
        if self.agents[agent].permanent:
            return f"persist_{self.name}_{agent}"
        return f"coord_{run_id}_{agent}"


def shipped() -> dict[str, Path]:
    """The scenarios that come with the package, by name."""
    folder = Path(str(files("configs").joinpath("phases")))
    return {path.stem: path for path in sorted(folder.glob(f"*{SUFFIX}"))}


def find_scenario(name: str) -> Scenario:
    """The scenario of a file, or the one of that name that comes with the package. Raises DataError."""
    path = Path(name)
    if not path.is_file():
        path = shipped().get(name, path)
    if not path.is_file():
        known, hint = ", ".join(shipped()), did_you_mean(name, shipped())
        raise DataError(f"there is no scenario {name!r}; give a file, or one of: {known}{hint}")
    return parse_scenario(read_yaml(path))


def make_scenario(content: Mapping[str, Any], file: str = "scenario") -> Scenario:
    """A scenario from what a YAML file would hold. Raises DataError."""
    return parse_scenario(Field(content, file))


def parse_scenario(field: Field) -> Scenario:
    field.keys(("name", "about", "agents", "phases"), ("name", "agents", "phases"))
    agents = {key: _agent(key, one) for key, one in field.get("agents").items()}
    _check_names(field.get("agents"), agents)
    phases: dict[str, Phase] = {}
    for one in field.get("phases").each():
        phase = _phase(one, agents, phases)
        phases[phase.name] = phase
    silent = set(agents).difference(*(phase.participants for phase in phases.values()))
    if silent:
        raise field.get("agents").error(f"{', '.join(sorted(silent))} takes part in no phase; name it in one")
    return Scenario(field.get("name").slug(), field.get("about", "-").line(), agents, tuple(phases.values()))


def _agent(key: str, field: Field) -> Agent:
    field.keys(("name", "system", "permanent"), ("system",))
    Field(key, field.file, field.place).word()
    name, system = field.get("name", key), field.get("system")
    _check_templates(system, system.text(), (), {})
    return Agent(key, name.line(), system.text(), field.get("permanent", True).switch())


def _check_names(field: Field, agents: Mapping[str, Agent]) -> None:
    """Are agents told apart by their names, and from ``You``?"""
    if not agents:
        raise field.error("there are none; add one")
    names: list[str] = [YOU.lower()]
    for agent in agents.values():
        if agent.name.lower() in names or ":" in agent.name:
            raise field.error(f"{agent.key} cannot be called {agent.name!r}; give it another name, without a colon")
        names.append(agent.name.lower())


def _phase(field: Field, agents: Mapping[str, Agent], earlier: Mapping[str, Phase]) -> Phase:
    known = ("name", "participants", "speakers", "rounds", "opening", "instructions", "audience", "max_tokens")
    field.keys(known, ("name", "participants"))
    name = field.get("name").word()
    if name in earlier:
        raise field.get("name").error(f"a phase before is called {name}, too; give it another name")
    participants = field.get("participants").names(tuple(agents), "agent")
    speakers = field.get("speakers", list(participants)).names(participants, "participant")
    heard = {
        Field(agent, to.file, to.place).one_of(speakers, "speaker"): to.names(participants, "participant")
        for agent, to in field.get("audience", {}).items()
    }
    rounds, most = field.get("rounds", 1).count(), field.get("max_tokens", MAX_TOKENS).count()
    return Phase(name, participants, speakers, rounds, _notes(field, participants, earlier), heard, most)


def _notes(field: Field, participants: tuple[str, ...], earlier: Mapping[str, Phase]) -> tuple[Note, ...]:
    """The openings in their order, then what each agent alone is told."""
    notes: list[Note] = []
    opening = field.get("opening", [])
    if isinstance(opening.value, str):
        notes.append(_note(opening, participants, earlier))
    elif opening.value != []:
        notes += [_addressed(one, participants, earlier) for one in opening.each()]
    for agent, text in field.get("instructions", {}).items():
        Field(agent, text.file, text.place).one_of(participants, "participant")
        notes.append(_note(text, (agent,), earlier))
    return tuple(notes)


def _addressed(field: Field, participants: tuple[str, ...], earlier: Mapping[str, Phase]) -> Note:
    field.keys(("text", "to"), ("text",))
    to = field.get("to", list(participants)).names(participants, "participant")
    return _note(field.get("text"), to, earlier)


def _note(field: Field, to: tuple[str, ...], earlier: Mapping[str, Phase]) -> Note:
    _check_templates(field, field.text(), to, earlier)
    return Note(field.text(), to)


def _check_templates(field: Field, text: str, to: tuple[str, ...], earlier: Mapping[str, Phase]) -> None:
    """Does every template name an earlier phase that its only reader heard?"""
    try:
        named = list(references(text))
    except ValueError as error:
        raise field.error(str(error)) from None
    for phase, agent in named:
        if phase not in earlier:
            known = ", ".join(earlier) or "none"
            raise field.error(f"{phase!r} is no phase before this text is read; there are: {known}")
        if agent not in earlier[phase].participants or not earlier[phase].hears(agent):
            heard = ", ".join(one for one in earlier[phase].participants if earlier[phase].hears(one))
            raise field.error(f"{agent!r} heard nothing of phase {phase!r}; those who did: {heard}")
        if to != (agent,):
            raise field.error(f"what {agent} heard would be read by {', '.join(to)}; put it in instructions.{agent}")
