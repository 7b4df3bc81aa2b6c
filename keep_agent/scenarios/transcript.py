"""Who hears what, and how an agent's prompt grows out of it: behind what it was, never within (Semantic, 3.5)."""

from __future__ import annotations

from dataclasses import dataclass

from keep_agent.scenarios.scenario import YOU, Phase, Scenario
from keep_agent.scenarios.templates import fill

CUE = f"{YOU}:"  # what asks an agent for its words
SILENCE = "(says nothing)"


@dataclass(frozen=True)
class Message:
    """One line that was said, and who heard it, the speaker included."""

    phase: str
    speaker: str
    text: str
    audience: tuple[str, ...]


class Story:
    """What was said so far, and each agent's text: its system text, then what it read, heard and said, in order."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.messages: list[Message] = []
        self._texts: dict[str, str] = {}

    def begin(self, phase: Phase) -> None:
        """The participants read what they are told. A permanent agent's text goes on, another's begins anew."""
        for key in phase.participants:
            agent = self.scenario.agents[key]
            if not agent.permanent or key not in self._texts:
                self._texts[key] = agent.system
        for note in phase.notes:
            for key in note.to:
                self._texts[key] += fill(note.text, self.transcript)

    def prompt(self, agent: str) -> str:
        """What stands before the agent's next words."""
        return self._texts[agent] + CUE

    def say(self, phase: Phase, speaker: str, words: str) -> Message:
        """Let all who hear it remember what was said: the speaker word for word, as the model wrote it behind the cue,
        and the others in one line.
        """
        said = Message(phase.name, speaker, " ".join(words.split()) or SILENCE, phase.audience(speaker))
        for key in said.audience:
            self._texts[key] += f"{CUE}{words}\n" if key == speaker else self._line(said, key)
        self.messages.append(said)
        return said

    def transcript(self, phase: str, agent: str) -> str:
        """The lines of a phase that an agent heard; no newline at the end."""
        heard = [said for said in self.messages if said.phase == phase and agent in said.audience]
        return "".join(self._line(said, agent) for said in heard).removesuffix("\n")

    def _line(self, said: Message, agent: str) -> str:
        name = YOU if said.speaker == agent else self.scenario.agents[said.speaker].name
        return f"{name}: {said.text}\n"
