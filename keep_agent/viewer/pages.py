"""The two pages: the list of episodes, and the steps of one or two of them. Importing this needs the extra `server`."""

from __future__ import annotations

from nicegui import run as background
from nicegui import ui

from keep_agent.errors import DataError
from keep_agent.viewer.elements import STATIC, STEP, Source, StepView, address
from keep_agent.viewer.episode_list import Listing
from keep_agent.viewer.runs import Library

INDEXING = 120.0  # seconds that a page waits for traces nobody has looked into yet


def add_pages(library: Library, base: str) -> None:
    """Register the pages; ``base`` is the address they are mounted at. A later call takes their place."""

    @ui.page("/", title="KEEP Agent: episodes", response_timeout=INDEXING)
    async def episodes() -> None:
        _dress()
        await Listing(library).look()

    @ui.page(STEP, title="KEEP Agent: episode", response_timeout=INDEXING)
    async def episode(
        run: str = "", episode: str = "", step: int = 0, segment: str = "", other: str = "", other_episode: str = ""
    ) -> None:
        _dress()
        wanted = [(run, episode)] + ([(other, other_episode or episode)] if other else [])
        try:
            sources = await background.io_bound(lambda: [_source(library, *one) for one in wanted])
        except DataError as error:
            _refused(str(error))
            return
        if sources is None:  # the server ends
            return
        _bar(sources)
        StepView(f"{base}/data", sources, max(step, 0), segment)


def _source(library: Library, run: str, episode: str) -> Source:
    found = library.run(run)
    key = found.index.episode(episode).key
    return Source(run, key, f"{found.method or 'run'} · {key} · {found.path.name}")


def _dress() -> None:
    ui.add_css((STATIC / "viewer.css").read_text(encoding="utf-8"))
    ui.add_css((STATIC / "pages.css").read_text(encoding="utf-8"))
    ui.colors(primary="#0b5c9c")
    ui.query(".nicegui-content").classes("keep-page")


def _bar(sources: list[Source]) -> None:
    with ui.row().classes("keep-bar"):
        ui.link("← all episodes", "/")
        if len(sources) > 1:
            ui.label("two runs side by side; ochre marks steps where they differ")
            ui.link("swap", address(*reversed(sources)))
        ui.label("keys: ← → one step, with shift ten, Home, End").classes("keep-keys")


def _refused(words: str) -> None:
    with ui.column().classes("keep-refused"):
        ui.label("This episode cannot be shown.").classes("keep-title")
        ui.label(words)
        ui.link("all episodes", "/")
