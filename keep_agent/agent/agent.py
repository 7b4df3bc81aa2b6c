"""Planner API: one robot's agent, which receives facts about its world, chooses skills and remembers their outcomes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.outcome import Outcome, checked_flag
from keep_agent.agent import validation
from keep_agent.agent.memory_file import memory_path, pack_state, read_memory, write_packed
from keep_agent.agent.prefetch import Prefetcher
from keep_agent.agent.trace_recorder import log_errors
from keep_agent.agent.types import AsyncMethods, Decision, Ready
from keep_agent.errors import CapacityError, ConfigError, StaleError
from keep_agent.rollout.results import TaskOutcome
from keep_agent.rollout.trace import Entry, agent_entry, step_entry, step_numbers, task_entry
from planners.base import DONE, TaskResult
from planners.planner_state import PlannerState, read_state
from planners.prompts.styles import EXAMPLE, UPDATE_SUFFIX, Edit
from planners.prompts.text import TYPE_LEVEL, clean, entity_names

if TYPE_CHECKING:
    from envs.fact import Fact
    from planners.kv_planner import KVPlanner
    from planners.prompts.styles import FactView

log = logging.getLogger(__name__)

GROUNDED = "grounded"
MAX_MESSAGE = 200  # maximum characters of a failure message in a prompt
HISTORY = 1000  # maximum number of remembered skills, and of remembered finished tasks
EMBED_BATCH = 32  # texts embedded per job on the engine's thread: another agent's plan waits for one job at most


@dataclass(frozen=True)
class _OpenDecision:
    """The last decision, which has no report yet."""

    decision: Decision
    request: str  # digest of the instruction and the skills
    settled: bool = True  # whether no fact was observed since the decision


class Agent(AsyncMethods, AbstractContextManager["Agent"]):
    """One robot's planner: call `observe`, `plan` and `report` again and again. Safe to call from several threads.

    Agents may share an engine (a loaded model), whose thread runs all their calls. For asyncio there are `aplan` and
    others. A task begins with the first `plan` of its instruction. It succeeds when a decision ``done`` is reported as
    ok; `finish` ends it with success or failure, and a `plan` of another instruction ends it as failed. The next `plan`
    counts a decision without a report as carried out. A `plan` that repeats the previous one, without an observation in
    between, returns the same decision, so that a lost answer can be requested again.

    :param ahead: encode changed segments (the memory's texts) in the background, while no plan waits
    :param limit: maximum number of remembered things (objects and receptacles); facts about more are rejected
    :param history: maximum number of remembered skills, and of finished tasks; a smaller ``limit`` replaces it
    :param record: called with each trace entry, in the format of a run's trace.jsonl (docs/evaluation.md)
    """

    def __init__(
        self, planner: KVPlanner, name: str = "agent", ahead: bool = True, limit: int | None = None,
        history: int = HISTORY, record: Callable[[Entry], None] | None = None,
    ) -> None:  # fmt: skip
        self.name, self._limit = name, limit
        self._history = history if limit is None else min(limit, history)
        self._planner, self._engine, self._session = planner, planner.session.engine, planner.session
        self._prefetcher = Prefetcher(planner.session, lambda: planner.retrieval_text) if ahead else None
        self._record = log_errors(record)
        self._owns_engine = self._replaying = self._warned = False
        planner.reset("", "")
        self._instruction, self._skills = "", ""
        self.number = self._steps = self._tasks = 0  # `number`: number of the last decision, counted from 1
        self._open: _OpenDecision | None = None
        self._facts: dict[str, FactView] = {}  # facts observed since the last decision, by id
        self._record(agent_entry(name))

    @classmethod
    def from_config(
        cls, planner: str = "keep", *, model: str = "planner-tiny", overrides: Sequence[str] = (), name: str = "agent",
        ahead: bool = True, record: Callable[[Entry], None] | None = None,
    ) -> Agent:  # fmt: skip
        """Make an agent that loads its own model; `close` it, or use it as a context manager.

        :param planner: a name in ``configs/planner`` of a planner with a model
        :param model: a name in ``configs/model``, a folder, or a name on the hub
        :param overrides: ``KEY=VALUE`` as on a command line: ``prompt.style=linked``, ``memory=cacheblend``, ...
        :raises KeepError: a name is unknown, or a component cannot be loaded or combined
        """
        from keep_agent.config.compose import choose_agent  # lazy: it loads Hydra

        config = choose_agent(planner, model, overrides)
        from keep_agent.config.planner_factory import (
            agent_resources,  # lazy: it loads torch, after the options are checked
        )

        agent = cls(agent_resources(config).planner(name), name, ahead, record=record)
        agent._owns_engine = True
        return agent

    def observe(self, facts: Iterable[FactView | Mapping[str, Any]]) -> list[Fact]:
        """Remember new or changed facts, or none of them if one is invalid. Returns the parsed facts.

        :param facts: objects with the fields of `envs.fact.Fact`, or mappings with these fields
        :raises DataError: a fact is invalid
        :raises CapacityError: the agent would remember more than ``limit`` objects and receptacles
        """
        return self._engine.run(partial(self._observe, validation.as_list(facts)))

    def plan(
        self, instruction: str, skills: Sequence[str], ready: Ready | None = None, after: int | None = None
    ) -> Decision:
        """Choose one of ``skills``, the skills that are possible now, in any order. After an error nothing has changed.

        The first plan of a task decides whether the task's prompts say that skills name instances ("open fridge 1") or
        only types ("open the fridge").

        :param ready: called with the prompt's cost (``queued_ms``, ``timings``, ``counts``) between prefill and choice
        :param after: number of the last decision that the caller knows. If decision ``after`` + 1 was made for the
            same instruction and skills, it is returned again, even if facts were observed since then
        :raises ConfigError: no skills, too many, or invalid texts
        :raises CapacityError: the prompt would have more tokens than the model has positions
        :raises StaleError: the last decision is neither number ``after`` nor one that can be returned again
        """
        start = time.perf_counter()
        instruction, skills = validation.checked_request(instruction, skills)
        validation.check_number("after", after)
        return self._engine.run(partial(self._plan, instruction, skills, start, ready or (lambda entry: None), after))

    def report(self, outcome: Outcome, number: int | None = None) -> None:
        """Record the result of the last decision. Raises ConfigError.

        :param number: the decision's number; a repeated report with it has no effect
        """
        validation.check_report(outcome, number)
        self._engine.run(partial(self._report, outcome, number))

    def finish(self, success: bool) -> None:
        """End the task. A decision without a report counts as carried out if it is ``done`` or ``success`` is true."""
        self._engine.run(partial(self._finish, checked_flag("success", success)))

    def save(self, path: str | Path) -> None:
        """Write the memory to a file atomically, without keys and values, which are computed again after `load`."""
        write_packed(memory_path(path), pack_state(self.dump()))

    def load(self, path: str | Path) -> None:
        """Load a memory from a file that `save` wrote. After a DataError nothing has changed."""
        self.restore(read_memory(memory_path(path)))

    def dump(self) -> dict[str, Any]:
        """Return memory and current task as plain data for `restore`."""
        return self._engine.run(self._dump)

    def restore(self, state: Mapping[str, Any], bounded: bool = True) -> None:
        """Replace memory and task with a state from `dump`. After an error nothing has changed.

        :raises DataError: the state does not come from `dump`
        :raises CapacityError: with ``bounded``, the state holds more than ``limit`` allows
        """
        numbers, last, planner_part = validation.read_agent_state(state)
        planner = read_state(planner_part, self._planner.style)
        texts = [segment.text for segment in planner.memory.segments]
        if bounded:
            validation.check_snapshot(state)
            validation.check_size(texts, self._limit)
        for start in range(0, len(texts), EMBED_BATCH):
            self._engine.run(partial(self._session.embed, texts[start : start + EMBED_BATCH]))
        self._engine.run(partial(self._restore, numbers, last, planner))

    @property
    def last_decision(self) -> dict[str, str]:
        """Arguments of `replay_decision` for the last decision. The argument ``request`` has the key ``asked``."""
        assert self._open is not None
        return {
            "instruction": self._instruction, "skills": self._skills, "skill": self._open.decision.skill,
            "asked": self._open.request, "goal": self._planner.goal,
        }  # fmt: skip

    def replay_decision(self, instruction: str, skills: str, skill: str, request: str, goal: str = "") -> None:
        """Repeat a decision in `replay`. ``skills``: `TYPE_LEVEL` or `GROUNDED`; ``request``: as in `_OpenDecision`."""
        self._begin(instruction, skills)
        self._planner.goal = goal
        self._session.update(settle=True)
        self._accept(Decision(skill, number=self.number + 1), request)

    def replay(self, work: Callable[[], None]) -> None:
        """Run ``work``, which repeats an earlier process's calls, as one job. Checks no limit and records no trace."""
        record, self._record, self._replaying = self._record, lambda entry: None, True
        try:
            self._engine.run(work)
        finally:
            self._record, self._replaying = record, False

    @property
    def segments(self) -> int:
        """Number of remembered segments."""
        return len(self._session.store)

    def close(self) -> None:
        """Release the memory, and the model if `from_config` loaded it. The agent cannot be used afterwards."""
        if self._prefetcher is not None:
            self._prefetcher.stop()
        if self._owns_engine:
            self._planner.close()
        else:
            self._engine.run(self._session.close)

    def __exit__(self, *error: object) -> None:
        self.close()

    def _observe(self, items: Sequence[FactView | Mapping[str, Any]]) -> list[Fact]:
        store = self._session.store
        facts = validation.checked_facts(items, lambda id: store.get(id).category if id in store else None)
        self._check_limit({f.id for f in facts if f.category != "agent" and not f.gone and f.id not in store})
        self._planner.observe(facts)
        self._facts |= {fact.id: fact for fact in facts}
        if self._open is not None and facts:
            self._open = replace(self._open, settled=False)
        self._update_groups()
        return facts

    def _check_limit(self, new: set[str]) -> None:
        if self._limit is None or not new or self._replaying:
            return
        store = self._session.store
        ids = [id for category in ("object", "receptacle") for id in store.of(category)]
        total = sum(not id.endswith(UPDATE_SUFFIX) for id in ids) + len(new)
        if total > self._limit:
            count = f"{total} objects and receptacles, more than {self._limit}"
            raise CapacityError(f"agent {self.name!r} would remember {count}: observe some as gone, or raise the limit")

    def _trim(self) -> None:
        """Forget the oldest executed skills, and the oldest finished tasks, beyond ``history`` of each."""
        store = self._session.store
        for category in ("history", "task"):
            segments = [store.get(id) for id in store.of(category) if not id.startswith(EXAMPLE)]
            if (excess := len(segments) - self._history) > 0:
                oldest = sorted(segments, key=lambda segment: segment.created)
                self._planner.write([Edit(segment.id, category, None) for segment in oldest[:excess]])

    def _update_groups(self) -> None:
        """Group segments for joint encoding now, so that groups do not depend on when the background encoding runs."""
        self._session.update()
        if self._prefetcher is not None:
            self._prefetcher.schedule()

    def _plan(
        self, instruction: str, skills: tuple[str, ...], start: float, ready: Ready, after: int | None
    ) -> Decision:
        request = validation.request_digest(instruction, skills)
        if (repeated := self._repeated_decision(request, after)) is not None:
            return repeated
        begin = time.perf_counter()
        with self._transaction():
            self._begin(instruction, TYPE_LEVEL if not any(map(entity_names, skills)) else GROUNDED)
            prefill = self._planner.prefill()
            cost = {
                "queued_ms": round(1e3 * (begin - start), 3),
                "timings": {name: round(value, 3) for name, value in asdict(prefill.timings).items()},
                "counts": {name: value for name, value in asdict(prefill.counts).items() if value},
            }
            if self._prefetcher is not None:
                cost["ahead"] = {name: value for name, value in asdict(self._prefetcher.take_stats()).items() if value}
            ready(cost)
            choice = self._planner.choose(prefill, skills)
            numbers = step_numbers(choice, self._tasks, 1e3 * (time.perf_counter() - begin))
            entry = step_entry(
                self.name, numbers, self._steps, instruction=self._instruction, facts=list(self._facts.values()),
                decision=choice, ok=True, message="",  # replaced when the outcome is reported
            )  # fmt: skip
        decision = Decision(choice.skill, choice.scores, {**cost, **entry}, self.number + 1, self._warnings())
        return self._accept(decision, request)

    def _warnings(self) -> tuple[str, ...]:
        """Return warnings about facts that the plan lacked. An agent's first warning is also logged."""
        if self._planner.knows_agent:
            return ()
        if not self._warned:
            log.warning("agent %r: %s", self.name, validation.AGENT_UNKNOWN)
            self._warned = True
        return (validation.AGENT_UNKNOWN,)

    def _repeated_decision(self, request: str, after: int | None) -> Decision | None:
        last = self._open if self._open is not None and self._open.request == request else None
        if after in (None, self.number):
            return last.decision if last is not None and last.settled else None
        if last is not None and after == self.number - 1:
            return last.decision
        raise StaleError(
            f"after={after}, but the last decision is number {self.number}, which this request does not repeat: "
            f"report its outcome, then plan with after={self.number}"
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Undo all changes of the body if it raises an error; otherwise record its trace entries."""
        before = self._instruction, self._skills, self._steps, self._tasks, self._open
        record, entries = self._record, list[Entry]()
        self._record = entries.append
        try:
            with self._planner.transaction():
                yield
        except BaseException:
            self._instruction, self._skills, self._steps, self._tasks, self._open = before
            raise
        finally:
            self._record = record
        for entry in entries:
            record(entry)

    def _begin(self, instruction: str, skills: str) -> None:
        """Continue the task, or begin another; a decision without a report counts as carried out."""
        if self._open is not None:
            self._report(Outcome(True), None)
        if clean(instruction) != clean(self._instruction):
            self._finish(False)
        if not self._instruction:
            self._planner.begin(instruction, skills)
            self._instruction, self._skills = instruction, skills

    def _accept(self, decision: Decision, request: str) -> Decision:
        """Store the decision until its report. Facts observed from now on belong to the next step."""
        self.number, self._facts = decision.number, {}
        self._open = _OpenDecision(decision, request)
        self._planner.act()
        self._trim()
        self._update_groups()
        return decision

    def _report(self, outcome: Outcome, number: int | None) -> None:
        if self._open is None and number is not None and number == self.number:
            return
        if self._open is None or number not in (None, self.number):
            which = "there is none" if self._open is None else f"the last one is number {self.number}"
            label = "" if number is None else f" {number}"
            raise ConfigError(f"no decision{label} to report on: {which}; plan first, then report once")
        is_done = self._open.decision.skill == DONE
        self._close_decision(outcome)
        if is_done and outcome.ok:
            self._finish(True)
        self._update_groups()

    def _close_decision(self, outcome: Outcome) -> None:
        assert self._open is not None
        decision, self._open = self._open.decision, None
        message = "" if outcome.ok else outcome.message[:MAX_MESSAGE]
        self._planner.feedback(decision.skill, outcome.ok, message)
        self._steps += 1
        if decision.trace:  # empty if an earlier process made the decision
            self._record({**decision.trace, "ok": outcome.ok, "message": message})

    def _finish(self, success: bool) -> None:
        if self._open is not None:
            self._close_decision(Outcome(success or self._open.decision.skill == DONE))
        if not self._instruction:
            return
        self._planner.finish_task(TaskResult(self._instruction, success, self._steps), None)
        self._trim()
        stop, name = "success" if success else "done", f"{self.name}/{self._tasks}"
        outcome = TaskOutcome(name, "", self._instruction, success, int(success), 1, self._steps, 0, stop)
        self._record(task_entry(self.name, self._tasks, outcome))
        self._instruction, self._steps = "", 0
        self._tasks += 1
        self._update_groups()

    def _dump(self) -> dict[str, Any]:
        last = None if self._open is None else [self._open.decision.skill, self._open.request, self._open.settled]
        numbers = {"number": self.number, "steps": self._steps, "tasks": self._tasks}
        return {**numbers, "open": last, "planner": self._planner.state.to_json()}

    def _restore(self, numbers: tuple[int, ...], last: tuple[str, str, bool] | None, planner: PlannerState) -> None:
        self._planner.load(planner)
        self._instruction, self._skills = self._planner.task
        self.number, self._steps, self._tasks = numbers
        self._facts, self._open = {}, None
        if last is not None:
            skill, request, settled = last
            self._open = _OpenDecision(Decision(skill, number=self.number), request, settled)
        self._update_groups()
