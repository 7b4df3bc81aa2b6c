"""Forgetting methods measured: each decides beside the full cache on the transcript of the episodes that are played."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from rich.progress import Progress

from eval.common.episode_lines import begin_lines
from eval.fidelity.deviation import Shadow, divergence, make_planners, play
from keep_agent.config.factory import expert_oracle, make_episodes
from keep_agent.config.planner_factory import make_model, make_tokenizer
from keep_agent.console import make_console
from memory.engine.transformers.engine import TransformersEngine
from planners.prompts.text import entity_names

if TYPE_CHECKING:
    import torch
    from omegaconf import DictConfig

    from eval.fidelity.deviation import Choice
    from memory.files.json_lines import LineFile
    from memory.prompt.report import Prefill


@dataclass(frozen=True, slots=True)
class Step:
    """One decision of one method."""

    prompt: int  # tokens of the transcript, dropped ones included
    same_skill: bool  # as the full cache's
    right: bool  # as the expert's
    away: int  # tokens since all that the expert's skill names had been mentioned
    kl: float  # nats, KL(full cache || method) of the next token
    live: int  # rows after the turn
    prefix: int  # rows that did not have to be computed
    raw_reads: int
    live_reads: int
    ms: float  # to the logits, and to what was forgotten after them


class Recorder:
    """The steps of one method in the episode that is played."""

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        self._encode = encode
        self.steps: list[tuple[Prefill, Step]] = []

    def add(self, prefill: Prefill, reference: torch.Tensor, choice: Choice) -> None:
        counts = prefill.counts
        kl, ms = divergence(prefill, reference), prefill.timings.total + prefill.after_ms
        told, wanted = prefill.layout.token_ids.tolist(), (self._encode(name) for name in entity_names(choice.executed))
        away = max((distance(told, list(ids)) for ids in wanted), default=0)
        choices = choice.same, choice.skill == choice.executed, away
        sizes = counts.live_tokens, counts.prefix_tokens, prefill.reads.raw, prefill.reads.live
        self.steps.append((prefill, Step(counts.prompt_tokens, *choices, kl, *sizes, ms)))

    def take(self) -> list[Step]:
        """The episode's steps; nothing more is read behind their prompts."""
        taken, self.steps = self.steps, []
        return [Step(**{**asdict(s), "raw_reads": p.reads.raw, "live_reads": p.reads.live}) for p, s in taken]


def distance(told: Sequence[int], ids: Sequence[int]) -> int:
    """How many tokens stand behind the last ``ids`` in a text; all of it, where they are not there."""
    last = len(told) - len(ids)
    return next((last - i for i in range(last, -1, -1) if told[i : i + len(ids)] == ids), len(told))


def measure(file: Path | None, configs: Mapping[str, DictConfig]) -> dict[str, list[list[Step]]]:
    """Steps per method and episode, those that ``file`` holds of an earlier run included; the first method leads."""
    setting = next(iter(configs.values()))
    described: dict[str, Any] = {name: OmegaConf.to_container(config, resolve=True) for name, config in configs.items()}
    episodes: dict[str, list[list[Step]]] = defaultdict(list)
    with (
        TransformersEngine(make_model(setting.model, setting.eval.seed)) as engine,
        Progress(console=make_console()) as bar,
        ExitStack() as held,
    ):
        tokenizer = make_tokenizer(setting.model, engine.model)
        planners = make_planners(engine, tokenizer, configs)
        trained = {name: planner.session.method.trained for name, planner in planners.items()}
        described |= {"weights": engine.model_key, "trained": trained}
        if file is not None and setting.env.data is not None:  # what the seed makes is the same anyway
            described["ids"] = [episode.id for episode in make_episodes(setting.env, setting.eval)]
        out, done = (None, []) if file is None else held.enter_context(begin_lines(file, described))
        for line in done:
            for name, rows in line.items():
                episodes[name].append([Step(*row) for row in rows])
        recorders = {name: Recorder(partial(tokenizer.encode, add_special_tokens=False)) for name in configs}
        task = bar.add_task("episodes", total=setting.eval.episodes, completed=len(done))
        shadow = Shadow(engine, planners, recorders, expert_oracle(setting.env), common=True)
        for _ in play(shadow, setting, first=len(done)):
            if any(recorder.steps for recorder in recorders.values()):
                _close(out, recorders, episodes)
                bar.advance(task)
        _close(out, recorders, episodes)
        bar.advance(task)
    return episodes


def _close(out: LineFile | None, recorders: Mapping[str, Recorder], episodes: dict[str, list[list[Step]]]) -> None:
    """An episode is over: keep its steps."""
    taken = {name: recorder.take() for name, recorder in recorders.items()}
    if not all(taken.values()):
        return
    for name, steps in taken.items():
        episodes[name].append(steps)
    if out is not None:
        out.append([{name: [list(asdict(step).values()) for step in steps] for name, steps in taken.items()}])
