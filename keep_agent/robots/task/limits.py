"""Limits of a robot's session: how long it waits, and how often it tries."""

from __future__ import annotations

from dataclasses import dataclass, fields

from keep_agent.errors import ConfigError

MOST = 1_000_000  # some eleven days


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, unless the name says steps or failures. Raises ConfigError for what nobody can wait for."""

    skill: float = 120.0  # one skill; then it is cancelled, and the task goes on
    task: float = 1800.0  # all of it
    answer: float = 60.0  # one call of the planner, or of what an executor answers at once (skills, observe)
    cancel: float = 10.0  # until a cancelled skill has returned
    period: float = 0.5  # between two looks while a skill is carried out
    steps: int = 100  # skills per task
    failures: int = 5  # of the same skill in a row

    @property
    def longest_stop(self) -> float:
        """Seconds from a stop to the end of its task, at most."""
        return self.cancel + 2 * self.answer

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value <= MOST:
                raise ConfigError(f"limit {field.name}={value!r} must be above 0, up to {MOST}")
