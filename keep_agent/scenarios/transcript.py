"""Transcripts: each agent's append-only prompt of all lines it hears ("Agent Memory Below the Prompt", section 3.5)."""

from __future__ import annotations

from dataclasses import dataclass

from keep_agent.scenarios.scenario import SELF_NAME, Phase, Scenario, fill_templates

CUE = f"{SELF_NAME}:"  # ends a prompt; the model continues it
SILENCE = "(says nothing)"  # text of an empty answer


@dataclass(frozen=True)
class Message:
    """One line, its speaker, and the agents that heard it, the speaker included."""

    phase: str
    speaker: str
    text: str
    audience: tuple[str, ...]


class Transcripts:
    """Messages so far, and each agent's text: its system text, then notes and messages in order."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.messages: list[Message] = []
        self._texts: dict[str, str] = {}

    def begin(self, phase: Phase) -> None:
        """Add the phase's notes to the agents' texts. A permanent agent's text goes on, other agents' texts restart."""
        for key in phase.participants:
            agent = self.scenario.agents[key]
            if not agent.permanent or key not in self._texts:
                self._texts[key] = agent.system
        for note in phase.notes:
            for key in note.to:
                self._texts[key] += fill_templates(note.text, self.transcript)

    def prompt(self, agent: str) -> str:
        return self._texts[agent] + CUE

    def add_message(self, phase: Phase, speaker: str, words: str) -> Message:
        """Add a message to the texts of its audience: unchanged for its speaker, on one line for the others."""
        message = Message(phase.name, speaker, " ".join(words.split()) or SILENCE, phase.audience(speaker))
        for key in message.audience:
            self._texts[key] += f"{CUE}{words}\n" if key == speaker else self._line(message, key)
        self.messages.append(message)
        return message

    def transcript(self, phase: str, agent: str) -> str:
        """Return the lines of a phase that an agent heard, without a final newline."""
        lines = [message for message in self.messages if message.phase == phase and agent in message.audience]
        return "".join(self._line(message, agent) for message in lines).removesuffix("\n")

    def _line(self, message: Message, agent: str) -> str:
        name = SELF_NAME if message.speaker == agent else self.scenario.agents[message.speaker].name
        return f"{name}: {message.text}\n"
