"""Generator of conversations and debates from a seed: people tell each other facts, some of which change later.

The questions cover LoCoMo's categories, changed facts and multiple choice; they are easy if all turns are read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import count
from typing import NamedTuple

from eval.chat.conversation import ADVERSARIAL, Conversation, Question, Session, Turn
from keep_agent.errors import ConfigError

PEOPLE = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana")
FIRST_DAY = date(2023, 1, 9)
CHOICES = 4
CHANGE_SHARE = 0.3  # share of facts that later change their value
FILLERS = (
    "How was your week?", "The weather has been strange lately.", "I slept badly, the street was loud.",
    "Let us cook something together soon.", "I watched a long film last night.", "My phone is slow again.",
    "Did you see the lights over the hill?", "I should really tidy the kitchen.",
)  # fmt: skip


class Relation(NamedTuple):
    """Kind of fact about a person. {} is the value in ``statement`` and ``update``, and the person in ``question``."""

    name: str
    statement: str
    update: str
    question: str
    values: tuple[str, ...]


RELATIONS = (
    Relation("city", "I live in {}.", "I moved, I live in {} now.", "In which city does {} live?",
             ("Oslo", "Turin", "Porto", "Lyon", "Gent", "Graz", "Bern", "Cork")),
    Relation("job", "I work as a {}.", "I changed my job, I am a {} now.", "What is the job of {}?",
             ("baker", "nurse", "pilot", "tailor", "painter", "plumber", "teacher", "gardener")),
    Relation("pet", "My dog is called {}.", "We have a new dog, it is called {}.", "What is the dog of {} called?",
             ("Rex", "Milo", "Luna", "Bella", "Otto", "Pico", "Nala", "Bruno")),
    Relation("hobby", "I spend my evenings with {}.", "These days I spend my evenings with {}.",
             "What does {} spend the evenings with?",
             ("chess", "pottery", "climbing", "origami", "fencing", "sailing", "knitting", "karate")),
    Relation("key", "The spare key is in the {}.", "I put the spare key in the {}.",
             "Where does {} keep the spare key?",
             ("drawer", "cabinet", "fridge", "shelf", "dresser", "safe", "microwave", "sofa")),
)  # fmt: skip
TRIP = "trip"  # relation of a fact that never changes; its question asks when the person stated it
TRIPS = ("Rome", "Kyoto", "Quito", "Dakar", "Hanoi", "Lima", "Perth", "Tunis")
RELATION_BY_NAME = {relation.name: relation for relation in RELATIONS}


@dataclass(frozen=True, slots=True)
class Fact:
    """Fact that a person states in a turn. ``first`` is False for a change of an earlier fact of the same relation."""

    person: str
    relation: str
    value: str
    turn: str = ""  # id of the turn
    day: str = ""  # date of the turn's session, written as in the answers
    first: bool = True


LatestFacts = Mapping[tuple[str, str], Fact]  # latest fact by person and relation


def generate_conversations(count: int, sessions: int, turns: int, speakers: int, seed: int) -> list[Conversation]:
    """Generate ``count`` conversations: ``speakers`` people, ``sessions`` sessions, ``turns`` turns per session."""
    if not 2 <= speakers <= len(PEOPLE):
        raise ConfigError(f"generated.speakers={speakers} is out of range; use 2 to {len(PEOPLE)}")
    return [_conversation(number, sessions, turns, speakers, seed) for number in range(1, count + 1)]


def _conversation(number: int, sessions: int, turns: int, speakers: int, seed: int) -> Conversation:
    rng = random.Random(f"{seed} {number}")
    people = rng.sample(PEOPLE, speakers)
    facts = _facts(people, sessions * turns // 2, rng)
    places = sorted(rng.sample(range(sessions * turns), len(facts)))  # turns that state a fact; the rest is small talk
    by_turn = dict(zip(places, facts, strict=True))
    latest: dict[tuple[str, str], Fact] = {}
    talks, day, place = [], FIRST_DAY, count()
    for session in range(1, sessions + 1):
        day += timedelta(rng.randint(1, 30))
        date_text = f"{day.day} {day:%B} {day.year}"
        ids = [f"D{session}:{i}" for i in range(1, turns + 1)]
        lines = [_turn(by_turn.get(next(place)), id, date_text, latest, people, rng) for id in ids]
        talks.append(Session(f"D{session}", date_text, tuple(lines)))
    questions = tuple(replace(question, id=f"q{i}") for i, question in enumerate(_questions(latest, people, rng), 1))
    return Conversation(f"generated-{number}", tuple(talks), questions)


def _facts(people: Sequence[str], room: int, rng: random.Random) -> list[Fact]:
    """Draw at most ``room`` facts: first the initial facts, then changes of some of these facts."""
    facts = [Fact(person, relation.name, rng.choice(relation.values)) for person in people for relation in RELATIONS]
    facts += [Fact(person, TRIP, trip) for person, trip in zip(people, rng.sample(TRIPS, len(people)), strict=True)]
    rng.shuffle(facts)
    facts = facts[:room]
    for fact in list(facts):
        if fact.relation != TRIP and len(facts) < room and rng.random() < CHANGE_SHARE:
            facts.append(replace(fact, value=_new_value(fact, rng), first=False))
    return facts


def _new_value(fact: Fact, rng: random.Random) -> str:
    return rng.choice([value for value in RELATION_BY_NAME[fact.relation].values if value != fact.value])


def _turn(
    fact: Fact | None, id: str, day: str, latest: dict[tuple[str, str], Fact], people: Sequence[str], rng: random.Random
) -> Turn:
    if fact is None:
        return Turn(id, rng.choice(people), rng.choice(FILLERS))
    latest[fact.person, fact.relation] = replace(fact, turn=id, day=day)
    if fact.relation == TRIP:
        return Turn(id, fact.person, f"Today I came back from {fact.value}.")
    relation = RELATION_BY_NAME[fact.relation]
    return Turn(id, fact.person, (relation.statement if fact.first else relation.update).format(fact.value))


def _questions(latest: LatestFacts, people: Sequence[str], rng: random.Random) -> Iterator[Question]:
    for fact in latest.values():
        if fact.relation == TRIP:
            text = f"When did {fact.person} come back from {fact.value}?"
            yield Question("", text, fact.day, "temporal", evidence=(fact.turn,))
        else:
            yield _single_fact(fact, rng)
    for person in people:
        pet, city = latest.get((person, "pet")), latest.get((person, "city"))
        alike = [fact for fact in latest.values() if pet and (fact.relation, fact.value) == ("pet", pet.value)]
        if pet and city and len(alike) == 1:
            text = f"In which city does the owner of the dog {pet.value} live?"
            yield Question("", text, city.value, "multi-hop", evidence=(pet.turn, city.turn))
    for person in people:
        if hobby := latest.get((person, "hobby")):
            first, second = rng.sample([hobby.value, _new_value(hobby, rng)], 2)
            text = f"Would {person} be happier with a book on {first} or on {second}?"
            yield Question("", text, hobby.value, "open-domain", evidence=(hobby.turn,))
    strangers = [person for person in PEOPLE if person not in people] or ["Ines"]
    for relation in rng.sample(RELATIONS, 2):  # about a speaker who did not state such a fact, or a stranger
        silent = [person for person in people if (person, relation.name) not in latest]
        text = relation.question.format(rng.choice(silent or strangers))
        yield Question("", text, "", ADVERSARIAL)


def _single_fact(fact: Fact, rng: random.Random) -> Question:
    """Ask for the latest value of a fact; one in four questions is multiple choice."""
    relation = RELATION_BY_NAME[fact.relation]
    text = relation.question.format(fact.person)
    if rng.random() < 1 / CHOICES:
        wrong = [value for value in relation.values if value != fact.value]
        choices = tuple(rng.sample([fact.value, *rng.sample(wrong, CHOICES - 1)], CHOICES))
        return Question("", text, fact.value, "multiple-choice", choices, (fact.turn,))
    return Question("", text, fact.value, "single-hop" if fact.first else "update", evidence=(fact.turn,))


TOPICS = ("cups in the sink", "books on the desk", "apples in the bowl", "keys on the hook", "plates in the cabinet")
REASONS = (
    "I counted them twice and took the smaller figure.",
    "Two of them were moved while I looked.",
    "One may be hidden behind the others.",
    "The last list names fewer, but it is old.",
    "I trust what I saw this morning.",
)


def debates(count: int, agents: int, rounds: int, seed: int) -> list[Conversation]:
    """Generate ``count`` debates: in each round every agent reads what all other agents say, in one prompt.

    Each prompt is one conversation, ``[note][contribution][note][contribution]...``. A note is new text that names the
    reader. A contribution has the same text for all its readers. Each reader omits its own contribution and reads the
    others in a random order, so the prompts share hardly any prefix. All prompts of a debate share one memory.
    """
    if not 2 <= agents <= len(PEOPLE):
        raise ConfigError(f"generated.agents={agents} is out of range; use 2 to {len(PEOPLE)}")
    return [prompt for number in range(1, count + 1) for prompt in _debate(number, agents, rounds, seed)]


def _debate(number: int, agents: int, rounds: int, seed: int) -> Iterator[Conversation]:
    rng = random.Random(f"debate {seed} {number}")
    people, topic = rng.sample(PEOPLE, agents), rng.choice(TOPICS)
    for round in range(1, rounds + 1):
        contributions = []  # (turn, the number that the turn states); all readers get the same texts
        for agent in people:
            figure, reasons = rng.randint(2, 40), " ".join(rng.sample(REASONS, 2))
            text = f"In round {round} I say there are {figure} {topic}. {reasons}"
            contributions.append((Turn(f"{agent}-{round}", agent, text), figure))
        for reader in people:
            contents = [(turn, figure) for turn, figure in contributions if turn.speaker != reader]
            yield _prompt(f"debate-{number}", reader, round, topic, rng.sample(contents, len(contents)))


def _prompt(debate: str, reader: str, round: int, topic: str, contents: Sequence[tuple[Turn, int]]) -> Conversation:
    turns: list[Turn] = []
    for place, (turn, _) in enumerate(contents, 1):
        turns += [Turn(f"new-{place}", "note", f"{reader} weighs in round {round} what {turn.speaker} says:"), turn]
    target, figure = contents[0]
    text = f"How many {topic} are there according to {target.speaker} in round {round}?"
    question = Question("q1", text, str(figure), "debate", evidence=(target.id,))
    session = Session("D1", "", tuple(turns))
    return Conversation(f"{debate}-{round}-{reader}", (session,), (question,), group=debate, incremental=False)
