"""Packing of rollouts for training: one memory, and query slots that see it but not each other.

A pack is ``[memory][slot][slot]...``, where the memory may be empty. Every slot attends to the memory and to itself.
The loss counts *targets*: answers, and skills unless they are perturbed (random). There are six kinds of slots:

* *plan*: the goal and all skills of a task, without a memory, for the skill set lota, whose skills name types;
* *goal*: the goal of an instruction, without a memory, or after the memory at the start of the task;
* *trajectory*: the transcript (`append` layout) of a task and of the tasks after it, with targets at every step;
* *step*: one decision (`memory` layout). Lines that changed after the memory was written are hidden from the slot,
  which begins with their new versions. The *focus* precedes a skill that names instances. It is the type, name
  and place of the object that the plan needs next, and it is also a target;
* *probe*: short questions about the memory or changes: where an object is, if this place is open, if a lamp is on;
* *recall*: questions about an artificial memory (`planners.training.recall_probes`); its first line may be a question.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, takewhile

from memory.segments.segment import Segment
from planners.prompts.preamble import preamble
from planners.prompts.styles import FactRecord, make_style, place_of
from planners.prompts.text import PROGRESS, TYPE_LEVEL, TextPart, decision
from planners.training.recall_probes import KINDS, Question, make_scene
from planners.training.rollout_files import Rollout, TaskRecord
from planners.training.task_replay import TaskMemory, TaskReplay

IGNORE = -100  # label of a row without a target
PREAMBLE = "preamble"  # id of the first memory line that holds the preamble
PREAMBLE_LINES = 8
ROUNDING = 16  # padded lengths are multiples of it
Encode = Callable[[str], Sequence[int]]
VERB_WEIGHTS = {"pick": 2, "slice": 2, "go": 2, "find": 2}  # weight of a step in a draw, by verb; otherwise 1
LATER_OBJECT_WEIGHT = 3  # factor on these weights after the first put of a task with several objects


@dataclass(frozen=True, slots=True)
class Slot:
    """Token ids, their labels (`IGNORE`: no target), and ids of the memory lines that the slot does not see."""

    kind: str
    ids: tuple[int, ...]
    labels: tuple[int, ...]
    hidden_lines: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PackedExample:
    """Memory lines (id, token ids) in prompt order, and the slots that attend to them."""

    memory: tuple[tuple[str, tuple[int, ...]], ...]
    slots: tuple[Slot, ...]

    @property
    def memory_tokens(self) -> int:
        return sum(len(ids) for _, ids in self.memory)


def make_slot(kind: str, parts: Sequence[TextPart], encode: Encode, hidden: frozenset[str] = frozenset()) -> Slot:
    """Build a slot from texts, each encoded separately."""
    ids: list[int] = []
    labels: list[int] = []
    for text, is_target in parts:
        piece = encode(text)
        ids += piece
        labels += piece if is_target else [IGNORE] * len(piece)
    return Slot(kind, tuple(ids), tuple(labels), hidden)


def rounded(length: int) -> int:
    """Return the padded length, a multiple of `ROUNDING`."""
    return -(-length // ROUNDING) * ROUNDING


@dataclass(frozen=True, slots=True)
class SlotMix:
    """Numbers of slots of each kind in a pack, and options of these slots."""

    memory_lines: int = 80  # maximum lines of the memory; lines that the task uses are always kept
    trajectories: int = 2
    steps: int = 4
    probes: int = 2  # probe slots, each with several questions
    questions: int = 6  # maximum questions of a slot
    wordings: int = 0  # plan or goal slots, each for one wording of the instruction; such packs have no other slots
    plan: bool = False  # True: in skill set lota, the skills follow the goal; only without a memory
    after_memory: bool = False  # True: goal slots follow the memory at the start of the task; False: no memory
    recall: bool = False  # True: recall slots after artificial memories, without rollouts
    transcript: int = 0  # maximum tokens of a trajectory over several tasks; 0: only one task
    single_object_share: float = 1.0  # share of the single-object tasks at which a pack starts
    window: int = 24  # packs in a window of `planners.training.batches`; packs with few rows need more
    starts_per_rollout: int = 0  # number of a rollout's tasks, drawn at random, at which packs start; 0: all


@dataclass(frozen=True, slots=True)
class PromptForm:
    """Form of a model's prompts in training."""

    own_line: bool = False  # the focus has a line of its own, see `planners.prompts.text.decision`
    focus_share: float = 1.0  # share of the slots whose instance-level skills have a focus
    preamble_share: float = 0.0  # share of the memories of rollouts that begin with `PREAMBLE_LINES` example lines


PLANNER_FORM = PromptForm()


class Packer:
    """Packer of rollouts: at most one pack starts at each task."""

    def __init__(self, encode: Encode, mix: SlotMix, seed: int = 0, form: PromptForm = PLANNER_FORM) -> None:
        self.mix, self._form = mix, form
        self.random = random.Random(seed)
        self._encode = lru_cache(maxsize=200_000)(lambda text: tuple(encode(text)))

    def packs(self, rollout: Rollout, style_name: str) -> Iterator[PackedExample]:
        style, memory, numbered_turns = make_style(style_name), TaskMemory(), 0
        known: dict[str, FactRecord] = {}
        new_ids: set[str] = set()
        replays: list[TaskReplay] = []
        for number, task in enumerate(rollout.tasks, 1):
            memory.store.advance()
            new_ids |= memory.apply(style.edits(task.facts))
            known |= {fact.id: fact for fact in task.facts}
            replays.append(replay := TaskReplay(rollout.skills, task, style, memory, numbered_turns, known, new_ids))
            known |= replay.changes(len(task.steps))
            memory.store.advance()
            memory.apply(replay.history(len(task.steps) - PROGRESS, len(task.steps)))
            numbered_turns += len(task.steps)
            new_ids = memory.apply([style.finished(number, task.instructions[0], task.success, len(task.steps))])
        # only single-object tasks are left out at random: models fail most in tasks with several objects
        share = self.mix.single_object_share
        starts = [
            number for number, task in enumerate(rollout.tasks)
            if task.steps and (_pick_count(task) > 1 or share == 1.0 or self.random.random() < share)
        ]  # fmt: skip
        if 0 < self.mix.starts_per_rollout < len(starts):
            starts = sorted(self.random.sample(starts, self.mix.starts_per_rollout))
        for start in starts:
            yield self._with_preamble(self._pack(replays[start:]), style_name)

    def _with_preamble(self, pack: PackedExample, style: str) -> PackedExample:
        share = self._form.preamble_share if pack.memory else 0
        if not share or self.random.random() >= share:
            return pack
        return replace(pack, memory=((PREAMBLE, self._encode(preamble(style, PREAMBLE_LINES))), *pack.memory))

    def recall(self, segments: int) -> PackedExample:
        """Pack an artificial memory of about ``segments`` lines; half of these memories begin with a question."""
        scene = make_scene(self.random.choice(list(KINDS)), segments, self.random)
        memory = [(fact.id, self._encode(fact.text)) for fact in scene.facts]
        slots, count = [], self.mix.probes
        if self.random.random() < 0.5:
            question, count = self.random.choice(scene.questions), 2  # with few slots, this question weighs more
            memory.insert(0, ("cue", self._encode(f"{question.text()}\n")))
            slots.append(self._recall_slot([question], self.random.random() < 0.75))
        while len(slots) < count:
            questions = self.random.sample(scene.questions, min(self.mix.questions, len(scene.questions)))
            slots.append(self._recall_slot(questions))
        return PackedExample(tuple(memory), tuple(slots))

    def _recall_slot(self, questions: Sequence[Question], as_pronoun: bool = False) -> Slot:
        pairs = ([(question.text(as_pronoun), False), (f" {question.answer}\n", True)] for question in questions)
        return self._slot("recall", [part for pair in pairs for part in pair])

    def _pack(self, replays: Sequence[TaskReplay]) -> PackedExample:
        """Pack slots after the memory of the first replay; the other replays are the next tasks of the rollout."""
        replay, task = replays[0], replays[0].task
        if self.mix.wordings:
            wordings = self.random.sample(task.instructions, min(self.mix.wordings, len(task.instructions)))
            memory = self._sample_lines(replay.memory, replay.used_ids) if self.mix.after_memory else []
            kind, steps = "goal", []
            if self.mix.plan and not memory and replay.skills == TYPE_LEVEL:
                kind, steps = "plan", [part for step in self._steps(replay, False) for part in step]
            slots = (self._slot(kind, [*replay.goal(wording), *steps]) for wording in wordings)
            return PackedExample(self._lines(memory), tuple(slots))
        joined_replays = self._fitting_replays(replays) if self.mix.trajectories else [replay]
        memory = self._sample_lines(replay.memory, set().union(*(part.used_ids for part in joined_replays)))
        ids = {line.id for line in memory}
        slots = [self._trajectory(joined_replays) for _ in range(self.mix.trajectories)]
        for index in self._sample_steps(task)[: self.mix.steps]:
            slots.append(self._step(self._wording(task), replay, index, ids))
        slots += [slot for _ in range(self.mix.probes) if (slot := self._probe(task, replay, ids))]
        return PackedExample(self._lines(memory), tuple(slots))

    def _lines(self, lines: Sequence[Segment]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple((line.id, self._encode(line.text)) for line in lines)

    def _wording(self, task: TaskRecord) -> str:
        return self.random.choice(task.instructions)

    def _sample_steps(self, task: TaskRecord) -> list[int]:
        """Draw a step; return all steps, those nearest to it first: slots of similar length need little padding.

        With several objects, steps after the first put are drawn more often: models often pick the first object again.
        """
        steps = range(len(task.steps))
        weights = [VERB_WEIGHTS.get(step.label.split()[0], 1) for step in task.steps]
        if _pick_count(task) > 1:
            first = next((i for i, step in enumerate(task.steps) if step.label.startswith("put")), len(steps))
            weights[first + 1 :] = [LATER_OBJECT_WEIGHT * weight for weight in weights[first + 1 :]]
        (middle,) = self.random.choices(steps, weights)
        return sorted(steps, key=lambda index: abs(index - middle))

    def _sample_lines(self, memory: list[Segment], used_ids: set[str]) -> list[Segment]:
        """Drop random lines until ``mix.memory_lines`` are left, but no line that the task or a kept line needs."""
        spare = [line for line in memory if line.id.split("/")[0] not in used_ids]
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

    def _fitting_replays(self, replays: Sequence[TaskReplay]) -> list[TaskReplay]:
        """Return the first replay and the following ones that fit into one trajectory."""
        if not self.mix.transcript:
            return [replays[0]]
        lengths = accumulate(sum(len(self._encode(text)) for text, _ in self._task(replay, "")) for replay in replays)
        pairs = zip(replays, lengths, strict=True)
        fitting = takewhile(lambda pair: pair[0].task.steps and pair[1] <= self.mix.transcript, pairs)
        return [replay for replay, _ in fitting] or [replays[0]]

    def _trajectory(self, replays: Sequence[TaskReplay]) -> Slot:
        """Build a trajectory. All tasks but the last use the first wording, as the segments of finished tasks do."""
        wordings = [*(replay.task.instructions[0] for replay in replays[:-1]), self._wording(replays[-1].task)]
        focused = self._focused()
        tasks = (self._task(replay, wording, focused) for replay, wording in zip(replays, wordings, strict=True))
        parts = [part for task in tasks for part in task]
        return self._slot("trajectory", parts[len(replays[0].new_lines) :])

    def _focused(self) -> bool:
        return self.random.random() < self._form.focus_share

    def _task(self, replay: TaskReplay, wording: str, focused: bool = True) -> list[TextPart]:
        """Return a task's part of a transcript, beginning with the lines written since the previous task."""
        parts = [(line.text, False) for line in replay.new_lines] + replay.goal(wording)
        for index, step in enumerate(self._steps(replay, focused)):
            parts += [(replay.agent_lines[index], False), *step]
            parts += [(line.text, False) for line in replay.effects[index]]
        return parts

    def _steps(self, replay: TaskReplay, focused: bool) -> Iterator[list[TextPart]]:
        """Yield decision and failure of each step; a perturbed skill is not a target."""
        for step, turn, focus in zip(replay.task.steps, replay.turns, replay.foci, strict=True):
            yield [
                *self._decision(focus if focused else "", step.skill, step.skill == step.label),
                (turn.failure_line, False),
            ]

    def _decision(self, focus: str, skill: str, is_target: bool = True) -> list[TextPart]:
        return decision(focus, skill, is_target, self._form.own_line)

    def _step(self, wording: str, replay: TaskReplay, index: int, memory: set[str]) -> Slot:
        lines, hidden = replay.changed_lines[index]
        prompt = "".join(line.text for line in lines) + replay.query(wording, index)
        answer = self._decision(replay.foci[index] if self._focused() else "", replay.task.steps[index].label)
        return self._slot("step", [(prompt, False), *answer], hidden & memory)

    def _probe(self, task: TaskRecord, replay: TaskReplay, memory: set[str]) -> Slot | None:
        """Make a probe of the initial memory; one probe in four is about the changes up to a random step instead."""
        index = self.random.randrange(len(task.steps)) if self.random.random() < 0.25 else 0
        lines, hidden = replay.changed_lines[index]
        changes = replay.changes(index)
        pairs = list(_questions(list((replay.known | changes).values()), set(changes) or memory))
        if not pairs:
            return None
        sample = self.random.sample(pairs, min(self.mix.questions, len(pairs)))
        parts = [(line.text, False) for line in lines]
        parts += [part for question, answer in sample for part in ((question, False), (f" {answer}\n", True))]
        return self._slot("probe", parts, hidden & memory)

    def _slot(self, kind: str, parts: Sequence[TextPart], hidden: set[str] = frozenset()) -> Slot:
        return make_slot(kind, parts, self._encode, frozenset(hidden))


def _pick_count(task: TaskRecord) -> int:
    """Count the expert's successful pick-ups, not the labels: after a perturbed step, a label repeats."""
    steps = (step for step in task.steps if step.skill == step.label and step.ok)
    return sum(step.label.startswith("pick") for step in steps)


def _questions(facts: Sequence[FactRecord], ids: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (question, answer) about the facts in ``ids``: places of objects, states of places and of receptacles."""
    state = {fact.id: next((s for s in ("open", "closed", "on", "off") if s in fact.states), None) for fact in facts}
    for fact in facts:
        if fact.id not in ids or fact.gone:
            continue
        if fact.category == "object" and fact.place:
            yield f"where {fact.id}", f"{place_of(fact)}"
            if fact.place in ids and state.get(fact.place):
                yield f"door {fact.id}", state[fact.place]
        elif state[fact.id]:
            yield f"state {fact.id}", state[fact.id]
