"""ALFWorld's own commands as a skill set, without those that only report something."""

from __future__ import annotations

import re

from envs.alfworld.knowledge import Knowledge
from envs.alfworld.world import THING, World
from envs.outcome import DONE, Outcome, unknown_skill

_REPORT = re.compile(r"look|inventory|help|examine .*")
_FORM = re.compile(
    rf"(?:go to|open|close|use) {THING}|take {THING} from {THING}|(?:move|put) {THING} (?:to|in|on|in/on|into) {THING}"
    rf"|(?:heat|cool|clean|slice) {THING} with {THING}"
)


class Commands:
    """Skills of planners whose prompt describes ALFWorld's commands."""

    def execute(self, world: World, skill: str) -> Outcome:
        """Send the command. Raises SkillError for words that are no command."""
        if skill == "done":
            return DONE
        if not _FORM.fullmatch(skill):
            raise unknown_skill(skill, self.admissible(world))
        return world.do(skill)

    def admissible(self, world: World, knowledge: Knowledge | None = None) -> tuple[str, ...]:
        """Return the commands possible now that name only things which the text has mentioned."""
        actions = (command for command in world.engine.commands if not _REPORT.fullmatch(command))
        return (*filter(world.state.knows, actions), "done")
