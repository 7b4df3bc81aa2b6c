"""Planner over the KV cache: observe facts, update memory, prefill the prompt, choose a skill, take feedback."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from planners.base import Decision, TaskResult
from planners.planner_state import PlannerState
from planners.prompts.text import Edit, TaskLog, Turn, clean, goal_or_instruction, make_style, with_goal
from planners.skill_choice import AttemptedSkills, SkillChooser

if TYPE_CHECKING:
    from memory.engine.base import Engine
    from memory.method import MemoryMethod
    from memory.prompt.report import Prefill
    from memory.session import MemorySession
    from planners.prompts.formats import Format
    from planners.prompts.text import FactView

GOAL_TOKENS = 64  # maximum length of a generated goal
GOAL_SEGMENTS = 40  # nearest to the instruction, all of them computed: with 80, 1 to 2 of 100 goals differ


class KVPlanner:
    """Chooses the skill that follows a prompt whose memory comes from the KV cache.

    :param policy: ``score`` or ``generate``, see `SkillChooser`
    :param retry: choose skills again that had no effect; for worlds in which skills fail by chance, as a robot's do
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
        self._chooser = SkillChooser(session, format, policy, reduce, max_new_tokens)
        self.name = name
        self.session = session
        self._format, self._retry = format, retry
        self._style = make_style(style, session.method.layout)
        self.goal = ""  # of the instruction, as the model wrote it before the first skill
        self._clear()
        self.begin("", "")

    def _clear(self) -> None:
        self._log = TaskLog()
        self._agent_line = ""  # the agent's own line: part of every query, never of the memory
        self._last_skill = ""
        self._last_focus: list[int] = []
        self._edits: dict[str, str | None] = {}  # segment texts by id since the last decision, for the trace
        self._acting = False  # on the last decision
        self._restarted = False  # the next query of a transcript repeats the task and its turns

    @property
    def weights(self) -> str:
        """Hash of the model's weights, dtype and configuration."""
        return self.session.engine.model_key

    @property
    def trained(self) -> str | None:
        """Hash of the weights that were trained for the memory method; None if it has none."""
        return self.session.method.trained

    @property
    def style(self) -> str:
        """Name of the prompt style."""
        return self._style.name

    @property
    def task(self) -> tuple[str, str]:
        """The current instruction, "" for none, and the name of its skill set."""
        return self._instruction, self._skills

    @property
    def knows_agent(self) -> bool:
        """Whether a fact about the agent itself was observed."""
        return bool(self._agent_line)

    @property
    def retrieval_text(self) -> str:
        """The text by which segments of the next prompt are chosen."""
        return clean(with_goal(self._instruction, self.goal))

    def reset(self, instruction: str, skills: str) -> None:
        self.session.reset()
        self._style.reset()
        self._clear()
        self.begin(instruction, skills)

    def begin(self, instruction: str, skills: str) -> None:
        """Begin a task in the same house; the memory stays."""
        self._instruction, self._skills, self.goal = instruction, skills, ""
        self._attempts = AttemptedSkills()

    def observe(self, facts: Sequence[FactView]) -> None:
        self.write(self._style.edits(facts))

    def write(self, edits: Sequence[Edit]) -> None:
        """Write segments to the memory or remove them; the agent's own line is kept for the queries instead."""
        store = self.session.store
        for edit in edits:
            if edit.category == "agent":
                self._agent_line = edit.text or ""
                continue
            self._edits.pop(edit.id, None)
            self._edits[edit.id] = edit.text
            if edit.text is not None:
                store.put(edit.id, edit.category, edit.text, edit.parent)
            elif edit.id in store:
                store.remove(edit.id)

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        return self.choose(self.prefill(), admissible)

    def prefill(self) -> Prefill:
        """Prefill the prompt up to the position of the next skill, after the goal if it is not known yet."""
        goal = self.understand()
        prefill = self.session.prefill(
            self.retrieval_text, self._query(), self._full_query, instruction_ids=self.opening()
        )
        return prefill if goal is None else prefill.behind(goal)

    def understand(self) -> Prefill | None:
        """Generate the goal of a new instruction after the memory, once per task; return its prompt.

        Later queries contain the goal, so that the plan does not change with every step. A transcript does not keep the
        prompt. None if the goal is known, the task has begun, or the format asks for no goal.
        """
        query = [] if self.goal or self._log.length else self._format.goal(self._skills, self._instruction)
        if not query:
            return None
        prefill = self.session.prefill(clean(self._instruction), query, lasting=False, whole=True, budget=GOAL_SEGMENTS)
        ids = self.session.generate(prefill, GOAL_TOKENS, self._format.stops())
        self.goal = clean(self._format.decode(ids))
        return prefill

    def choose(self, prefill: Prefill, admissible: Sequence[str]) -> Decision:
        """Choose one of ``admissible`` after the prompt of `prefill`."""
        start = time.perf_counter()
        choice = self._chooser.choose(prefill, admissible, self._futile(), self._format.focus(self._skills))
        self._last_skill, self._last_focus, self._restarted = choice.skill, choice.focus, False
        score_ms = (time.perf_counter() - start) * 1e3
        extra: dict[str, Any] = {"written": list(self._edits.items())}
        self._edits = {}
        if self.goal:
            extra["understood"] = self.goal
        if choice.focus:
            extra["focus"] = self._format.decode(choice.focus)
        return Decision(choice.skill, choice.scores, prefill, score_ms, choice.tokens, extra)

    def adopt(self, leader: KVPlanner) -> None:
        """Replace the last decision, its focus and the goal by another planner's, so that their transcripts agree."""
        self.goal = leader.goal
        self._last_skill, self._last_focus = leader._last_skill, list(leader._last_focus)

    def act(self) -> None:
        """Begin to execute the decision: later changes belong to the next step. `feedback` calls it if needed."""
        if not self._acting:
            self._acting = True
            self.session.advance()
            self.write(self._log.archive(self._log.length + 1 - self._format.progress))

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        """Take the result of ``skill``. The focus is part of the turn only if this planner chose the skill."""
        self.act()
        self._acting = False
        self._attempts.record(skill)
        turn = Turn(skill, ok, "" if ok else message)
        self._log.add(turn, self._format.progress)
        if self._appends:
            focus = self._last_focus if skill == self._last_skill else []
            self.session.append_turn(self._format.answer(turn, focus))

    def finish_task(self, result: TaskResult, following: str | None) -> None:
        """Write segments for every executed skill and for the task itself."""
        self.write(self._log.finish(result.instruction, result.success, result.steps))
        self.session.advance()  # segments of the next task come after those of this one
        self.begin(following or "", self._skills)

    @property
    def state(self) -> PlannerState:
        """Memory and current task for `load`, without keys and values."""
        texts = self._style.name, self._instruction, self._skills, self.goal, self._agent_line
        return PlannerState(*texts, self._log.copy(), self._acting, self.session.snapshot())

    def load(self, state: PlannerState, blocks: bool = True) -> None:
        """Replace memory and task by ``state``. With ``blocks=False`` encoded KV blocks stay in the pool."""
        self.session.load(state.memory, blocks)
        self._style.restore(self.session.store)
        self._clear()
        self.begin(state.instruction, state.skills)
        self.goal, self._agent_line, self._log = state.goal, state.agent_line, state.log.copy()
        self._acting, self._restarted = state.acting, True
        self._edits = {segment.id: segment.text for segment in self.session.store}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Restore memory and task if the block raises.

        Encoded KV blocks stay; a transcript of the `append` layout is then restarted.
        """
        state, last = self.state, (self._last_skill, self._last_focus, dict(self._edits), self._attempts.copy())
        try:
            yield
        except BaseException:
            self.load(state, blocks=False)
            self._last_skill, self._last_focus, self._edits, self._attempts = last
            raise

    def close(self) -> None:
        """Stop the engine and flush the storage. Planners that share them are closed by the last one."""
        shut(self.session.engine, self.session.method)

    @property
    def _appends(self) -> bool:
        return self.session.method.layout == "append"

    def opening(self) -> list[int]:
        """Token ids that state the task in a transcript."""
        instruction = with_goal(self._instruction, self.goal)
        return self._format.opening(self._skills, instruction, self._agent_line, self._log.tasks > 0)

    def _query(self) -> list[int]:
        """Token ids after the memory; in a transcript those that it does not hold yet."""
        if not self._appends or self._restarted:
            return self._full_query()
        if self._log.length:
            return self._format.cue(self._log.length + 1, self._agent_line)
        return self.opening() + self._format.cue(1)

    def _full_query(self) -> list[int]:
        """Token ids that state the task and its latest turns."""
        turns, earlier = self._log.latest(self._format.progress)
        state = with_goal if self._appends else goal_or_instruction
        return self._format.query(self._skills, state(self._instruction, self.goal), turns, self._agent_line, earlier)

    def _futile(self) -> set[str]:
        """Skills without effect in this situation. History segments are not part of it: no situation would recur."""
        if self._retry:
            return set()
        world = frozenset(segment.text for segment in self.session.store if segment.category != "history")
        return self._attempts.futile(world, self._agent_line)


def shut(engine: Engine, method: MemoryMethod) -> None:
    """Stop an engine, then flush a storage that persists. May be called twice."""
    try:
        engine.close()
    finally:
        method.storage.flush()
