"""A page of results in Markdown: how it was made, and its tables with paired differences and their intervals.

It says what was decided and computed, which is the same however busy the machine is. Rows are played one after the
other, so times are not among it: `eval.latency` measures them side by side.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from eval.common.tables import crashes, difference, markdown, number, pairs, percent, points, share
from eval.compare import Row, Run, compare, differences, load_runs, paired
from eval.suite.plan import Page, Setting
from eval.suite.play import command_output
from keep_agent.errors import ConfigError
from keep_agent.rollout.run_folder import SUMMARY

HEADINGS = (
    "success %",
    "difference",
    "pairs",
    "sub-goals %",
    "difference",
    "computed",
    "recomputed",
    "hits",
)


def render(page: Page, out: Path, command: str) -> str:
    """The page as far as its runs are finished."""
    parts = [f"# {page.title}", page.about, f"```sh\n{command}\n```"]
    for setting in page.settings:
        runs = _runs(page, setting, out)
        if page.against in runs:
            parts.append(_section(page, setting, runs))
    for title, words in page.commands.items():
        if (text := command_output(title, words, out)) is not None:
            parts += [f"## {title}", f"```sh\npython -m {shlex.join(placed(words, out))}\n```", text.strip()]
    return "\n\n".join(parts) + "\n"


def _section(page: Page, setting: Setting, runs: dict[str, Run]) -> str:
    base = runs[page.against]
    rows = [compare(run, base) for run in runs.values()]
    table = Table(title=f"{rows[0].tasks} tasks, paired with `{page.against}`, 95 % intervals")
    for heading in ("run", *HEADINGS):
        table.add_column(heading, justify="right" if heading in HEADINGS else "left", no_wrap=True)
    for row in rows:
        table.add_row(f"`{row.run}`", *_numbers(row))
    parts = [
        f"## {setting.title}",
        f"`python -m eval.{setting.world} {shlex.join(setting.overrides)}`",
        markdown(table),
    ]
    if told := crashes((f"`{row.run}`", row.crashed, row.episodes) for row in rows):
        parts.append(f"{told[0].upper()}{told[1:]}.")
    seen = {run.config.get("weights") for run in runs.values()} - {None}
    parts += [f"Weights {', '.join(sorted(weights[:12] for weights in seen))}."] if seen else []
    if unequal := [key for key in differences(list(runs.values())) if not key.startswith("memory.")]:
        parts.append(f"The runs differ in more than their method: {', '.join(unequal)}.")
    return "\n\n".join(parts)


def _numbers(row: Row) -> Sequence[str]:
    return (
        share(row.success_rate, row.success_interval),
        points(row.success_difference),
        pairs(row.success_difference),
        percent(row.subgoal_success_rate),
        difference(row.subgoal_difference),
        number(row.computed_ratio, 2),
        number(row.recomputed_ratio, 2),
        number(row.kv_hit_rate, 2),
    )


def _runs(page: Page, setting: Setting, out: Path) -> dict[str, Run]:
    """The finished rows by name, cut down to the episodes that all of them have; the runs of all seeds are one."""
    found = {}
    for row in page.rows:
        cells = [cell for cell in page.cells() if cell.setting is setting and cell.row == row]
        if all((out / cell.place / SUMMARY).exists() for cell in cells):
            parts = [(cell.seed, load_runs([out / cell.place])[0]) for cell in cells]
            if len({run.config.get("weights") for _, run in parts}) > 1:
                raise ConfigError(
                    f"{out}: the seeds of {row} were played with other weights each; delete the older runs"
                )
            episodes = {f"{seed}/{key}": result for seed, run in parts for key, result in run.episodes.items()}
            found[row] = replace(parts[0][1], name=row, episodes=episodes)
    return {run.name: run for run in paired(list(found.values()))} if found else {}
