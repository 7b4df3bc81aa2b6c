"""From rollouts to training packs: one memory, and many query slots that see it but not each other.

A pack is ``[memory][slot][slot]...``. Six kinds of slots:

* *plan*: a whole task's skills, all supervised that were not perturbed, over no memory at all. Cheap: it teaches what
  instructions mean, where skills name types;
* *goal*: what an instruction asks for: what it means, or over the memory at its beginning what it can mean in this
  house;
* *trajectory*: a whole task in the `append` layout, and those that follow it in the stream, supervised at every step;
* *step*: one decision in the `memory` layout. What changed since the memory was written is hidden from
  the slot and repeated, in its new version, in the slot's own tail. Where skills name instances, the *focus* comes
  before the skill: the type that the plan is after, which one, and where it is;
* *probe*: short questions about the memory: where is it, is its place open; before or after things moved, where
  the latest line wins;
* *recall*: questions about a made-up memory (`planners.training.recall_probes`), whose cue may stand in front of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, takewhile

from planners.prompts.styles import Edit, PromptStyle, history_edit, make_style, task_edit
from planners.prompts.text import (
    CUE,
    FOCUS,
    NO_TARGET,
    PROGRESS,
    TYPE_LEVEL,
    candidate_text,
    entity_text,
    goal_or_instruction,
    goal_query,
    query_text,
)
from planners.training.recall_probes import KINDS, Asked, make_scene
from planners.training.rollout_files import FactRecord, Rollout, TaskRecord

IGNORE = -100
WEIGHTS = {"pick": 2, "slice": 2, "go": 2, "find": 2}  # how often steps are shown, by the verb of the label
AGAIN = 3  # how much more often, where two things are carried, the steps behind the first
FOCUSED = ("pick", "put", "slice", "turn", "sit")  # verbs whose target is what the steps before them are for
Encode = Callable[[str], Sequence[int]]
Part = tuple[str, bool]  # text, whether it is supervised


@dataclass(slots=True)
class Line:
    """A segment as the trainer keeps it."""

    id: str
    text: str
    created: int
    last_changed: int
    parent: str | None = None  # the line it refers back to: it never stands in a memory without it
    category: str = "object"


@dataclass
class LineStore:
    """The order of a segment store without groups; ``now`` is the agent's own line, which is no memory."""

    lines: dict[str, Line] = field(default_factory=dict)
    now: str = ""
    step: int = 0
    _created: int = 0
    _finished: int = 0  # the line of the last task that was finished

    def apply(self, edits: Sequence[Edit]) -> list[str]:
        """Write edits; returns the ids that changed."""
        changed = []
        for edit in edits:
            if edit.category == "agent":
                self.now = edit.text or ""
                continue
            if edit.text is None:
                if self.lines.pop(edit.id, None):
                    changed.append(edit.id)
                continue
            old = self.lines.get(edit.id)
            if old and old.text == edit.text:
                continue
            self._created += old is None
            created = old.created if old else self._created
            self.lines[edit.id] = Line(edit.id, edit.text, created, self.step, edit.parent, edit.category)
            if edit.category == "task":
                self._finished = created
            changed.append(edit.id)
        return changed

    def ordered(self) -> list[Line]:
        """The prompt's order: what was done since the last task behind the facts, then by last change and creation."""

        def key(line: Line) -> tuple[bool, int, int]:
            return line.category == "history" and line.created > self._finished, line.last_changed, line.created

        return sorted(self.lines.values(), key=key)


@dataclass(frozen=True, slots=True)
class Slot:
    """Token ids with labels (`IGNORE` where none), and the memory lines this slot must not see."""

    kind: str
    ids: tuple[int, ...]
    labels: tuple[int, ...]
    hidden: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Pack:
    """Memory lines (id, token ids) in prompt order, and slots over them."""

    memory: tuple[tuple[str, tuple[int, ...]], ...]
    slots: tuple[Slot, ...]

    @property
    def memory_tokens(self) -> int:
        return sum(len(ids) for _, ids in self.memory)


@dataclass(frozen=True, slots=True)
class Mix:
    """How much of what goes into a pack."""

    memory_lines: int = 80  # at most so many lines; those the task touches are always kept
    trajectories: int = 2
    steps: int = 4
    probes: int = 2  # probe slots, each with several questions
    questions: int = 6
    plans: int = 0  # wordings of a plan or goal; with them nothing else is packed
    housed: bool = False  # goals over the memory that there is when the task begins
    recall: bool = False  # made-up memories instead of rollouts
    transcript: int = 0  # tokens that a trajectory may take with the tasks that follow; 0: one task
    easy: float = 1.0  # share of the tasks for which one thing is picked up that a pack begins with
    starts: int = 0  # tasks of a rollout, drawn, that a pack begins with; 0: each of them


class Packer:
    """Turns rollouts into packs, at most one per task and style. Holds no state but a token cache."""

    def __init__(self, encode: Encode, mix: Mix, seed: int = 0) -> None:
        self.mix = mix
        self.random = random.Random(seed)
        self._encode = lru_cache(maxsize=200_000)(lambda text: tuple(encode(text)))

    def packs(self, rollout: Rollout, style_name: str) -> Iterator[Pack]:
        style, store, done = make_style(style_name), LineStore(), 0
        known: dict[str, FactRecord] = {}
        told: set[str] = set()
        replays: list[_Replay] = []
        for number, task in enumerate(rollout.tasks, 1):
            store.step += 1
            told |= set(store.apply(style.edits(task.facts)))
            known |= {fact.id: fact for fact in task.facts}
            replays.append(replay := _Replay(rollout.skills, task, style, store, done, known, told))
            known |= replay.moved(len(task.steps))
            store.step += 1
            store.apply(replay.history(max(0, len(task.steps) - PROGRESS), len(task.steps)))
            done += len(task.steps)
            told = set(store.apply([task_edit(number, task.instructions[0].lower(), task.success, len(task.steps))]))
        firsts = [number for number, replay in enumerate(replays) if replay.task.steps and self._wanted(replay.task)]
        if 0 < self.mix.starts < len(firsts):
            firsts = sorted(self.random.sample(firsts, self.mix.starts))
        yield from (self._pack(replays[first:]) for first in firsts)

    def recall(self, segments: int) -> Pack:
        """A made-up memory of about so many lines. Half of them have a cue in front, which one slot asks for."""
        scene = make_scene(self.random.choice(list(KINDS)), segments, self.random)
        memory = [(fact.id, self._encode(fact.text)) for fact in scene.facts]
        slots, wanted = [], self.mix.probes
        if self.random.random() < 0.5:
            asked, wanted = self.random.choice(scene.questions), 2  # the one question that is asked must not drown
            memory.insert(0, ("cue", self._encode(f"{asked.text()}\n")))
            slots.append(self._asking([(asked, self.random.random() < 0.75)]))
        while len(slots) < wanted:
            chosen = self.random.sample(scene.questions, min(self.mix.questions, len(scene.questions)))
            slots.append(self._asking([(asked, False) for asked in chosen]))
        return Pack(tuple(memory), tuple(slots))

    def _asking(self, questions: Sequence[tuple[Asked, bool]]) -> Slot:
        parts = [part for asked, it in questions for part in ((asked.text(it), False), (f"{asked.answer}\n", True))]
        return self._slot("recall", parts, frozenset())

    def _pack(self, replays: Sequence[_Replay]) -> Pack:
        """Slots over the memory before the first of ``replays``; the others follow it in the stream."""
        replay, task = replays[0], replays[0].task
        if self.mix.plans:
            wordings = self.random.sample(task.instructions, min(self.mix.plans, len(task.instructions)))
            plain = self._plan if replay.skills == TYPE_LEVEL and not self.mix.housed else self._goal
            shown = self._sample_lines(replay.memory, replay.touched) if self.mix.housed else []
            return Pack(self._lines(shown), tuple(plain(wording, replay) for wording in wordings))
        told = self._together(replays) if self.mix.trajectories else [replay]
        shown = self._sample_lines(replay.memory, set().union(*(one.touched for one in told)))
        ids = {line.id for line in shown}
        slots = [self._trajectory(told) for _ in range(self.mix.trajectories)]
        for index in self._some_steps(task)[: self.mix.steps]:
            slots.append(self._step(self._wording(task), replay, index, ids))
        slots += [slot for _ in range(self.mix.probes) if (slot := self._probe(task, replay, ids))]
        return Pack(self._lines(shown), tuple(slots))

    def _wanted(self, task: TaskRecord) -> bool:
        """Two things to carry are where plans go wrong, so that such tasks are seen more often."""
        return _picked(task) > 1 or self.mix.easy == 1.0 or self.random.random() < self.mix.easy

    def _lines(self, lines: Sequence[Line]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple((line.id, self._encode(line.text)) for line in lines)

    def _wording(self, task: TaskRecord) -> str:
        return self.random.choice(task.instructions)

    def _some_steps(self, task: TaskRecord) -> list[int]:
        """Neighbouring steps, the nearest to one first: slots of a pack are padded to the widest.

        Skills that take memory and instruction together are that one more often, and what comes behind the first of two
        things that were put down: whoever forgets that one picks it up again.
        """
        steps = range(len(task.steps))
        weights = [WEIGHTS.get(step.label.split()[0], 1) for step in task.steps]
        if _picked(task) > 1:
            first = next((i for i, step in enumerate(task.steps) if step.label.startswith("put")), len(steps))
            weights[first + 1 :] = [AGAIN * weight for weight in weights[first + 1 :]]
        (middle,) = self.random.choices(steps, weights)
        return sorted(steps, key=lambda index: abs(index - middle))

    def _sample_lines(self, memory: list[Line], touched: set[str]) -> list[Line]:
        spare = [line for line in memory if line.id.split("/")[0] not in touched]
        excess = len(memory) - self.mix.memory_lines
        dropped = {line.id for line in self.random.sample(spare, min(len(spare), max(0, excess)))}
        parent = {line.id: line.parent for line in memory}
        needed: set[str | None] = set()
        for line in memory:
            name: str | None = line.id if line.id not in dropped else None
            while name and name not in needed:
                needed.add(name)
                name = parent.get(name)
        return [line for line in memory if line.id in needed]

    def _together(self, replays: Sequence[_Replay]) -> list[_Replay]:
        """The first, and as many of those that follow as fit into a trajectory."""
        if not self.mix.transcript:
            return [replays[0]]
        lengths = accumulate(sum(len(self._encode(text)) for text, _ in self._told(one, "")) for one in replays)
        pairs = zip(replays, lengths, strict=True)
        fitting = takewhile(lambda pair: pair[0].task.steps and pair[1] <= self.mix.transcript, pairs)
        return [replay for replay, _ in fitting] or [replays[0]]

    def _trajectory(self, replays: Sequence[_Replay]) -> Slot:
        """A finished task is remembered in its first wording, so that this one is told."""
        wordings = [*(replay.task.instructions[0] for replay in replays[:-1]), self._wording(replays[-1].task)]
        parts = [part for replay, said in zip(replays, wordings, strict=True) for part in self._told(replay, said)]
        return self._slot("trajectory", parts[len(replays[0].news) :], frozenset())

    def _told(self, replay: _Replay, wording: str) -> list[Part]:
        """What a task adds to a transcript, from the news since the last one on."""
        parts = [(line.text, False) for line in replay.news]
        parts += replay.asking(wording)
        for index, (step, turn) in enumerate(zip(replay.task.steps, replay.turns, strict=True)):
            parts += [(replay.now[index] + CUE, False), (replay.focus[index], True)]
            parts.append((candidate_text(step.skill), step.skill == step.label))
            if not turn.ok:
                parts.append((turn.failure_line, False))
            parts += [(line.text, False) for line in replay.written[index]]
        return parts

    def _plan(self, wording: str, replay: _Replay) -> Slot:
        parts = replay.asking(wording)
        for step, turn in zip(replay.task.steps, replay.turns, strict=True):
            parts += [(CUE, False), (candidate_text(step.skill), step.skill == step.label)]
            if not turn.ok:
                parts.append((turn.failure_line, False))
        return self._slot("plan", parts, frozenset())

    def _goal(self, wording: str, replay: _Replay) -> Slot:
        return self._slot("goal", replay.asking(wording), frozenset())

    def _step(self, wording: str, replay: _Replay, index: int, kept: set[str]) -> Slot:
        lines, hidden = replay.tails[index]
        before = "".join(line.text for line in lines) + replay.query(wording, index)
        answer = replay.focus[index] + candidate_text(replay.task.steps[index].label)
        return self._slot("step", [(before, False), (answer, True)], frozenset(hidden & kept))

    def _probe(self, task: TaskRecord, replay: _Replay, kept: set[str]) -> Slot | None:
        """Questions about the memory as it stands, or (one slot in four) about what the task has moved so far."""
        index = self.random.randrange(len(task.steps)) if self.random.random() < 0.25 else 0
        lines, hidden = replay.tails[index]
        facts = replay.known | replay.moved(index)
        pairs = list(_questions(list(facts.values()), set(replay.moved(index)) or kept))
        if not pairs:
            return None
        chosen = self.random.sample(pairs, min(self.mix.questions, len(pairs)))
        parts = [(line.text, False) for line in lines]
        parts += [part for question, answer in chosen for part in ((question, False), (f"{answer}\n", True))]
        return self._slot("probe", parts, frozenset(hidden & kept))

    def _slot(self, kind: str, parts: Sequence[Part], hidden: frozenset[str]) -> Slot:
        return make_slot(kind, parts, self._encode, hidden)


def rounded(length: int, unit: int = 16) -> int:
    """Rows that so many are padded to."""
    return -(-length // unit) * unit


def make_slot(kind: str, parts: Sequence[Part], encode: Encode, hidden: frozenset[str] = frozenset()) -> Slot:
    """A slot of texts, each encoded alone."""
    ids: list[int] = []
    labels: list[int] = []
    for text, supervised in parts:
        piece = encode(text)
        ids += piece
        labels += piece if supervised else [IGNORE] * len(piece)
    return Slot(kind, tuple(ids), tuple(labels), hidden)


class _Replay:
    """A task played through the store once: what each step is for and wrote, and the memory's tail before it."""

    def __init__(
        self,
        skills: str,
        task: TaskRecord,
        style: PromptStyle,
        store: LineStore,
        done: int,
        known: Mapping[str, FactRecord],
        told: Collection[str],
    ) -> None:
        self.memory = store.ordered()
        self.news = [line for line in self.memory if line.id in told]  # since the task before ended
        self.skills, self.task, self._done, self.known = skills, task, done, dict(known)
        self.now: list[str] = []  # the agent's own line before each step
        self.turns = [step.turn for step in task.steps]
        self.written: list[list[Line]] = []  # what each step told, in a prompt's order
        self.tails: list[tuple[list[Line], set[str]]] = []  # before each step: changed lines, ids of those they replace
        changed: set[str] = set()
        for number, step in enumerate(task.steps, 1):
            self.tails.append(([line for line in store.ordered() if line.id in changed], set(changed)))
            self.now.append(store.now)
            store.step += 1
            changed |= set(store.apply(self.history(number - PROGRESS - 1, number - PROGRESS)))
            written = set(store.apply(style.edits(step.facts)))
            changed |= written
            self.written.append([line for line in store.ordered() if line.id in written])
        self.focus = [""] * len(task.steps) if skills == TYPE_LEVEL else self._foci()
        self.touched = {id.split("/")[0] for id in changed} | _named(task)

    def history(self, first: int, last: int) -> list[Edit]:
        """Segments of the turns ``first`` to ``last`` (not included) of this task that did not fail."""
        turns = enumerate(self.turns[max(0, first) : max(0, last)], self._done + max(0, first) + 1)
        return [history_edit(number, entity_text(turn.skill)) for number, turn in turns if turn.ok]

    def moved(self, index: int) -> dict[str, FactRecord]:
        """Facts that the steps before ``index`` changed, as they are by then."""
        return {fact.id: fact for step in self.task.steps[:index] for fact in step.facts}

    def asking(self, wording: str) -> list[Part]:
        """The task's line: the model is to say what the instruction asks for."""
        return [(goal_query(self.skills, wording), False), (f"{self.task.goal}\n", True)]

    def query(self, wording: str, index: int) -> str:
        """The fresh end of the prompt at step ``index``."""
        told = goal_or_instruction(wording, self.task.goal)
        return query_text(self.skills, told, self.turns[max(0, index - PROGRESS) : index], self.now[index])

    def _foci(self) -> list[str]:
        """What each step is for: the type that is used next, which one, and where that is.

        While none is known: the place to look into.
        """
        known, foci = dict(self.known), []
        for index, step in enumerate(self.task.steps):
            words = [NO_TARGET] * FOCUS
            if target := self._next(index, FOCUSED):
                fact = known.get("_".join(target))
                if fact is None or fact.gone:
                    words = [target[0], "unseen", "_".join(self._next(index, ("go", "open")) or [NO_TARGET])]
                else:
                    words = [target[0], fact.id, _place(fact) or fact.id]
            foci.append(" ".join(words) + " ")
            known |= {fact.id: fact for fact in step.facts}
        return foci

    def _next(self, index: int, verbs: Sequence[str]) -> list[str] | None:
        """Type and number of what the first label from step ``index`` on with one of ``verbs`` names last."""
        labels = (step.label.split() for step in self.task.steps[index:])
        return next((words[-2:] for words in labels if words[0] in verbs), None)


def _picked(task: TaskRecord) -> int:
    """How often something was picked up as it should be; behind a wrong turn the same label comes again."""
    done = (step for step in task.steps if step.skill == step.label and step.ok)
    return sum(step.label.startswith("pick") for step in done)


def _place(fact: FactRecord) -> str | None:
    return "hand" if fact.place == "agent" else fact.place


def _named(task: TaskRecord) -> set[str]:
    """Entities that the steps name: they must stay in the memory."""
    texts = (candidate_text(text) for step in task.steps for text in (step.skill, step.label))
    return {word for text in texts for word in text.split() if "_" in word}


def _questions(facts: Sequence[FactRecord], kept: set[str]) -> Iterator[tuple[str, str]]:
    """Needle and two-hop questions about the facts in ``kept``."""
    state = {fact.id: next((s for s in ("open", "closed", "on", "off") if s in fact.states), None) for fact in facts}
    for fact in facts:
        if fact.id not in kept or fact.gone:
            continue
        if fact.category == "object" and fact.place:
            yield f"where {fact.id}", f"{_place(fact)}"
            if fact.place in kept and state.get(fact.place):
                yield f"door {fact.id}", state[fact.place]
        elif state[fact.id]:
            yield f"state {fact.id}", state[fact.id]
