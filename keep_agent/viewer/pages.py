"""Pages of the viewer: the list of episodes, and the steps of one or two episodes. Needs the extra `server`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query
from nicegui import run as background
from nicegui import ui
from nicegui.element import Element

from keep_agent.errors import DataError
from keep_agent.viewer.episode_filters import STATUSES, EpisodeRow, Filters, episode_rows
from keep_agent.viewer.runs import RunLibrary

STATIC = Path(__file__).with_name("static")
STEP_PATH = "/episode"  # path of the step page, relative to the mount
REFRESH_SECONDS = 1.5  # seconds between two reads of the runs
INDEXING_SECONDS = 120.0  # seconds that a page waits for the first indexing of traces
COLUMNS = ("outcome", "method", "episode", "instruction", "types", "goal", "steps", "failures", "run")
LABELS = {"types": "task type", "failures": "failed"}  # labels of columns that differ from their names
NUMBER_COLUMNS = ("goal", "steps", "failures")


@dataclass(frozen=True, slots=True)
class EpisodeSource:
    """One episode to show: the keys of its run and of itself, and its heading."""

    run: str
    episode: str
    label: str


class StepPlayer(Element, component="static/step_view.js", esm={"keep-viewer": "static"}):
    """Player as a NiceGUI element: slider, keys and panels for one episode, or two side by side."""

    def __init__(self, base: str, sources: Sequence[EpisodeSource], step: int = 0, segment: str = "") -> None:
        """``base``: address of the data routes; ``step``: step to show; ``segment``: key of the segment to select."""
        super().__init__()
        self._props |= {"base": base, "sources": list(map(asdict, sources)), "step": step, "segment": segment}


def address(*sources: EpisodeSource) -> str:
    """Return the path of the step page for one episode, or two; NiceGUI prefixes the path of the mount."""
    query = {"run": sources[0].run, "episode": sources[0].episode}
    if len(sources) > 1:
        query |= {"other": sources[1].run, "other_episode": sources[1].episode}
    return f"{STEP_PATH}?{urlencode(query)}"


class EpisodeList:
    """List of episodes with filters, updated in place as runs grow. Traces are read on another thread."""

    def __init__(self, library: RunLibrary) -> None:
        self._library = library
        self._rows: list[EpisodeRow] = []
        self._build()
        ui.timer(REFRESH_SECONDS, self.update, immediate=False)

    def _build(self) -> None:
        with ui.row().classes("keep-bar"):
            ui.label("Episodes").classes("keep-title")
            self._root = ui.label(str(self._library.root))
            self._count = ui.label().classes("keep-keys")
        self._problem = ui.label().classes("keep-problem")
        with ui.row().classes("keep-filters"):
            self._status, self._method, self._type = map(self._filter, ("outcome", "method", "task type"))
            self._text = ui.input("search", on_change=self._show).props("dense outlined clearable debounce=150")
            ui.space()
            self._compare = ui.button("compare the two selected", on_click=lambda: self._open(self._selection()))
            self._compare.props("no-caps unelevated")
        self._table = ui.table(
            columns=[_column(name) for name in COLUMNS], rows=[], row_key="key", selection="multiple",
            pagination={"rowsPerPage": 25}, on_select=self._select,
        ).props("dense flat bordered")  # fmt: skip
        self._table.classes("keep-episodes")
        self._table.on("rowClick", lambda row: self._open([row.args]), js_handler="(_, row) => emit(row.key)")
        self._empty = ui.label("No episode yet. A run's episodes appear here as soon as its trace has a line.")
        self._empty.classes("keep-empty")
        self._select()

    def _filter(self, label: str) -> ui.select:
        return ui.select({"": "all"}, value="", label=label, on_change=self._show).props("dense outlined options-dense")

    async def update(self) -> None:
        """Read the runs again and show their episodes."""
        data = await background.io_bound(self._read)
        if data is not None:  # None at the server's shutdown
            self._replace(*data)

    def _read(self) -> tuple[list[EpisodeRow], list[str]]:
        runs = self._library.runs()
        return episode_rows(runs), [run.index.problem for run in runs if run.index.problem]

    def _replace(self, rows: list[EpisodeRow], problems: list[str]) -> None:
        self._problem.set_text(" ".join(problems))
        self._problem.set_visibility(bool(problems))
        if rows == self._rows and self._table.rows:
            return
        self._rows = rows
        self._set_options(self._status, [status for status in STATUSES if any(row.status == status for row in rows)])
        self._set_options(self._method, sorted({row.method for row in rows if row.method}))
        self._set_options(self._type, sorted({type for row in rows for type in row.types if type}))
        self._show()

    def _set_options(self, select: ui.select, names: Sequence[str]) -> None:
        """Set the options of a filter; its selected value stays an option."""
        options = {"": "all"} | {name: name for name in (*names, select.value) if name}
        if select.options != options:
            select.set_options(options, value=select.value)

    def _show(self) -> None:
        filters = Filters(self._status.value, self._method.value, self._type.value, self._text.value or "")
        visible = [row for row in self._rows if filters.keep(row)]
        selection = self._selection()
        self._table.rows = [_table_row(row) for row in visible]
        self._table.selected = [line for line in self._table.rows if line["key"] in selection]
        self._count.set_text(f"{len(visible)} of {len(self._rows)} episodes")
        self._empty.set_visibility(not self._rows)
        self._select()

    def _selection(self) -> list[str]:
        return [line["key"] for line in self._table.selected]

    def _select(self) -> None:
        self._compare.set_enabled(len(self._table.selected) == 2)

    def _open(self, keys: Sequence[str]) -> None:
        sources = {_row_key(row): EpisodeSource(row.run, row.episode, "") for row in self._rows}
        ui.navigate.to(address(*(sources[key] for key in keys if key in sources)))


def _column(name: str) -> dict[str, Any]:
    align = "right" if name in NUMBER_COLUMNS else "left"
    column = {"name": name, "label": LABELS.get(name, name), "field": name, "align": align, "sortable": True}
    return column | {":classes": f"row => 'keep-{name} keep-' + row.status"}


def _row_key(row: EpisodeRow) -> str:
    return f"{row.run}\n{row.episode}"


def _table_row(row: EpisodeRow) -> dict[str, Any]:
    return asdict(row) | {
        "key": _row_key(row),
        "outcome": f"{STATUSES[row.status]} {row.status}",
        "method": row.method or "–",
        "instruction": row.instruction + (f" (+{row.tasks - 1} more)" if row.tasks > 1 else ""),
        "types": ", ".join(row.types),
        "goal": f"{row.goal[0]} of {row.goal[1]}" if row.goal else "–",
    }


def add_pages(library: RunLibrary, base: str) -> None:
    """Register the pages, mounted at the URL path ``base``. A later call replaces them."""

    @ui.page("/", title="KEEP Agent: episodes", response_timeout=INDEXING_SECONDS)
    async def episodes() -> None:
        _add_style()
        await EpisodeList(library).update()

    @ui.page(STEP_PATH, title="KEEP Agent: episode", response_timeout=INDEXING_SECONDS)
    async def episode(
        run: str = "", episode: str = "", step: int = 0, segment: str = "",
        second: Annotated[str, Query(alias="other")] = "", other_episode: str = "",
    ) -> None:  # fmt: skip
        _add_style()
        keys = [(run, episode)] + ([(second, other_episode or episode)] if second else [])
        try:
            sources = await background.io_bound(lambda: [_episode_source(library, *pair) for pair in keys])
        except DataError as error:
            with ui.column().classes("keep-refused"):
                ui.label("This episode cannot be shown.").classes("keep-title")
                ui.label(str(error))
                ui.link("all episodes", "/")
            return
        if sources is None:  # the server is shutting down
            return
        with ui.row().classes("keep-bar"):
            ui.link("← all episodes", "/")
            if len(sources) > 1:
                ui.label("two runs side by side; ochre marks the steps that differ")
                ui.link("swap", address(*reversed(sources)))
            ui.label("keys: ← → one step, with shift ten, Home, End").classes("keep-keys")
        StepPlayer(f"{base}/data", sources, max(step, 0), segment)


def _episode_source(library: RunLibrary, key: str, episode: str) -> EpisodeSource:
    run = library.run(key)
    episode = run.index.episode(episode).key
    return EpisodeSource(key, episode, f"{run.method or 'run'} · {episode} · {run.path.name}")


def _add_style() -> None:
    for file in ("viewer.css", "pages.css"):
        ui.add_css((STATIC / file).read_text(encoding="utf-8"))
    ui.colors(primary="#0b5c9c")
    ui.query(".nicegui-content").classes("keep-page")
