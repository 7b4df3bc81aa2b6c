"""Replay of a rollout's task through the memory: prompt texts and changed lines at every step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from planners.prompts import text as texts
from planners.prompts.styles import Edit, FactRecord, PromptStyle, place_of
from planners.training.rollout_files import TaskRecord

TARGET_VERBS = ("pick", "put", "slice", "turn", "sit")  # verbs of skills on a target; earlier steps lead to it


class TaskMemory:
    """Segments of a rollout as text, without token ids. ``agent_line`` is part of queries, not of the memory."""

    def __init__(self) -> None:
        self.store = SegmentStore()
        self.agent_line = ""

    def apply(self, edits: Iterable[Edit]) -> set[str]:
        """Write edits; return the ids of the changed segments."""
        changed, store = set(), self.store
        for edit in edits:
            before = store.changes
            if edit.category == "agent":
                self.agent_line = edit.text or ""
            elif edit.text is not None:
                store.put(edit.id, edit.category, edit.text, edit.parent)
            elif edit.id in store:
                store.remove(edit.id)
            if store.changes > before:
                changed.add(edit.id)
        return changed

    def ordered(self) -> list[Segment]:
        """Return the segments sorted by last change and creation; the current task's history comes last."""
        finished = self.store.last_finished

        def key(segment: Segment) -> tuple[bool, int, int]:
            is_recent = segment.category == "history" and segment.created > finished
            return is_recent, segment.last_changed, segment.created

        return sorted(self.store, key=key)


class TaskReplay:
    """One replayed task: the memory at its start, and the texts and changes of each step.

    :param memory: memory at the start, to which the replay applies the changes of each step
    :param numbered_turns: number of turns of earlier tasks; the first history line has the next number
    :param known: facts at the start, by id
    :param new_ids: ids of the lines written since the end of the previous task
    """

    def __init__(
        self, skills: str, task: TaskRecord, style: PromptStyle, memory: TaskMemory, numbered_turns: int,
        known: Mapping[str, FactRecord], new_ids: Collection[str],
    ) -> None:  # fmt: skip
        self.memory = memory.ordered()
        self.new_lines = [line for line in self.memory if line.id in new_ids]
        self.skills, self.task, self._style, self._numbered_turns, self.known = (
            skills,
            task,
            style,
            numbered_turns,
            dict(known),
        )
        self.agent_lines: list[str] = []  # line about the agent before each step
        self.turns = [step.turn for step in task.steps]
        self.effects: list[list[Segment]] = []  # lines written by each step, in prompt order
        self.changed_lines: list[tuple[list[Segment], set[str]]] = []  # by step: lines changed so far, and their ids
        changed: set[str] = set()
        for number, step in enumerate(task.steps, 1):
            self.changed_lines.append(([line for line in memory.ordered() if line.id in changed], set(changed)))
            self.agent_lines.append(memory.agent_line)
            memory.store.advance()
            changed |= memory.apply(self.history(number - texts.PROGRESS - 1, number - texts.PROGRESS))
            effects = memory.apply(style.edits(step.facts))
            changed |= effects
            self.effects.append([line for line in memory.ordered() if line.id in effects])
        self.foci = [""] * len(task.steps) if skills == texts.TYPE_LEVEL else self._make_focus_texts()
        self.used_ids = {id.split("/")[0] for id in changed} | _skill_entities(task)

    def history(self, first: int, last: int) -> list[Edit]:
        """Return the history lines of turns ``first`` to ``last`` (exclusive) that did not fail."""
        first = max(0, first)
        turns = enumerate(self.turns[first : max(0, last)], self._numbered_turns + first + 1)
        return [self._style.history(number, texts.entity_text(turn.skill)) for number, turn in turns if turn.ok]

    def changes(self, index: int) -> dict[str, FactRecord]:
        """Return the facts changed by the steps before ``index``, in their latest version."""
        return {fact.id: fact for step in self.task.steps[:index] for fact in step.facts}

    def goal(self, wording: str) -> list[texts.TextPart]:
        """Return the query for the goal of the instruction, and the goal as its answer."""
        return [(texts.goal_query(self.skills, wording), False), (f" {self.task.goal}\n", True)]

    def query(self, wording: str, index: int) -> str:
        """Return the query of the prompt at step ``index``."""
        task = texts.goal_or_instruction(wording, self.task.goal)
        return texts.query_text(
            self.skills, task, self.turns[max(0, index - texts.PROGRESS) : index], self.agent_lines[index]
        )

    def _make_focus_texts(self) -> list[str]:
        """Return the focus of each step: type, name and place of the next target (`TARGET_VERBS`).

        While no fact about the target is known, the focus names the next place to search.
        """
        known, foci = dict(self.known), []
        for index, step in enumerate(self.task.steps):
            words = [texts.NO_TARGET] * texts.FOCUS
            if target := self._next(index, TARGET_VERBS):
                fact = known.get("_".join(target))
                if fact is None or fact.gone:
                    words = [target[0], "unseen", "_".join(self._next(index, ("go", "open")) or [texts.NO_TARGET])]
                else:
                    words = [target[0], fact.id, place_of(fact) or fact.id]
            foci.append(" ".join(words))
            known |= {fact.id: fact for fact in step.facts}
        return foci

    def _next(self, index: int, verbs: Sequence[str]) -> list[str] | None:
        """Find the first expert skill with one of ``verbs`` from step ``index`` on; return its last two words."""
        labels = (step.label.split() for step in self.task.steps[index:])
        return next((words[-2:] for words in labels if words[0] in verbs), None)


def _skill_entities(task: TaskRecord) -> set[str]:
    """Return the entities in the executed and the expert's skills; the memory must keep lines about these entities."""
    lines = (texts.candidate_text(text) for step in task.steps for text in (step.skill, step.label))
    return {word for line in lines for word in line.split() if "_" in word}
