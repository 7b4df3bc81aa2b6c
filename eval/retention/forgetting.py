"""Measurement of retention methods: at every step each method decides after the same transcript as the full cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from rich.progress import Progress

from eval.common.episode_lines import begin_lines
from eval.fidelity.deviation import PlannerGroup, SkillChoice, divergence, make_planners, play_episodes
from keep_agent.config.factory import expert_oracle, make_episodes
from keep_agent.config.planner_factory import make_model, make_tokenizer
from keep_agent.console import make_console
from memory.engine.transformers.engine import TransformersEngine
from memory.prompt.report import Prefill
from planners.prompts.text import entity_names


@dataclass(frozen=True, slots=True)
class StepRow:
    """One decision of one method. Files store the fields in this order."""

    prompt_tokens: int  # tokens of the transcript, evicted ones included
    same_skill: bool  # same skill as the full cache
    same_as_expert: bool  # same skill as the expert
    mention_distance: int  # tokens since the last mention of an entity of the expert's skill; maximum over its entities
    kl: float  # nats, KL(full cache || method) of the next token
    live_rows: int  # rows kept after the turn
    prefix_rows: int  # rows reused from the cache
    raw_reads: int  # rows of keys and values that attention would read without eviction
    live_reads: int  # rows that attention reads
    ms: float  # ms of prefill up to the logits, plus the eviction after them


@dataclass
class RowRecorder:
    """Recorder of one method's steps in the current episode."""

    encode: Callable[[str], Sequence[int]]
    steps: list[tuple[Prefill, StepRow]] = field(default_factory=list)

    def add(self, prefill: Prefill, reference: torch.Tensor, choice: SkillChoice) -> None:
        counts = prefill.counts
        kl, ms = divergence(prefill, reference), prefill.timings.total + prefill.after_ms
        transcript = prefill.layout.token_ids.tolist()
        distances = (tokens_since(transcript, list(self.encode(name))) for name in entity_names(choice.executed))
        choices = choice.same, choice.skill == choice.executed, max(distances, default=0)
        sizes = counts.live_tokens, counts.prefix_tokens, prefill.reads.raw, prefill.reads.live
        self.steps.append((prefill, StepRow(counts.prompt_tokens, *choices, kl, *sizes, ms)))

    def take(self) -> list[StepRow]:
        """Return and clear the episode's steps, with the final counts of reads, which still grow after `add`."""
        steps, self.steps = self.steps, []
        return [replace(step, raw_reads=prefill.reads.raw, live_reads=prefill.reads.live) for prefill, step in steps]


def tokens_since(text: Sequence[int], ids: Sequence[int]) -> int:
    """Count the tokens after the last occurrence of ``ids`` in ``text``; all tokens if there is none."""
    last = len(text) - len(ids)
    return next((last - i for i in range(last, -1, -1) if text[i : i + len(ids)] == ids), len(text))


def measure(file: Path | None, configs: Mapping[str, DictConfig]) -> dict[str, list[list[StepRow]]]:
    """Return the steps per method and episode, those in ``file`` included; all use the first method's transcript."""
    setting = next(iter(configs.values()))
    settings: dict[str, Any] = {name: OmegaConf.to_container(config, resolve=True) for name, config in configs.items()}
    episodes: dict[str, list[list[StepRow]]] = defaultdict(list)
    with (
        TransformersEngine(make_model(setting.model, setting.eval.seed)) as engine,
        Progress(console=make_console()) as bar,
        ExitStack() as stack,
    ):
        tokenizer = make_tokenizer(setting.model, engine.model)
        planners = make_planners(engine, tokenizer, configs)
        trained = {name: planner.session.method.trained for name, planner in planners.items()}
        settings |= {"weights": engine.model_key, "trained": trained}
        if file is not None and setting.env.data is not None:  # generated episodes depend only on the seed
            settings["ids"] = [episode.id for episode in make_episodes(setting.env, setting.eval)]
        out, done = (None, []) if file is None else stack.enter_context(begin_lines(file, settings))
        for line in done:
            for name, rows in line.items():
                episodes[name].append([StepRow(*row) for row in rows])
        recorders = {name: RowRecorder(partial(tokenizer.encode, add_special_tokens=False)) for name in configs}
        task = bar.add_task("episodes", total=setting.eval.episodes, completed=len(done))
        group = PlannerGroup(engine, planners, recorders, expert_oracle(setting.env), shared_transcript=True)
        for _ in chain(play_episodes(group, setting, first=len(done)), [None]):  # a last round stores the last episode
            steps_of = {name: recorder.take() for name, recorder in recorders.items()}
            if not all(steps_of.values()):
                continue  # before the first episode
            for name, steps in steps_of.items():
                episodes[name].append(steps)
            if out is not None:
                out.append([{name: [astuple(step) for step in steps] for name, steps in steps_of.items()}])
            bar.advance(task)
    return episodes
