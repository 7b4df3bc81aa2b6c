"""The planner API: one robot's agent, which observes, plans, is told what became of it, and remembers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.outcome import Outcome, checked_flag
from keep_agent.agent.memory_file import memory_path, read_memory, write_memory
from keep_agent.agent.prefetch import Prefetcher
from keep_agent.agent.trace_recorder import quietly
from keep_agent.agent.types import Asynchronous, Decision, Ready
from keep_agent.agent.validation import (
    AGENT_UNKNOWN,
    as_list,
    check_number,
    check_report,
    check_size,
    check_snapshot,
    checked_facts,
    checked_request,
    read_agent_state,
    request_digest,
)
from keep_agent.errors import CapacityError, ConfigError, StaleError
from keep_agent.rollout.results import TaskOutcome
from keep_agent.rollout.trace import Entry, agent_entry, step_entry, step_numbers, task_entry
from planners.base import DONE, TaskResult
from planners.base import Decision as Decided
from planners.planner_state import PlannerState, read_state
from planners.prompts.text import TYPE_LEVEL, UPDATE_SUFFIX, Edit, clean, entity_names

if TYPE_CHECKING:
    from envs.fact import Fact
    from planners.kv_planner import KVPlanner
    from planners.prompts.text import FactView

log = logging.getLogger(__name__)

GROUNDED = "grounded"
MESSAGE = 200  # characters of a failure that a prompt tells
HISTORY = 1000  # executed skills, and finished tasks
EMBEDDED = 32  # texts of one job: as long may a plan have to wait for it


@dataclass(frozen=True)
class _Open:
    """A decision that nobody has reported on yet."""

    decision: Decision
    asked: str  # a digest of the instruction and the skills
    settled: bool = True  # nothing was observed since


class Agent(Asynchronous):
    """One robot's planner: `observe`, `plan`, `report`, in turns. Safe to call from several threads.

    Every call runs on the engine's worker, so several agents may share an engine. Each has an asynchronous twin
    (`aplan`, ...), which leaves the event loop free. A task begins with the first `plan` of its instruction. It ends
    well when ``done`` was decided and reported, or as `finish` says; another instruction ends it as failed. A decision
    nobody reported on counts as carried out, but where `finish` says that the task failed. The same plan asked twice in
    a row, with nothing observed in between, is one decision: asking again after a lost answer does no harm.

    :param ahead: encode what changed in the background, while the robot moves; plans go first
    :param limit: things it remembers at most; more are refused
    :param history: executed skills, and finished tasks, that it remembers at most: the oldest are forgotten
    :param record: takes the entries of the trace, as an episode would leave them (docs/evaluation.md)
    """

    def __init__(
        self,
        planner: KVPlanner,
        name: str = "agent",
        ahead: bool = True,
        limit: int | None = None,
        history: int = HISTORY,
        record: Callable[[Entry], None] | None = None,
    ) -> None:
        self.name, self._limit = name, limit
        self._history = history if limit is None else min(limit, history)
        self._planner, self._engine, self._session = planner, planner.session.engine, planner.session
        self._ahead = Prefetcher(planner.session, lambda: planner.retrieval_text) if ahead else None
        self._record = quietly(record)
        self._owns = self._again = self._warned = False
        self._forget()
        self._record(agent_entry(name))

    @classmethod
    def from_config(
        cls,
        planner: str = "keep",
        *,
        model: str = "planner-tiny",
        overrides: Sequence[str] = (),
        name: str = "agent",
        ahead: bool = True,
        record: Callable[[Entry], None] | None = None,
    ) -> Agent:
        """An agent with a model of its own; `close` it, or use it as a context manager.

        :param planner: one of ``configs/planner`` that has a model
        :param model: one of ``configs/model``, a folder, or a name on the hub
        :param overrides: ``KEY=VALUE`` as on a command line: ``prompt.style=linked``, ``memory=cacheblend``, ...
        :raises KeepError: for what cannot be loaded or put together; Hydra's own errors for an unknown name
        """
        from keep_agent.config.compose import choose_agent  # here: it loads Hydra

        config = choose_agent(planner, model, overrides)
        from keep_agent.config.planner_factory import (
            agent_brain,  # here: it loads torch, and what is mistyped is refused before
        )

        made = cls(agent_brain(config).planner(name), name, ahead, record=record)
        made._owns = True
        return made

    # -- the turns -------------------------------------------------------------------------------------------------

    def observe(self, facts: Iterable[FactView | Mapping[str, Any]]) -> list[Fact]:
        """Remember facts that are new or different: all of them, or none if one is wrong.

        :param facts: `envs.fact.Fact`, or mappings with its fields
        :returns: them as they were understood
        :raises DataError: for a fact that cannot be remembered
        :raises CapacityError: there are more than ``limit`` things
        """
        return self._engine.run(partial(self._observe, as_list(facts)))

    def plan(
        self, instruction: str, skills: Sequence[str], ready: Ready | None = None, after: int | None = None
    ) -> Decision:
        """Choose the next of ``skills``: those that make sense now, in any order. All of it happens, or nothing.

        Skills that name instances ("open fridge 1") are another set than those that name types ("open the fridge").

        :param ready: told when the prompt is ready and the choice begins: ``queued_ms``, ``timings`` and ``counts``
        :param after: number of the last decision that the caller knows. If this plan has been made since, its decision
            is the answer; it is not made twice, whatever was observed in between

        :raises ConfigError: no skills, too many, or texts that cannot be
        :raises CapacityError: the prompt would be longer than the model's positions
        :raises StaleError: another decision than ``after`` is the last one
        """
        asked = time.perf_counter()
        instruction, skills = checked_request(instruction, skills)
        check_number("after", after)
        return self._engine.run(partial(self._plan, instruction, skills, asked, ready or (lambda entry: None), after))

    def report(self, outcome: Outcome, number: int | None = None) -> None:
        """What became of the last decision.

        :param number: the decision's; reporting on the same one twice does no harm then
        :raises ConfigError: there is no decision to report on, or it is another; or ``outcome`` is no `Outcome`
        """
        check_report(outcome, number)
        self._engine.run(partial(self._report, outcome, number))

    def finish(self, success: bool) -> None:
        """End the task. A decision that nobody has reported on was carried out if it ends well, else not.

        :raises ConfigError: ``success`` is neither True nor False
        """
        self._engine.run(partial(self._finish, checked_flag("success", success)))

    # -- what is remembered ----------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write what is remembered to a file, whole or not at all. Keys and values are encoded again after `load`."""
        write_memory(memory_path(path), self.dump())

    def load(self, path: str | Path) -> None:
        """Remember what `save` wrote, and nothing else.

        :raises DataError: the file is none, is damaged, or is written in another prompt style; nothing has changed
        """
        self.restore(read_memory(memory_path(path)))

    def dump(self) -> dict[str, Any]:
        """What is remembered and what is under way, as plain data for `restore`."""
        return self._engine.run(self._dump)

    def restore(self, state: Mapping[str, Any], bounded: bool = True) -> None:
        """Remember what `dump` gave, and nothing else. Raises DataError; then nothing has changed.

        :param bounded: raise CapacityError for more than ``limit`` lets an agent remember
        """
        numbers, opened, found = read_agent_state(state)
        planner = read_state(found, self._planner.style)
        texts = [segment.text for segment in planner.memory.segments]
        if bounded:
            check_snapshot(state)
            check_size(texts, self._limit)
        for start in range(0, len(texts), EMBEDDED):  # other agents' plans should not have to wait for all of them
            self._engine.run(partial(self._session.embed, texts[start : start + EMBEDDED]))
        self._engine.run(partial(self._restore, numbers, opened, planner))

    def decided(self, instruction: str, skills: str, skill: str, asked: str, goal: str = "") -> None:
        """A decision was made in an earlier life: a journal is played again.

        :param skills: the set's name; with ``asked`` and ``goal``, as `last_decision` gave them
        """
        self._engine.run(partial(self._decided, instruction, skills, skill, asked, goal))

    @property
    def last_decision(self) -> dict[str, str]:
        """What `decided` takes to make the last decision again."""
        assert self._open is not None
        opened = self._open
        return {
            "instruction": self._instruction, "skills": self._skills, "skill": opened.decision.skill,
            "asked": opened.asked, "goal": self._planner.goal,
        }  # fmt: skip

    def together(self, work: Callable[[], None]) -> None:
        """Play what was called in an earlier life: nothing happens in between, is recorded again or refused now."""
        record, self._record, self._again = self._record, lambda entry: None, True
        try:
            self._engine.run(work)
        finally:
            self._record, self._again = record, False

    @property
    def number(self) -> int:
        """Of the last decision; 0 before the first."""
        return self._number

    @property
    def segments(self) -> int:
        """How many are remembered."""
        return len(self._session.store)

    def close(self) -> None:
        """Let go of the memory, and of the model if it is this agent's own. No call comes after this."""
        if self._ahead is not None:
            self._ahead.stop()
        if self._owns:
            self._planner.close()
        else:
            self._engine.run(self._session.close)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- on the worker ---------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._planner.reset("", "")
        self._instruction, self._skills = "", ""
        self._number = self._steps = self._tasks = 0
        self._open: _Open | None = None
        self._facts: dict[str, FactView] = {}  # by id, since the last decision

    def _observe(self, given: Sequence[FactView | Mapping[str, Any]]) -> list[Fact]:
        store = self._session.store
        facts = checked_facts(given, lambda id: store.get(id).category if id in store else None)
        self._check_room({f.id for f in facts if f.category != "agent" and not f.gone and f.id not in store})
        self._planner.observe(facts)
        self._facts |= {fact.id: fact for fact in facts}
        if self._open is not None and facts:
            self._open = replace(self._open, settled=False)
        self._settle()
        return facts

    def _check_room(self, new: set[str]) -> None:
        """Raises CapacityError where there is none for ``new`` things."""
        if self._limit is None or not new or self._again:
            return
        store = self._session.store
        known = sum(
            not id.endswith(UPDATE_SUFFIX) for category in ("object", "receptacle") for id in store.of(category)
        )
        if known + len(new) > self._limit:
            raise CapacityError(
                f"agent {self.name!r} would remember {known + len(new)} things, {self._limit} are allowed: report what "
                "is gone, or raise the limit"
            )

    def _trim(self) -> None:
        """Forget the oldest executed skills and finished tasks where there are too many."""
        store = self._session.store
        for category in ("history", "task"):
            excess = len(store.of(category)) - self._history
            if excess > 0:
                oldest = sorted((store.get(id) for id in store.of(category)), key=lambda segment: segment.created)
                self._planner.write([Edit(one.id, category, None) for one in oldest[:excess]])

    def _settle(self) -> None:
        """Groups follow at once, so that they do not depend on what is encoded ahead, and when."""
        self._session.update()
        if self._ahead is not None:
            self._ahead.wake()

    def _plan(
        self, instruction: str, skills: tuple[str, ...], asked: float, ready: Ready, after: int | None
    ) -> Decision:
        key = request_digest(instruction, skills)
        made = self._made(key, after)
        if made is not None:
            return made
        began = time.perf_counter()
        with self._whole():
            self._begin(instruction, TYPE_LEVEL if not any(map(entity_names, skills)) else GROUNDED)
            prefill = self._planner.prefill()
            cost = {
                "queued_ms": round(1e3 * (began - asked), 3),
                "timings": {name: round(value, 3) for name, value in asdict(prefill.timings).items()},
                "counts": {name: value for name, value in asdict(prefill.counts).items() if value},
            }
            if self._ahead is not None:
                cost["ahead"] = {name: value for name, value in asdict(self._ahead.take()).items() if value}
            ready(cost)
            decided = self._planner.choose(prefill, skills)
            entry = self._entry(decided, 1e3 * (time.perf_counter() - began))
        decision = Decision(decided.skill, decided.scores, {**cost, **entry}, self._number + 1, self._lacking())
        return self._took(decision, key)

    def _lacking(self) -> tuple[str, ...]:
        """What nobody has told, though a plan needs it. The first time it is logged as well."""
        if self._planner.knows_agent:
            return ()
        if not self._warned:
            log.warning("agent %r: %s", self.name, AGENT_UNKNOWN)
            self._warned = True
        return (AGENT_UNKNOWN,)

    def _made(self, key: str, after: int | None) -> Decision | None:
        """The open decision, if it answers this plan."""
        opened = self._open if self._open is not None and self._open.asked == key else None
        if after in (None, self._number):
            return opened.decision if opened is not None and opened.settled else None
        if opened is not None and after == self._number - 1:
            return opened.decision
        raise StaleError(
            f"after={after}, but the last decision is number {self._number}, and was asked for otherwise: report what "
            "became of it, and plan after that one"
        )

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """All of the block happens, or nothing: no decision is closed, and no task begins, for a prompt too long."""
        own = self._instruction, self._skills, self._steps, self._tasks, self._open
        record, entries = self._record, list[Entry]()
        self._record = entries.append
        try:
            with self._planner.transaction():
                yield
        except BaseException:
            self._instruction, self._skills, self._steps, self._tasks, self._open = own
            raise
        finally:
            self._record = record
        for entry in entries:
            record(entry)

    def _entry(self, decided: Decided, wall_ms: float) -> Entry:
        """The step as the trace has it, as if all will go well."""
        numbers = step_numbers(decided, self._tasks, wall_ms)
        facts = list(self._facts.values())
        outcome: dict[str, Any] = {"instruction": self._instruction, "facts": facts, "ok": True, "message": ""}
        return step_entry(self.name, numbers, self._steps, decision=decided, **outcome)

    def _begin(self, instruction: str, skills: str) -> None:
        """The task is ``instruction`` from here on; what nobody reported on was carried out."""
        if self._open is not None:
            self._report(Outcome(True), None)
        if clean(instruction) != clean(self._instruction):
            self._finish(False)
        if not self._instruction:
            self._planner.begin(instruction, skills)
            self._instruction, self._skills = instruction, skills

    def _decided(self, instruction: str, skills: str, skill: str, asked: str, goal: str) -> None:
        self._begin(instruction, skills)
        self._planner.goal = goal
        self._session.update(settle=True)
        self._took(Decision(skill, number=self._number + 1), asked)

    def _took(self, decision: Decision, asked: str) -> Decision:
        """The robot acts from now on. What changes meanwhile is of the next step, and may be encoded at once."""
        self._number, self._facts = decision.number, {}
        self._open = _Open(decision, asked)
        self._planner.act()
        self._trim()
        self._settle()
        return decision

    def _report(self, outcome: Outcome, number: int | None) -> None:
        if self._open is None and number is not None and number == self._number:
            return
        if self._open is None or number not in (None, self._number):
            which = "there is none" if self._open is None else f"the last one is number {self._number}"
            label = "" if number is None else f" {number}"
            raise ConfigError(f"no decision{label} to report on: {which}; plan first, then report once")
        done = self._open.decision.skill == DONE
        self._tell(outcome)
        if done and outcome.ok:
            self._finish(True)
        self._settle()

    def _tell(self, outcome: Outcome) -> None:
        """The planner learns what became of the open decision, if there is one."""
        opened, self._open = self._open, None
        if opened is None:
            return
        message = "" if outcome.ok else outcome.message[:MESSAGE]
        self._planner.feedback(opened.decision.skill, outcome.ok, message)
        self._steps += 1
        if opened.decision.trace:  # it was made in this life
            self._record({**opened.decision.trace, "ok": outcome.ok, "message": message})

    def _finish(self, success: bool) -> None:
        if self._open is not None:  # in a task that failed, what nobody reported on is not taken for done
            self._tell(Outcome(success or self._open.decision.skill == DONE))
        if not self._instruction:
            return
        self._planner.finish_task(TaskResult(self._instruction, success, self._steps), None)
        self._trim()
        stop, name = "success" if success else "done", f"{self.name}/{self._tasks}"
        outcome = TaskOutcome(name, "", self._instruction, success, int(success), 1, self._steps, 0, stop)
        self._record(task_entry(self.name, self._tasks, outcome))
        self._instruction, self._steps = "", 0
        self._tasks += 1
        self._settle()

    def _dump(self) -> dict[str, Any]:
        opened = self._open
        last = None if opened is None else [opened.decision.skill, opened.asked, opened.settled]
        numbers = {"number": self._number, "steps": self._steps, "tasks": self._tasks}
        return {**numbers, "open": last, "planner": self._planner.state.to_json()}

    def _restore(
        self, numbers: tuple[int, int, int], opened: tuple[str, str, bool] | None, planner: PlannerState
    ) -> None:
        self._planner.load(planner)
        self._instruction, self._skills = self._planner.task
        self._number, self._steps, self._tasks = numbers
        self._facts, self._open = {}, None
        if opened is not None:
            skill, asked, settled = opened
            self._open = _Open(Decision(skill, number=self._number), asked, settled)
        self._settle()
