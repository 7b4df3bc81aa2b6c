"""Choice of the skill that follows a prompt: by likelihood or generated text, futile skills last."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from keep_agent.errors import ConfigError, check_choice
from memory.config.choices import REDUCTIONS
from planners.base import DONE, POLICIES
from planners.prompts.text import NO_TARGET, clean, entity_text

if TYPE_CHECKING:
    from memory.prompt.report import Prefill
    from memory.session import MemorySession
    from planners.prompts.formats import Format


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
BEST = 5  # candidates kept for the trace
CAPACITY = 1000  # situations that are remembered, and situations with futile skills


class AttemptedSkills:
    """Situations of one task and the skills that are futile in them.

    A *situation* is the known state of the world together with the agent's own state. A skill that changes neither is
    futile in that situation. A skill that leads back to an earlier situation is futile while the known state of the
    world stays the same.
    """

    def __init__(self) -> None:
        self._visited: dict[tuple[Hashable, Hashable], None] = {}  # least recent first, as in `_futile`
        self._futile: dict[Hashable, set[str]] = {}
        self._situation: tuple[Hashable, Hashable] | None = None
        self._skill: str | None = None

    def futile(self, world: Hashable, agent: Hashable) -> set[str]:
        """Return the futile skills of the situation that the last recorded skill led to."""
        previous, self._situation = self._situation, (world, agent)
        if previous is not None and self._skill is not None:
            if self._situation == previous:
                _touch(self._futile, previous, set()).add(self._skill)
            elif self._situation in self._visited:
                _touch(self._futile, previous[0], set()).add(self._skill)
        self._skill = None
        _touch(self._visited, self._situation, None)
        keys = [key for key in (world, self._situation) if key in self._futile]
        return set().union(*(_touch(self._futile, key, set()) for key in keys))

    def record(self, skill: str) -> None:
        """Note an executed skill; its effect shows in the next situation."""
        self._skill = skill

    def copy(self) -> AttemptedSkills:
        clone = AttemptedSkills()
        clone._visited, clone._futile = dict(self._visited), {key: set(skills) for key, skills in self._futile.items()}
        clone._situation, clone._skill = self._situation, self._skill
        return clone


def _touch(table: dict[Key, Value], key: Key, default: Value) -> Value:
    """Return the value of ``key``, which becomes the most recent one; the least recent is evicted over `CAPACITY`."""
    table[key] = table.pop(key, default)
    if len(table) > CAPACITY:
        del table[next(iter(table))]
    return table[key]


@dataclass(frozen=True, slots=True)
class SkillChoice:
    """The chosen skill with the best candidates, the cost in rows or decoded tokens, and the generated focus."""

    skill: str
    scores: tuple[tuple[str, float], ...]
    tokens: int
    focus: list[int]


class SkillChooser:
    """Chooses skills by one of two policies.

    ``score``: log-likelihood of every admissible skill, ``reduce`` over its tokens, ties to the first.
    ``generate``: greedy text; text that is no admissible skill falls back to ``score``.
    """

    def __init__(self, session: MemorySession, format: Format, policy: str, reduce: str, max_new_tokens: int) -> None:
        check_choice("planner.policy", policy, POLICIES)
        check_choice("planner.reduce", reduce, REDUCTIONS)
        if max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens={max_new_tokens} leaves no room for a skill; use 1 or more")
        self._session, self._format = session, format
        self._policy, self._reduce, self._max_new_tokens = policy, reduce, max_new_tokens
        self._candidate = lru_cache(maxsize=8192)(lambda skill: tuple(format.candidate(skill)))

    def choose(
        self, prefill: Prefill, admissible: Sequence[str], futile: Collection[str], focus_tokens: int
    ) -> SkillChoice:
        """Choose one of ``admissible`` after a generated focus of ``focus_tokens`` tokens, ``futile`` skills last.

        A futile skill, or the end of the task while the focus names a target, is replaced by the best other skill.
        """
        if not admissible:
            raise ConfigError("there is no admissible skill to choose from; give at least one")
        focus: list[int] = []
        if focus_tokens:
            focus = self._session.generate(prefill, focus_tokens, self._format.stops(), keep=True)
        has_target = bool(focus) and not self._format.decode(focus).strip().startswith(NO_TARGET)
        skill, scores, tokens = self._best(prefill, admissible)
        if skill in futile or (skill == DONE and has_target):
            useful = [skill for skill in admissible if skill not in futile]
            rest = [skill for skill in useful if skill != DONE] or useful or admissible
            skill, scores, more = self._best(prefill, rest)
            tokens += more
        return SkillChoice(skill, scores, tokens + len(focus), focus)

    def _best(self, prefill: Prefill, skills: Sequence[str]) -> tuple[str, tuple[tuple[str, float], ...], int]:
        """Return the best of ``skills``, the best candidates with scores, and the rows scored or tokens decoded."""
        tokens = 0
        if self._policy == "generate":
            ids = self._session.generate(prefill, self._max_new_tokens, self._format.stops())
            tokens = len(ids)
            text = _normalized(self._format.decode(ids))
            exact = next((skill for skill in skills if _normalized(skill) == text), None)
            if exact is not None:
                return exact, (), tokens
        result = self._session.score(prefill, [self._candidate(skill) for skill in skills], self._reduce, BEST)
        values = result.scores.tolist()
        order = sorted(range(len(skills)), key=lambda i: (-values[i], i))[:BEST]
        return skills[order[0]], tuple((skills[i], values[i]) for i in order), tokens + result.computed_tokens


def _normalized(skill: str) -> str:
    """Return one spelling of a skill for all prompt formats."""
    return entity_text(clean(skill))
