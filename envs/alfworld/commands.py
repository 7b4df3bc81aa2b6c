"""ALFWorld's commands as they are, less those that only tell something."""

from __future__ import annotations

import re

from envs.alfworld.knowledge import Knowledge
from envs.alfworld.text_state import THING
from envs.alfworld.world import World
from envs.outcome import DONE, Outcome, unknown_skill

_TELLING = re.compile(r"look|inventory|help|examine .*")
_FORM = re.compile(
    rf"(?:go to|open|close|use) {THING}|take {THING} from {THING}|(?:move|put) {THING} (?:to|in|on|in/on|into) {THING}"
    rf"|(?:heat|cool|clean|slice) {THING} with {THING}"
)


class Commands:
    """For planners that are told what the commands are."""

    def execute(self, world: World, skill: str) -> Outcome:
        """Say it. Raises SkillError for words that are no command."""
        if skill == "done":
            return DONE
        if not _FORM.fullmatch(skill):
            raise unknown_skill(skill, self.admissible(world))
        return world.do(skill)

    def admissible(self, world: World, knowledge: Knowledge | None = None) -> tuple[str, ...]:
        """What can be said now about things that the text has told of."""
        said = (one for one in world.engine.commands if not _TELLING.fullmatch(one))
        return (*filter(world.told.knows, said), "done")
