"""Planner over the KV cache: observe facts, update memory, prefill the prompt, choose a skill, record its result."""

from __future__ import annotations

import copy
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from keep_agent.errors import ConfigError, check_choice
from memory.config.choices import REDUCTIONS
from planners.base import DONE, POLICIES, Decision, TaskResult
from planners.planner_state import PlannerState
from planners.prompts import text
from planners.prompts.styles import make_style
from planners.prompts.task_log import TaskLog

if TYPE_CHECKING:
    from memory.prompt.report import Prefill
    from memory.session import MemorySession
    from planners.prompts.formats import Format
    from planners.prompts.styles import Edit, FactView

GOAL_TOKENS = 64  # maximum length of a generated goal
GOAL_SEGMENTS = 40  # maximum memory segments in the prompt for a goal; 80 would change only 1 to 2 % of the goals
TRACED_CANDIDATES = 5  # number of best candidates that the trace records
MAX_SITUATIONS = 2000  # maximum number of situations and world states that are remembered


class AttemptedSkills:
    """Record of skills that had no effect during one task.

    A *situation* is the known state of world and agent. A skill that changes neither is futile in that situation. A
    skill that leads back to an earlier situation is futile in all situations with the same state of the world.
    """

    def __init__(self) -> None:
        self._futile: dict[Hashable, set[str]] = {}  # by situation and by world state, oldest use first
        self._situation: tuple[Hashable, Hashable] | None = None
        self._skill: str | None = None

    def futile(self, world: Hashable, agent: Hashable) -> set[str]:
        """Judge the last recorded skill by the current situation (world, agent); return the skills futile in it."""
        previous, self._situation = self._situation, (world, agent)
        if previous is not None and self._skill is not None and self._situation in self._futile:
            self._touch(previous if self._situation == previous else previous[0]).add(self._skill)
        self._skill = None
        in_world = self._touch(world) if world in self._futile else set()
        return in_world | self._touch(self._situation)

    def _touch(self, key: Hashable) -> set[str]:
        """Return the futile skills of ``key`` and make it the latest key; keep the latest `MAX_SITUATIONS` keys."""
        self._futile[key] = skills = self._futile.pop(key, set())
        if len(self._futile) > MAX_SITUATIONS:
            del self._futile[next(iter(self._futile))]
        return skills

    def record(self, skill: str) -> None:
        """Record an executed skill; the next call of `futile` determines its effect."""
        self._skill = skill

    def copy(self) -> AttemptedSkills:
        clone = copy.copy(self)
        clone._futile = {key: set(skills) for key, skills in self._futile.items()}
        return clone


class KVPlanner:
    """Planner whose prompts reuse a KV cache. Layout `memory` rebuilds the prompt at every step, `append` extends it.

    :param session: the agent's memory, which prefills and scores prompts
    :param format: encoder of a prompt's parts as token ids of the session's model
    :param style: wording of facts, one of `planners.prompts.styles.STYLES`
    :param policy: ``score``: choose the admissible skill of highest log-likelihood, the first one in a tie;
        ``generate``: decode greedily, and fall back to ``score`` if the text is not an admissible skill
    :param reduce: ``sum`` or ``mean`` of the log-likelihoods of a skill's tokens
    :param max_new_tokens: maximum tokens of a generated skill
    :param retry: allow skills that had no effect in the same situation: on a real robot a second try may succeed
    """

    def __init__(
        self, session: MemorySession, format: Format, style: str = "plain", policy: str = "score", reduce: str = "sum",
        max_new_tokens: int = 24, retry: bool = False, name: str = "kv",
    ) -> None:  # fmt: skip
        check_choice("planner.policy", policy, POLICIES)
        check_choice("planner.reduce", reduce, REDUCTIONS)
        if max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens={max_new_tokens} leaves no room for a skill; use 1 or more")
        self.name, self.session = name, session
        self._format, self._policy, self._reduce = format, policy, reduce
        self._max_new_tokens, self._retry = max_new_tokens, retry
        self._candidate = lru_cache(maxsize=8192)(lambda skill: tuple(format.candidate(skill)))
        self._style, self._appends = make_style(style, session.method.layout), session.method.layout == "append"
        self._clear()
        self.begin("", "")

    def _clear(self) -> None:
        self._log = TaskLog()
        self._agent_line = ""  # line about the agent: part of every query, never of the memory
        self._focus: list[int] = []  # token ids of the focus of a decision whose result is not yet recorded
        self._edits: dict[str, str | None] = {}  # by segment id: text changed since the last decision; None: removed
        self._acting = False  # True while the last decision is executed
        self._restarted = False  # True after `load`: a transcript's next query repeats task and latest turns

    @property
    def weights(self) -> str:
        """Hash of the model's weights, dtype and configuration."""
        return self.session.engine.model_key

    @property
    def trained(self) -> str | None:
        """Hash of the weights that were trained for the memory method; None for a method without weights."""
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
        """Text by which segments of the next prompt are retrieved: the instruction and, if known, the goal."""
        return text.clean(text.with_goal(self._instruction, self.goal))

    def reset(self, instruction: str, skills: str) -> None:
        self.session.reset()
        self._style.reset()
        self._clear()
        examples = enumerate(self._format.examples, 1)
        self.write([self._style.example(number, example.instruction, example.skills) for number, example in examples])
        self.begin(instruction, skills)

    def begin(self, instruction: str, skills: str) -> None:
        """Begin a task and keep the memory. The goal is unknown until `generate_goal`."""
        self._instruction, self._skills, self.goal = instruction, skills, ""
        self._attempts = AttemptedSkills()

    def observe(self, facts: Sequence[FactView]) -> None:
        self.write(self._style.edits(facts))

    def write(self, edits: Sequence[Edit]) -> None:
        """Write or remove memory segments. The line about the agent is not a segment: every query contains it."""
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
        """Prefill the prompt up to the position of the next skill; generate the goal first if it is unknown."""
        goal, session = self.generate_goal(), self.session
        prefill = session.prefill(self.retrieval_text, self._query(), self._full_query, instruction_ids=self.opening())
        return prefill if goal is None else prefill.with_costs_of(goal)

    def generate_goal(self) -> Prefill | None:
        """Generate the goal of a new instruction, once per task; return the prefill of the separate prompt.

        Returns None if the goal is known, a skill of the task was already executed, or the prompt format uses no goals.
        """
        query = [] if self.goal or self._log.length else self._format.goal(self._skills, self._instruction)
        if not query:
            return None
        instruction = text.clean(self._instruction)
        prefill = self.session.prefill(instruction, query, persist=False, recompute_isolated=True, budget=GOAL_SEGMENTS)
        ids = self.session.generate(prefill, GOAL_TOKENS, self._format.stops())
        self.goal = text.clean(self._format.decode(ids))
        return prefill

    def choose(self, prefill: Prefill, admissible: Sequence[str]) -> Decision:
        """Generate the focus (type, name and place of the target), then choose one of the skills ``admissible``.

        If the best skill is futile, or ends the task although the focus names a target, the best other skill is chosen.
        """
        start = time.perf_counter()
        if not admissible:
            raise ConfigError("there is no admissible skill to choose from; give at least one")
        # history segments are left out: each successful skill adds one, so that no situation would recur
        world = frozenset(segment.text for segment in self.session.store if segment.category != "history")
        futile, focus, after = set() if self._retry else self._attempts.futile(world, self._agent_line), [], []
        if count := self._format.focus(self._skills):
            focus = self.session.generate(prefill, count, self._format.stops(), keep=True)
            self.session.extend(prefill, after := self._format.after_focus(self._skills))
        extra = {"focus": self._format.decode(focus)} if focus else {}
        skill, scores, tokens = self._best(prefill, admissible)
        if skill in futile or (skill == DONE and extra and not extra["focus"].strip().startswith(text.NO_TARGET)):
            useful = [skill for skill in admissible if skill not in futile]
            rest = [skill for skill in useful if skill != DONE] or useful or admissible
            skill, scores, more = self._best(prefill, rest)
            tokens += more
        self._focus, self._restarted = focus, False
        score_ms = (time.perf_counter() - start) * 1e3
        extra = {"written": list(self._edits.items()), **({"understood": self.goal} if self.goal else {}), **extra}
        self._edits = {}
        return Decision(skill, scores, prefill, score_ms, tokens + len(focus) + len(after), extra)

    def _best(self, prefill: Prefill, skills: Sequence[str]) -> tuple[str, tuple[tuple[str, float], ...], int]:
        """Return the best of ``skills``, the best scores, and the number of scored rows and decoded tokens."""
        tokens = 0
        if self._policy == "generate":
            ids = self.session.generate(prefill, self._max_new_tokens, self._format.stops())
            tokens, wording = len(ids), text.spelling(self._format.decode(ids))
            if same := [skill for skill in skills if text.spelling(skill) == wording]:
                return same[0], (), tokens
        result = self.session.score(prefill, [*map(self._candidate, skills)], self._reduce, TRACED_CANDIDATES)
        values = result.scores.tolist()
        order = sorted(range(len(skills)), key=lambda i: (-values[i], i))[:TRACED_CANDIDATES]
        return skills[order[0]], tuple((skills[i], values[i]) for i in order), tokens + result.computed_tokens

    def adopt(self, leader: KVPlanner) -> None:
        """Copy goal and focus from ``leader``, another planner, so that both transcripts agree."""
        self.goal, self._focus = leader.goal, list(leader._focus)

    def act(self) -> None:
        """Mark the start of execution: facts observed later belong to the next step. `feedback` does this if needed."""
        if not self._acting:
            self._acting = True
            self.session.advance()
            self.write(self._log.archive(self._log.length + 1 - self._format.progress, self._style))

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        """Record the result of ``skill``, which follows the decision's focus even if another skill was executed."""
        self.act()
        self._acting = False
        self._attempts.record(skill)
        turn = text.Turn(skill, ok, "" if ok else message)
        self._log.add(turn, self._format.progress)
        if self._appends:
            self.session.append_turn(self._format.answer(self._skills, turn, self._focus))
        self._focus = []

    def finish_task(self, result: TaskResult, following: str | None) -> None:
        """End the task: write segments for its turns that are not yet in the memory, and for the task itself."""
        self.write(self._log.finish(result.instruction, result.success, result.steps, self._style))
        self.session.advance()  # segments of the next task come after the segments of this task
        self.begin(following or "", self._skills)

    @property
    def state(self) -> PlannerState:
        """Memory and current task for `load`, without the KV cache."""
        texts = self._style.name, self._instruction, self._skills, self.goal, self._agent_line
        return PlannerState(*texts, self._log.copy(), self._acting, self.session.snapshot())

    def load(self, state: PlannerState, blocks: bool = True) -> None:
        """Replace memory and task by ``state``; release the session's KV blocks unless ``blocks`` is False."""
        self.session.load(state.memory, blocks)
        self._style.restore(self.session.store)
        self._clear()
        self.begin(state.instruction, state.skills)
        self.goal, self._agent_line, self._log = state.goal, state.agent_line, state.log.copy()
        self._acting, self._restarted = state.acting, True
        self._edits = {segment.id: segment.text for segment in self.session.store}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Restore memory and task if the ``with`` body raises. KV blocks stay, but an `append` transcript restarts."""
        state, last = self.state, (self._focus, dict(self._edits), self._attempts.copy())
        try:
            yield
        except BaseException:
            self.load(state, blocks=False)
            self._focus, self._edits, self._attempts = last
            raise

    def close(self) -> None:
        """Stop the engine and flush the storage. If several planners share both, close only the last planner."""
        try:
            self.session.engine.close()
        finally:
            self.session.method.storage.flush()

    def opening(self) -> list[int]:
        """Return the token ids that state the task in a transcript."""
        instruction = text.with_goal(self._instruction, self.goal)
        return self._format.opening(self._skills, instruction, self._agent_line, self._log.tasks > 0)

    def _query(self) -> list[int]:
        """Return the token ids of the query; in a transcript, only the ids that it does not yet contain."""
        if not self._appends or self._restarted:
            return self._full_query()
        if self._log.length:
            return self._format.cue(self._skills, self._log.length + 1, self._agent_line)
        return self.opening() + self._format.cue(self._skills, 1)

    def _full_query(self) -> list[int]:
        """Return the token ids that state the task and its latest turns."""
        turns, earlier = self._log.latest(self._format.progress)
        state = text.with_goal if self._appends else text.goal_or_instruction
        return self._format.query(self._skills, state(self._instruction, self.goal), turns, self._agent_line, earlier)
