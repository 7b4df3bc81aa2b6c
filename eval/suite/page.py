"""Page of results in Markdown: the command that makes it, and tables with paired differences and intervals.

Its numbers do not depend on the load of the machine. Rows run one after the other, so the page has no times:
`eval.latency` measures methods side by side.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from eval.common.tables import Column, crashes, make_table, markdown
from eval.compare import OUTCOME, SHARES, SUBGOALS, Run, compare, differences, load_runs, paired
from eval.suite.plan import Page, Setting
from eval.suite.play import command_output, with_run_folder
from keep_agent.errors import ConfigError
from keep_agent.rollout.run_folder import SUMMARY

COLUMNS: tuple[Column, ...] = (("run", lambda row: f"`{row.run}`"), *OUTCOME, *SUBGOALS, *SHARES)


def render(page: Page, out: Path, command: str) -> str:
    """Return the page's text with the finished runs."""
    parts = [f"# {page.title}", page.about, f"```sh\n{command}\n```"]
    for setting in page.settings:
        runs = _runs(page, setting, out)
        if page.against in runs:
            parts.append(_section(page, setting, runs))
    for title, words in page.commands.items():
        if (text := command_output(title, words, out)) is not None:
            parts += [f"## {title}", f"```sh\npython -m {shlex.join(with_run_folder(words, out))}\n```", text.strip()]
    return "\n\n".join(parts) + "\n"


def _section(page: Page, setting: Setting, runs: dict[str, Run]) -> str:
    base = runs[page.against]
    rows = [compare(run, base) for run in runs.values()]
    title = f"{rows[0].tasks} tasks, paired with `{page.against}`, 95 % intervals"
    parts = [
        f"## {setting.title}",
        f"`python -m eval.{setting.world} {shlex.join(setting.overrides)}`",
        markdown(make_table(title, rows, COLUMNS)),
    ]
    if note := crashes((f"`{row.run}`", row.crashed, row.episodes) for row in rows):
        parts.append(f"{note[0].upper()}{note[1:]}.")
    hashes = {run.config.get("weights") for run in runs.values()} - {None}
    parts += [f"Weights {', '.join(sorted(weights[:12] for weights in hashes))}."] if hashes else []
    if unequal := [key for key in differences(list(runs.values())) if not key.startswith("memory.")]:
        parts.append(f"The runs differ in more than their method: {', '.join(unequal)}.")
    return "\n\n".join(parts)


def _runs(page: Page, setting: Setting, out: Path) -> dict[str, Run]:
    """Return the finished rows by name, with the episodes that all rows have; seeds are joined into one run."""
    runs = {}
    for row in page.rows:
        cells = [cell for cell in page.cells() if cell.setting is setting and cell.row == row]
        if all((out / cell.place / SUMMARY).exists() for cell in cells):
            parts = [(cell.seed, load_runs([out / cell.place])[0]) for cell in cells]
            if len({run.config.get("weights") for _, run in parts}) > 1:
                raise ConfigError(
                    f"{out}: the seeds of {row} were played with different weights; delete the older runs"
                )
            episodes = {f"{seed}/{key}": result for seed, run in parts for key, result in run.episodes.items()}
            runs[row] = replace(parts[0][1], name=row, episodes=episodes)
    return {run.name: run for run in paired(list(runs.values()))} if runs else {}
