"""The list of episodes with its filters; it follows runs that grow. Importing this needs the extra `server`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nicegui import run, ui
from nicegui.events import GenericEventArguments

from keep_agent.viewer.elements import Source, address
from keep_agent.viewer.episode_filters import (
    CRASHED,
    FAILED,
    OPEN,
    STATUSES,
    SUCCEEDED,
    EpisodeRow,
    Filters,
    episode_rows,
)
from keep_agent.viewer.runs import Library

PERIOD = 1.5  # seconds between two looks at the folder
COLUMNS = ("outcome", "method", "episode", "instruction", "types", "goal", "steps", "failures", "run")
LABELS = {"types": "task type", "failures": "failed"}  # else a column's name
SIGNS = {SUCCEEDED: "✓", FAILED: "✗", CRASHED: "✗", OPEN: "…"}
NUMBERS = ("goal", "steps", "failures")


class Listing:
    """The page's elements, refilled in place when something changed. What takes long is read on another thread."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._rows: list[EpisodeRow] = []
        self._build()
        ui.timer(PERIOD, self.look, immediate=False)

    def _build(self) -> None:
        with ui.row().classes("keep-bar"):
            ui.label("Episodes").classes("keep-title")
            self._root = ui.label(str(self._library.root))
            self._count = ui.label().classes("keep-keys")
        self._problem = ui.label().classes("keep-problem")
        with ui.row().classes("keep-filters"):
            self._status = self._choice("outcome")
            self._method = self._choice("method")
            self._type = self._choice("task type")
            self._text = ui.input("search", on_change=self._show).props("dense outlined clearable debounce=150")
            ui.space()
            self._compare = ui.button("compare the two chosen", on_click=self._open_two).props("no-caps unelevated")
        self._table = ui.table(
            columns=[_column(name) for name in COLUMNS],
            rows=[],
            row_key="key",
            selection="multiple",
            pagination={"rowsPerPage": 25},
            on_select=self._choose,
        ).props("dense flat bordered")
        self._table.classes("keep-episodes").on("rowClick", self._open, js_handler="(_, row) => emit(row.key)")
        self._empty = ui.label("No episode yet. A run's episodes appear here as soon as its trace has a line.")
        self._empty.classes("keep-empty")
        self._choose()

    def _choice(self, label: str) -> ui.select:
        return ui.select({"": "all"}, value="", label=label, on_change=self._show).props("dense outlined options-dense")

    async def look(self) -> None:
        """Show what there is by now."""
        data = await run.io_bound(self._read)
        if data is not None:  # else the server ends
            self._take(*data)

    def _read(self) -> tuple[list[EpisodeRow], list[str]]:
        """Rows, and what is wrong with traces."""
        runs = self._library.runs()
        return episode_rows(runs), [item.index.problem for item in runs if item.index.problem]

    def _take(self, rows: list[EpisodeRow], problems: list[str]) -> None:
        self._problem.set_text(" ".join(problems))
        self._problem.set_visibility(bool(problems))
        if rows == self._rows and self._table.rows:
            return
        self._rows = rows
        self._offer(self._status, [status for status in STATUSES if any(row.status == status for row in rows)])
        self._offer(self._method, sorted({row.method for row in rows if row.method}))
        self._offer(self._type, sorted({type for row in rows for type in row.types if type}))
        self._show()

    def _offer(self, select: ui.select, names: Sequence[str]) -> None:
        """What can be chosen now; what was chosen stays."""
        offered = {"": "all"} | {name: name for name in (*names, select.value) if name}
        if select.options != offered:
            select.set_options(offered, value=select.value)

    def _show(self) -> None:
        filters = Filters(self._status.value, self._method.value, self._type.value, self._text.value or "")
        visible = [row for row in self._rows if filters.keep(row)]
        self._table.rows = [_line(row) for row in visible]
        self._table.selected = [line for line in self._table.rows if line["key"] in self._selection()]
        self._count.set_text(f"{len(visible)} of {len(self._rows)} episodes")
        self._empty.set_visibility(not self._rows)
        self._choose()

    def _selection(self) -> list[str]:
        return [line["key"] for line in self._table.selected]

    def _choose(self) -> None:
        self._compare.set_enabled(len(self._table.selected) == 2)

    def _open(self, event: GenericEventArguments) -> None:
        self._go([event.args])

    def _open_two(self) -> None:
        self._go(self._selection())

    def _go(self, keys: Sequence[str]) -> None:
        data = {_key(row): Source(row.run, row.episode, "") for row in self._rows}
        ui.navigate.to(address(*(data[key] for key in keys if key in data)))


def _column(name: str) -> dict[str, Any]:
    align = "right" if name in NUMBERS else "left"
    column = {"name": name, "label": LABELS.get(name, name), "field": name, "align": align, "sortable": True}
    return column | {":classes": f"row => 'keep-{name} keep-' + row.status"}


def _key(row: EpisodeRow) -> str:
    return f"{row.run}\n{row.episode}"


def _line(row: EpisodeRow) -> dict[str, Any]:
    goal = f"{row.goal[0]} of {row.goal[1]}" if row.goal else "–"
    tasks = f" (+{row.tasks - 1} more)" if row.tasks > 1 else ""
    return asdict(row) | {
        "key": _key(row),
        "outcome": f"{SIGNS[row.status]} {row.status}",
        "method": row.method or "–",
        "instruction": row.instruction + tasks,
        "types": ", ".join(row.types),
        "goal": goal,
    }
