"""Weights & Biases: config, metrics per episode, summary, a table of episodes, and the trace as an artifact.

Metrics of episodes have the prefix ``episode/`` and are not in W&B's summary, which has the keys of
``summary.json``. The table is ``tables/episodes``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from keep_agent.errors import ConfigError, check_choice
from keep_agent.rollout.results import EpisodeResult
from memory.files.atomic import write_atomic

if TYPE_CHECKING:
    import wandb

ID = "wandb/id"  # file in the run folder with the id of the W&B run
EPISODE, INDEX, TABLE = "episode/", "episode/index", "tables/episodes"
MODES = ("disabled", "offline", "online")
COLUMNS = ("index", "episode", "task", "type", "instruction", "success", "stop", "met", "total", "steps", "ttft_ms")


class NoLog:
    """Logger without output."""

    def episode(self, result: EpisodeResult) -> None:
        """Log one finished episode."""

    def finish(self, summary: Mapping[str, Any], results: Sequence[EpisodeResult], trace: Path) -> None:
        """Log the end of the run."""


class WandbLog(NoLog):
    """Logger that writes one W&B run; made by `open_log`."""

    def __init__(self, run: wandb.Run) -> None:
        self._run = run
        run.define_metric(f"{EPISODE}*", step_metric=INDEX, summary="none")  # else the summary has the last values

    def episode(self, result: EpisodeResult) -> None:
        self._run.log({f"{EPISODE}{key}": value for key, value in _metrics(result).items()})

    def finish(self, summary: Mapping[str, Any], results: Sequence[EpisodeResult], trace: Path) -> None:
        """Log summary, table and artifact, and end the W&B run."""
        import wandb

        self._run.log({TABLE: wandb.Table(columns=list(COLUMNS), data=_rows(results))})
        self._run.summary.update({key: value for key, value in summary.items() if key not in ("config", "versions")})
        if trace.exists():
            artifact = wandb.Artifact(f"trace-{self._run.id}", type="trace")
            artifact.add_file(str(trace))
            self._run.log_artifact(artifact)
        self._run.finish()


def _metrics(result: EpisodeResult) -> dict[str, float]:
    """Return the metrics of one episode; times and the computed ratio are included only if the planner has a model."""
    decisions = [step for step in result.steps if step.layers]
    metrics = {
        "index": result.index,
        "success": sum(task.success for task in result.tasks) / len(result.tasks),
        "goal_conditions": sum(task.met for task in result.tasks) / max(sum(t.total for t in result.tasks), 1),
        "steps": len(result.steps),
        "crashed": int(result.crashed),
        "seconds": result.seconds,
    }
    means = ("ttft_ms", "decision_ms", "computed_ratio") if decisions else ()
    return metrics | {name: fmean(getattr(step, name) for step in decisions) for name in means}


def _rows(results: Sequence[EpisodeResult]) -> list[list[Any]]:
    return [
        [
            *(result.index, result.id, number, task.type, task.instruction, task.success, task.stop),
            *(task.met, task.total, task.steps, _mean_ttft(result, number)),
        ]
        for result in results
        for number, task in enumerate(result.tasks)
    ]


def _mean_ttft(result: EpisodeResult, task: int) -> float | None:
    times = [step.ttft_ms for step in result.steps if step.task == task and step.layers]
    return fmean(times) if times else None


def open_log(settings: Mapping[str, Any], config: Mapping[str, Any], folder: Path) -> NoLog:
    """Open a log for ``wandb.mode``, with offline files in ``folder/wandb``. Raises ConfigError if W&B cannot start."""
    check_choice("wandb.mode", settings["mode"], MODES)
    if settings["mode"] == "disabled":
        return NoLog()
    import wandb

    id = folder / ID  # a resumed run keeps its id
    quiet = wandb.Settings(
        silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
    )
    try:
        run = wandb.init(
            **{name: settings[name] for name in ("project", "entity", "group", "mode")},
            name=settings["name"] or folder.name,
            id=id.read_text(encoding="utf-8") if id.exists() else uuid.uuid4().hex[:12],
            resume="allow",
            dir=folder,
            config=dict(config),
            settings=quiet,
        )
    except wandb.Error as error:
        message = " ".join(str(error).split())
        raise ConfigError(f"W&B did not start ({message}); log in, or use wandb.mode=offline or disabled") from error
    write_atomic(id, run.id)  # `wandb.init` has made the folder of this file
    return WandbLog(run)
