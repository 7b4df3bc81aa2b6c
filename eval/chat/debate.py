"""Debates generated from a seed: each agent reads the contributions of the others, interleaved with its own notes.

A prompt is [new][reused][new][reused]...: a note of the reader precedes every contribution of the other agents in the
same round. The order of the contributions differs between readers, so that a prefix cache can reuse at most the first
line. All prompts of a debate share one memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from eval.chat.conversation import Conversation, Question, Session, Turn
from eval.chat.generated import PEOPLE
from keep_agent.errors import ConfigError

CATEGORY = "debate"
TOPICS = ("cups in the sink", "books on the desk", "apples in the bowl", "keys on the hook", "plates in the cabinet")
REASONS = (
    "I counted them twice and took the smaller figure.",
    "Two of them were moved while I looked.",
    "One may be hidden behind the others.",
    "The last list names fewer, but it is old.",
    "I trust what I saw this morning.",
)


@dataclass(frozen=True, slots=True)
class Contribution:
    """Contribution of an agent in a round: every reader gets the same text."""

    agent: str
    round: int
    figure: int
    text: str


def debates(count: int, agents: int, rounds: int, seed: int) -> list[Conversation]:
    """Return one conversation per prompt: in each of ``rounds`` rounds every agent reads all others."""
    if not 2 <= agents <= len(PEOPLE):
        raise ConfigError(f"generated.agents={agents} is out of range; use 2 to {len(PEOPLE)}")
    return [prompt for number in range(1, count + 1) for prompt in _debate(number, agents, rounds, seed)]


def _debate(number: int, agents: int, rounds: int, seed: int) -> Iterator[Conversation]:
    rng = random.Random(f"debate {seed} {number}")
    people, topic = rng.sample(PEOPLE, agents), rng.choice(TOPICS)
    for turn in range(1, rounds + 1):
        contributions = [_contribution(agent, turn, topic, rng) for agent in people]
        for reader in people:
            texts = [contribution for contribution in contributions if contribution.agent != reader]
            yield _prompt(f"debate-{number}", reader, turn, topic, rng.sample(texts, len(texts)))


def _contribution(agent: str, turn: int, topic: str, rng: random.Random) -> Contribution:
    figure = rng.randint(2, 40)
    reasons = " ".join(rng.sample(REASONS, 2))
    return Contribution(agent, turn, figure, f"In round {turn} I say there are {figure} {topic}. {reasons}")


def _prompt(debate: str, reader: str, turn: int, topic: str, read: list[Contribution]) -> Conversation:
    turns: list[Turn] = []
    for place, contribution in enumerate(read, 1):
        note = f"{reader} weighs in round {turn} what {contribution.agent} says:"
        turns.append(Turn(f"new-{place}", "note", note))
        turns.append(Turn(f"{contribution.agent}-{turn}", contribution.agent, contribution.text))
    target = read[0]
    question = Question(
        "q1",
        f"How many {topic} are there according to {target.agent} in round {turn}?",
        str(target.figure),
        CATEGORY,
        evidence=(f"{target.agent}-{turn}",),
    )
    session = Session("D1", "", tuple(turns))
    return Conversation(f"{debate}-{turn}-{reader}", (session,), (question,), group=debate, incremental=False)
