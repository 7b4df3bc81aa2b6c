"""Preamble: constant example lines at the beginning of a prompt, behind which memory segments can be encoded.

A segment that is encoded alone, behind the start token, has keys and values far from those in a prompt: pretrained
models compute other values without earlier lines of the same kind. Behind a few such lines the difference is half as
large, and since the lines are the same in all prompts, they are computed once (`docs/isolation.md`). They name things
that no world has, so that a planner cannot mistake them for its own house.
"""

from __future__ import annotations

from dataclasses import dataclass

from keep_agent.errors import ConfigError
from planners.prompts.styles import make_style


@dataclass(frozen=True, slots=True)
class ExampleFact:
    """An invented fact, with the fields of `planners.prompts.styles.FactView`."""

    id: str
    category: str
    place: str | None = None
    states: tuple[str, ...] = ()
    holds: str | None = None
    gone: bool = False
    sees: tuple[str, ...] = ()

    @property
    def type(self) -> str:
        return self.id.rpartition("_")[0]


FACTS = (  # a style may refer back to a receptacle, so it precedes its objects
    ExampleFact("stage_1", "receptacle"),
    ExampleFact("violin_1", "object", "stage_1"),
    ExampleFact("barn_1", "receptacle", None, ("closed",)),
    ExampleFact("saddle_1", "object", "barn_1", ("clean",)),
    ExampleFact("violin_2", "object", "barn_1"),
    ExampleFact("pier_1", "receptacle", None, ("open",)),
    ExampleFact("kayak_1", "object", "pier_1"),
    ExampleFact("anchor_1", "object", "stage_1"),
    ExampleFact("stage_2", "receptacle"),
    ExampleFact("trumpet_1", "object", "stage_2", ("dirty",)),
    ExampleFact("harp_1", "object", "stage_1"),
    ExampleFact("barn_2", "receptacle", None, ("open",)),
    ExampleFact("saddle_2", "object", "barn_2"),
    ExampleFact("telescope_1", "object", "pier_1", ("on",)),
    ExampleFact("kayak_2", "object", "barn_2"),
    ExampleFact("trumpet_2", "object", "stage_2"),
)
MOST = len(FACTS)


def preamble(style: str, lines: int) -> str:
    """Return the first ``lines`` example lines in a prompt style; "" for 0. Raises ConfigError above `MOST`."""
    if lines > MOST:
        raise ConfigError(f"prompt.preamble={lines} is more than there are; use up to {MOST} lines")
    return "".join(edit.text or "" for edit in make_style(style).edits(FACTS[:lines]))
