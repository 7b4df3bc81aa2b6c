"""Resumable run over conversations: read them, answer their questions, write the run folder, print the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from eval.chat.answer_scores import bert_scores, check_bertscore
from eval.chat.conversation import Conversation, Item, draw
from eval.chat.generated import debates, generate_conversations
from eval.chat.loader import load_conversations
from eval.chat.prompt import QuestionPrompt
from eval.chat.reader import Reader
from eval.chat.rows import AnswerFolder, answer_row, row_id
from eval.chat.summary import quality_table, split_table, summarize, tokens_table
from eval.common.resume import CreateFolder, begin_run
from eval.common.run import progress_bar, versions_of
from eval.common.tables import cost_table
from keep_agent.config.planner_factory import make_engine, make_method, make_tokenizer
from keep_agent.config.settings import check_settings
from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.engine.transformers.module_timer import ModuleTimer
from memory.segments.sentence_encoder import CachedEncoder, make_encoder
from memory.session import MemorySession

MINIMA = {
    "limit": 1, "planner.max_new_tokens": 1, "prompt.budget": 1, "generated.conversations": 0, "generated.sessions": 1,
    "generated.turns": 1, "generated.speakers": 2, "generated.debates": 0, "generated.agents": 2,
    "generated.rounds": 1, "eval.seed": 0, "eval.threads": 1,
}  # fmt: skip
OPTIONAL = ("limit", "eval.threads")
SWITCHES = ("profile", "eval.progress")


def evaluate(config: DictConfig, folder: Path, console: Console, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Answer the questions of ``config`` and return the summary. The run folder is ``folder`` or ``eval.resume``."""
    with begin_run(AnswerFolder, config, folder, overrides, _check) as (earlier, config, create):
        return _evaluate(earlier, config, create, console)


def _evaluate(
    earlier: AnswerFolder | None, config: DictConfig, create: CreateFolder[AnswerFolder], console: Console
) -> dict[str, Any]:
    questions = draw(make_conversations(config), config.limit, config.eval.seed)
    if not questions:
        raise ConfigError("there is no question to answer; give data=PATH, or generated.conversations=1 or more")
    # a latency split needs inline transfers (no second thread), since its parts must not overlap
    with closing(make_engine(config, "inline" if config.profile else None)) as engine:
        encoder = make_encoder(config.prompt.encoder)
        reader = make_reader(config, engine, encoder)
        if earlier is not None:
            earlier.check_weights(engine.model_key)
            current = {index: (row_id(item), item[1].text) for index, item in enumerate(questions)}
            for row in earlier.results:
                if current.get(row.index) != (row.id, row.question):
                    place = f"{earlier.path} answered {row.id} as question {row.index}"
                    raise ConfigError(f"{place}, but the data have changed; start a new run")
        OmegaConf.update(config, "weights", engine.model_key, force_add=True)
        run = earlier or create(OmegaConf.to_container(config, resolve=True))
        done, total, enabled = len(run.results), len(questions), config.eval.progress
        with progress_bar(console, "questions", total, done, run, "questions", enabled) as update:
            update(description=_so_far(run))
            skipped: list[Item] = []  # answered before the resume; the memory lacks their rows
            for index, item in enumerate(questions):
                if index in run.finished:
                    skipped.append(item)
                    continue
                for earlier_item in skipped:
                    if earlier_item[0].shares_memory(item[0]):
                        reader.restore(earlier_item)
                skipped.clear()
                reading = reader.read(item[0])
                run.commit(answer_row(index, item, reading, reader.answer(item[1]), encoder))
                update(advance=1, description=_so_far(run))
    return _finish(run, config, console, versions_of(run, done < total))


def make_conversations(config: DictConfig) -> list[Conversation]:
    """Load the conversations of ``data``, or generate them from the seed."""
    if config.data is not None:
        return load_conversations(Path(config.data))
    sizes, seed = config.generated, config.eval.seed
    talks = generate_conversations(sizes.conversations, sizes.sessions, sizes.turns, sizes.speakers, seed)
    return talks + debates(sizes.debates, sizes.agents, sizes.rounds, seed)


def make_reader(config: DictConfig, engine: Engine, encoder: CachedEncoder) -> Reader:
    """Make a reader with the config's method; encode one line now, so that no answer's time contains lazy loading."""
    method, tokenizer = make_method(config.memory), make_tokenizer(config.model, engine.model)
    prompt = QuestionPrompt(tokenizer, config.prompt.instruction, config.choices, config.prompt.start)
    session = MemorySession(engine, method, encoder, prompt.line, config.prompt.budget, prompt.context())
    encoder.encode(["ready\n"])
    engine.encode([(None, prompt.line("ready\n"))])
    timer = ModuleTimer(engine) if config.profile else None
    return Reader(session, prompt, config.unit, config.planner.max_new_tokens, config.replay, timer)


def _check(config: DictConfig) -> None:
    if config.planner.kind != "kv":
        raise ConfigError(f"planner={config.planner.name} reads no conversations; use a planner with a memory method")
    check_settings(config, MINIMA, OPTIONAL, SWITCHES)
    make_method(config.memory)  # rejects invalid compositions before a model is loaded
    if config.replay not in (None, True, False):
        raise ConfigError(f"replay={config.replay} is invalid; use true, false or null")
    if config.bertscore is not None:
        check_bertscore(config.bertscore)


def _so_far(run: AnswerFolder) -> str:
    scores = [row.scores.f1 for row in run.results if row.scores.f1 is not None]
    return f"F1 {100 * sum(scores) / len(scores):.1f}" if scores else ""


def _finish(run: AnswerFolder, config: DictConfig, console: Console, versions: Mapping[str, str]) -> dict[str, Any]:
    rows = sorted(run.results, key=lambda row: row.index)
    texts = [row for row in rows if row.scores.f1 is not None] if config.bertscore else []
    pairs = [row.answer for row in texts], [row.gold for row in texts]
    try:
        values = bert_scores(*pairs, config.bertscore) if texts else []
    except ConfigError as error:
        raise ConfigError(f"{error}; answers are kept: use eval.resume={run.path} bertscore=NAME or null") from error
    bert = {row.index: value for row, value in zip(texts, values, strict=True)}
    plain = {"config": OmegaConf.to_container(config, resolve=True), "versions": versions}
    setting = {"similarity_encoder": config.prompt.encoder, "seed": config.eval.seed}
    summary = {**summarize(rows, bert), **setting, **plain}
    run.write_summary(summary)
    title = f"{config.planner.name}: {config.data or 'generated conversations'}"
    cost = cost_table(summary, "cost of an answer")
    for table in (quality_table(summary, title), tokens_table(summary), cost, split_table(summary)):
        if table is not None:
            console.print(table)
    console.print(f"run folder: {run.path}", soft_wrap=True)
    return summary
