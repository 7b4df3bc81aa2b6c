"""The player as a NiceGUI element. Importing this needs the extra `server`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlencode

from nicegui.element import Element

STATIC = Path(__file__).with_name("static")
STEP = "/episode"  # address of the step page, below the mount


@dataclass(frozen=True, slots=True)
class Source:
    """One episode to show, by the keys of its run and itself."""

    run: str
    episode: str
    label: str


class StepView(Element, component="static/step_view.js", esm={"keep-viewer": "static"}):
    """Slider, keys and panels for one episode, or two side by side."""

    def __init__(self, base: str, sources: Sequence[Source], step: int = 0, segment: str = "") -> None:
        """``base``: address of the data routes."""
        super().__init__()
        self._props["base"] = base
        self._props["sources"] = [asdict(source) for source in sources]
        self._props["step"] = step
        self._props["segment"] = segment


def address(*sources: Source) -> str:
    """Of the step page for one episode, or for two side by side; NiceGUI puts the mount's address before it."""
    query = {"run": sources[0].run, "episode": sources[0].episode}
    if len(sources) > 1:
        query |= {"other": sources[1].run, "other_episode": sources[1].episode}
    return f"{STEP}?{urlencode(query)}"
