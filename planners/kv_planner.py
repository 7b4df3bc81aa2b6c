"""The KV-cached planner: facts to segments, memory to a prefilled prompt, candidates to a skill."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from keep_agent.errors import ConfigError, check_choice
from memory.config.choices import REDUCTIONS
from planners.attempted_skills import Trail
from planners.base import DONE, POLICIES, Decision, Finished
from planners.planner_state import PlannerState
from planners.prompts.styles import Edit, history_edit, make_style, task_edit
from planners.prompts.text import NOTHING, Turn, clean, entity_text, in_short, understood

if TYPE_CHECKING:
    from memory.engine.base import Engine
    from memory.method import MemoryMethod
    from memory.prompt.report import Prefill
    from memory.session import MemorySession
    from planners.prompts.formats import Format
    from planners.prompts.styles import FactView

SHOWN = 5  # best candidates kept for the trace
GOAL_TOKENS = 64  # at most, for what an instruction asks for
GOAL_SEGMENTS = 40  # nearest to an instruction, all computed: with 80 of them 1 to 2 of 100 answers are others


class KVPlanner:
    """Scores the admissible skills (or writes one) behind a prompt whose memory comes from the KV cache.

    ``policy=score``: log-likelihood of every admissible skill, ``reduce`` over its tokens, ties to the first.
    ``policy=generate``: greedy text; what is not admissible is answered with the nearest candidate by scoring.
    What was in vain is not tried again (`Trail`), but with ``retry``: where skills fail by chance, as a
    robot's do.
    """

    def __init__(
        self,
        session: MemorySession,
        format: Format,
        style: str = "plain",
        policy: str = "score",
        reduce: str = "sum",
        max_new_tokens: int = 24,
        retry: bool = False,
        name: str = "kv",
    ) -> None:
        check_choice("planner.policy", policy, POLICIES)
        check_choice("planner.reduce", reduce, REDUCTIONS)
        if max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens={max_new_tokens} leaves no room for a skill; use 1 or more")
        self.name = name
        self.session = session
        self._format = format
        self._style = make_style(style, session.method.layout)
        self._policy, self._reduce, self._max_new_tokens = policy, reduce, max_new_tokens
        self._retry, self._trail = retry, Trail()
        self._candidate = lru_cache(maxsize=8192)(lambda skill: tuple(format.candidate(skill)))
        self._instruction, self._skills = "", ""
        self.goal = ""  # what the instruction asks for, as the model said before its first skill
        self._now = ""  # the agent's own line: part of every query, never of the memory
        self._decided = ""
        self._focus: list[int] = []  # what the last decision was for, as the model wrote it
        self._turns: list[Turn] = []  # of this task, but for the first ones, as many as `_past`
        self._past = 0
        self._written: dict[str, str | None] = {}  # texts by id since the last decision, for the trace
        self._told = 0  # turns of this task that are history segments already
        self._done = self._tasks = 0
        self._acting = False  # on the last decision
        self._torn = False  # a transcript that begins anew has to say what earlier turns said

    @property
    def weights(self) -> str:
        """A hash of the model's weights, dtype and configuration."""
        return self.session.engine.model_key

    @property
    def trained(self) -> str | None:
        """A hash of what was trained for its memory method besides the model; None if nothing was."""
        return self.session.method.trained

    def reset(self, instruction: str, skills: str) -> None:
        self.session.reset()
        self._style.reset()
        self._now, self._decided, self._focus = "", "", []
        self._turns, self._past, self._written, self._told, self._done, self._tasks = [], 0, {}, 0, 0, 0
        self._acting = self._torn = False
        self.begin(instruction, skills)

    def begin(self, instruction: str, skills: str) -> None:
        """A task in the house as it is remembered; the one before is finished."""
        self._instruction, self._skills, self.goal = instruction, skills, ""
        self._trail = Trail()

    def observe(self, facts: Sequence[FactView]) -> None:
        self.write(self._style.edits(facts))

    def write(self, edits: Sequence[Edit]) -> None:
        """Put segments into the memory, take them out; the agent's own line becomes part of every query instead."""
        store = self.session.store
        for edit in edits:
            if edit.category == "agent":
                self._now = edit.text or ""
                continue
            self._written.pop(edit.id, None)
            self._written[edit.id] = edit.text
            if edit.text is not None:
                store.put(edit.id, edit.category, edit.text, edit.parent)
            elif edit.id in store:
                store.remove(edit.id)

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        return self.choose(self.ready(), admissible)

    def ready(self) -> Prefill:
        """The prompt up to the place where the next skill is expected."""
        reading = self.understand()
        prefill = self.session.prefill(self.asked, self._query(), self._whole_query, instruction_ids=self.opening())
        return prefill if reading is None else prefill.behind(reading)

    def understand(self) -> Prefill | None:
        """Have the model say what a new instruction asks for, behind the memory: then it need not work that out at
        every step, and sticks to it. What is asked aside leaves no trace in a transcript. None if that is known.
        """
        cue = [] if self.goal or self._taken else self._format.goal(self._skills, self._instruction)
        if not cue:
            return None
        prefill = self.session.prefill(clean(self._instruction), cue, lasting=False, whole=True, budget=GOAL_SEGMENTS)
        ids = self.session.generate(prefill, GOAL_TOKENS, self._format.stops())
        self.goal = clean(self._format.decode(ids))
        return prefill

    @property
    def asked(self) -> str:
        """What the next prompt's segments are chosen by."""
        return clean(self._told_task)

    def choose(self, prefill: Prefill, admissible: Sequence[str]) -> Decision:
        """One of ``admissible`` behind the prompt that is ready."""
        began = time.perf_counter()
        skill, scores, tokens = self._choose(prefill, admissible)
        self._decided, self._torn = skill, False
        took = (time.perf_counter() - began) * 1e3
        extra: dict[str, Any] = {"written": list(self._written.items())}
        self._written = {}
        if self.goal:
            extra["understood"] = self.goal
        if self._focus:
            extra["focus"] = self._format.decode(self._focus)
        return Decision(skill, scores, prefill, score_ms=took, score_tokens=tokens, extra=extra)

    def adopt(self, other: KVPlanner) -> None:
        """Take another planner's decision for this one's own, with what it was for and what the task asks for: their
        transcripts go on alike.
        """
        self.goal = other.goal
        self._decided, self._focus = other._decided, list(other._focus)

    def act(self) -> None:
        """The decision is carried out from now on: what changes, changes in the next step. `feedback` implies it."""
        if not self._acting:
            self._acting = True
            self.session.advance()
            self.write(self._history(self._taken + 1 - self._format.progress))

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        """``skill`` may be another's; then what this planner's own was for is no part of the turn."""
        self.act()
        self._acting = False
        self._trail.take(skill)
        turn = Turn(skill, ok, "" if ok else message)
        self._turns.append(turn)
        over = max(0, min(self._told, self._taken - self._format.progress) - self._past)  # memory tells them
        self._turns, self._past = self._turns[over:], self._past + over
        if self._appends:
            focus = self._focus if skill == self._decided else []
            self.session.append_turn(self._format.answer(turn, focus))

    def finish_task(self, result: Finished, following: str | None) -> None:
        """Remember what was done: every executed skill, then the task itself."""
        edits = self._history(self._taken)
        self._tasks += 1
        edits.append(task_edit(self._tasks, clean(result.instruction), result.success, result.steps))
        self.write(edits)
        self.session.advance()  # what the next task brings stands behind what this one left
        self._turns, self._past, self._told = [], 0, 0
        self.begin(following or "", self._skills)

    @property
    def state(self) -> PlannerState:
        """What is remembered and what is under way, for `load`. Keys and values are not in it."""
        return PlannerState(
            style=self._style.name,
            instruction=self._instruction,
            skills=self._skills,
            goal=self.goal,
            now=self._now,
            turns=tuple(self._turns),
            past=self._past,
            told=self._told,
            done=self._done,
            tasks=self._tasks,
            acting=self._acting,
            memory=self.session.snapshot(),
        )

    def load(self, found: PlannerState, blocks: bool = True) -> None:
        """Remember what `state` gave, and nothing else; ``blocks=False``: what was encoded stays."""
        self.session.load(found.memory, blocks)
        self._style.restore(self.session.store)
        self.begin(found.instruction, found.skills)
        self.goal, self._now = found.goal, found.now
        self._turns, self._past, self._told = list(found.turns), found.past, found.told
        self._done, self._tasks = found.done, found.tasks
        self._acting, self._torn = found.acting, True
        self._decided, self._focus, self._written = "", [], {one.id: one.text for one in self.session.store}

    @contextmanager
    def whole(self) -> Iterator[None]:
        """All of the block happens to what is remembered, or nothing. What was encoded stays; a transcript of the
        `append` layout begins anew then.
        """
        state, kept = self.state, (self._decided, self._focus, dict(self._written), self._trail.copy())
        try:
            yield
        except BaseException:
            self.load(state, blocks=False)
            self._decided, self._focus, self._written, self._trail = kept
            raise

    def close(self) -> None:
        """Stop the engine, which other planners may share: the last of them closes. A storage that persists writes."""
        shut(self.session.engine, self.session.method)

    @property
    def style(self) -> str:
        return self._style.name

    @property
    def told_agent(self) -> bool:
        """Whether a fact has said where the agent is."""
        return bool(self._now)

    @property
    def task(self) -> tuple[str, str]:
        """The instruction under way, "" if there is none, and the name of its skill set."""
        return self._instruction, self._skills

    @property
    def _taken(self) -> int:
        """Turns of this task."""
        return self._past + len(self._turns)

    @property
    def _appends(self) -> bool:
        return self.session.method.layout == "append"

    def _query(self) -> list[int]:
        """The prompt's fresh end; in a transcript only what the last turn did not bring."""
        if not self._appends or self._torn:
            return self._whole_query()
        if self._taken:
            return self._format.cue(self._taken + 1, self._now)
        return self.opening() + self._format.cue(1)

    def opening(self) -> list[int]:
        """What tells the task in a transcript."""
        return self._format.opening(self._skills, self._told_task, self._now, self._tasks > 0)

    def _whole_query(self) -> list[int]:
        before = max(self._past, self._taken - self._format.progress)  # one that was loaded may remember fewer turns
        told = self._told_task if self._appends else in_short(self._instruction, self.goal)
        return self._format.query(self._skills, told, self._turns[before - self._past :], self._now, before)

    @property
    def _told_task(self) -> str:
        """The instruction, with what it asks for once the model has said that."""
        return understood(self._instruction, self.goal)

    def _history(self, until: int) -> list[Edit]:
        """Segments of the task's turns up to ``until`` that are not written yet; what failed was not done."""
        until = max(until, self._told)
        turns, self._told = self._turns[self._told - self._past : until - self._past], until
        numbered = enumerate(turns, self._done + 1)
        self._done += len(turns)
        return [history_edit(number, entity_text(turn.skill)) for number, turn in numbered if turn.ok]

    def _in_vain(self) -> set[str]:
        """Skills that would lead nowhere. What the agent did is no part of the world, else nothing would recur."""
        if self._retry:
            return set()
        world = frozenset(one.text for one in self.session.store if one.category != "history")
        return self._trail.arrive(world, self._now)

    def _choose(self, prefill: Any, admissible: Sequence[str]) -> tuple[str, tuple[tuple[str, float], ...], int]:
        """(skill, best candidates, rows scored or tokens decoded)."""
        if not admissible:
            raise ConfigError("there is no admissible skill to choose from")
        vain = self._in_vain()
        focus = self._format.focus(self._skills)
        self._focus = self.session.generate(prefill, focus, self._format.stops(), keep=True) if focus else []
        skill, scores, tokens = self._best(prefill, admissible)
        if skill in vain or (skill == DONE and self._after_something()):  # then something else, and no end
            others = [one for one in admissible if one not in vain]
            left = [one for one in others if one != DONE] or others or admissible
            skill, scores, more = self._best(prefill, left)
            tokens += more
        return skill, scores, tokens + len(self._focus)

    def _after_something(self) -> bool:
        """Does the focus name what the plan is after? Then the model would not end the task if that were there."""
        return bool(self._focus) and not self._format.decode(self._focus).strip().startswith(NOTHING)

    def _best(self, prefill: Any, skills: Sequence[str]) -> tuple[str, tuple[tuple[str, float], ...], int]:
        """As `_choose`, of ``skills``, behind the focus."""
        tokens = 0
        if self._policy == "generate":
            ids = self.session.generate(prefill, self._max_new_tokens, self._format.stops())
            tokens = len(ids)
            text = _spelled(self._format.decode(ids))
            exact = next((skill for skill in skills if _spelled(skill) == text), None)
            if exact is not None:
                return exact, (), tokens
        result = self.session.score(prefill, [self._candidate(skill) for skill in skills], self._reduce, SHOWN)
        values = result.scores.tolist()
        order = sorted(range(len(skills)), key=lambda i: (-values[i], i))[:SHOWN]
        return skills[order[0]], tuple((skills[i], values[i]) for i in order), tokens + result.computed_tokens


def shut(engine: Engine, method: MemoryMethod) -> None:
    """Stop an engine; then a storage that persists writes. May be called twice."""
    try:
        engine.close()
    finally:
        method.storage.flush()


def _spelled(skill: str) -> str:
    """One spelling for a skill, however a format writes names."""
    return entity_text(clean(skill))
