"""Preamble: constant example lines at the beginning of a prompt, behind which memory segments can be encoded.

A segment that is encoded alone, behind the start token, has keys and values far from those in a prompt: pretrained
models compute other values without earlier lines of the same kind (`python -m eval.isolation`). The lines are the same
in all prompts, so they are computed once. They name things that no world has, so that a planner cannot mistake them for
its own house.
"""

from __future__ import annotations

from keep_agent.errors import ConfigError
from planners.prompts.styles import FactRecord, make_style

FACTS = (  # a style may refer back to a receptacle, so it precedes its objects
    FactRecord("stage_1", "receptacle", "stage"),
    FactRecord("violin_1", "object", "violin", "stage_1"),
    FactRecord("barn_1", "receptacle", "barn", states=("closed",)),
    FactRecord("saddle_1", "object", "saddle", "barn_1", states=("clean",)),
    FactRecord("violin_2", "object", "violin", "barn_1"),
    FactRecord("pier_1", "receptacle", "pier", states=("open",)),
    FactRecord("kayak_1", "object", "kayak", "pier_1"),
    FactRecord("anchor_1", "object", "anchor", "stage_1"),
    FactRecord("stage_2", "receptacle", "stage"),
    FactRecord("trumpet_1", "object", "trumpet", "stage_2", states=("dirty",)),
    FactRecord("harp_1", "object", "harp", "stage_1"),
    FactRecord("barn_2", "receptacle", "barn", states=("open",)),
    FactRecord("saddle_2", "object", "saddle", "barn_2"),
    FactRecord("telescope_1", "object", "telescope", "pier_1", states=("on",)),
    FactRecord("kayak_2", "object", "kayak", "barn_2"),
    FactRecord("trumpet_2", "object", "trumpet", "stage_2"),
)
MOST = len(FACTS)


def preamble(style: str, lines: int) -> str:
    """Return the first ``lines`` example lines in a prompt style; "" for 0. Raises ConfigError above `MOST`."""
    if lines > MOST:
        raise ConfigError(f"prompt.preamble={lines} is more than there are; use up to {MOST} lines")
    return "".join(edit.text or "" for edit in make_style(style).edits(FACTS[:lines]))
