"""Debates made up from a seed: agents read each other's contributions between new lines of their own.

Each prompt is [new][reused][new][reused]...: a line of the reader's own stands before every contribution it reads.
The contributions are those of the round before and come in another order for every reader, so that nothing but the
first line could be found as a prefix. The prompts of one debate follow one another in one memory.
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
    """What an agent said in a round: the same words wherever it is read."""

    agent: str
    round: int
    figure: int
    text: str


def debates(count: int, agents: int, rounds: int, seed: int) -> list[Conversation]:
    """One conversation per prompt: every agent reads all others in each of ``rounds`` rounds of a debate."""
    if not 2 <= agents <= len(PEOPLE):
        raise ConfigError(f"generated.agents={agents} does not work; give 2 to {len(PEOPLE)}")
    return [prompt for number in range(1, count + 1) for prompt in _debate(number, agents, rounds, seed)]


def _debate(number: int, agents: int, rounds: int, seed: int) -> Iterator[Conversation]:
    rng = random.Random(f"debate {seed} {number}")
    people, topic = rng.sample(PEOPLE, agents), rng.choice(TOPICS)
    for turn in range(1, rounds + 1):
        said = [_contribution(agent, turn, topic, rng) for agent in people]
        for reader in people:
            others = [contribution for contribution in said if contribution.agent != reader]
            yield _prompt(f"debate-{number}", reader, turn, topic, rng.sample(others, len(others)))


def _contribution(agent: str, turn: int, topic: str, rng: random.Random) -> Contribution:
    figure = rng.randint(2, 40)
    reasons = " ".join(rng.sample(REASONS, 2))
    return Contribution(agent, turn, figure, f"In round {turn} I say there are {figure} {topic}. {reasons}")


def _prompt(debate: str, reader: str, turn: int, topic: str, read: list[Contribution]) -> Conversation:
    turns: list[Turn] = []
    for place, contribution in enumerate(read, 1):
        own = f"{reader} weighs in round {turn} what {contribution.agent} says:"
        turns.append(Turn(f"new-{place}", "note", own))
        turns.append(Turn(f"{contribution.agent}-{turn}", contribution.agent, contribution.text))
    asked = read[0]
    question = Question(
        "q1",
        f"How many {topic} are there according to {asked.agent} in round {turn}?",
        str(asked.figure),
        CATEGORY,
        evidence=(f"{asked.agent}-{turn}",),
    )
    return Conversation(
        f"{debate}-{turn}-{reader}", (Session("D1", "", tuple(turns)),), (question,), group=debate, lived=False
    )
