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
from eval.chat.rows import AnswerFolder, AnswerRow, answer_row, row_id
from eval.chat.summary import quality_table, split_table, summarize, tokens_table
from eval.common.resume import Create, begin
from eval.common.run import progress, versions_of
from eval.common.tables import cost_table
from keep_agent.config.planner_factory import make_engine, make_method, make_tokenizer
from keep_agent.config.settings import check_settings
from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.engine.transformers.module_timer import ModuleTimer
from memory.segments.sentence_encoder import CachedEncoder, make_encoder
from memory.session import MemorySession

LEAST = {
    "limit": 1,
    "planner.max_new_tokens": 1,
    "prompt.budget": 1,
    "generated.conversations": 0,
    "generated.sessions": 1,
    "generated.turns": 1,
    "generated.speakers": 2,
    "generated.debates": 0,
    "generated.agents": 2,
    "generated.rounds": 1,
    "eval.seed": 0,
    "eval.threads": 1,
}
OPTIONAL = ("limit", "eval.threads")
SWITCHES = ("profile", "eval.progress")


def evaluate(config: DictConfig, folder: Path, console: Console, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Answer the questions of ``config`` into ``folder``, or into the run to resume; return the summary.

    ``overrides`` are those of the command line. The input is checked before the folder is created.
    """
    with begin(AnswerFolder, config, folder, overrides, _check) as (earlier, config, create):
        return _evaluate(earlier, config, create, console)


def _evaluate(
    earlier: AnswerFolder | None, config: DictConfig, create: Create[AnswerFolder], console: Console
) -> dict[str, Any]:
    questions = draw(make_conversations(config), config.limit, config.eval.seed)
    if not questions:
        raise ConfigError("there is no question to answer; give data=PATH, or generated.conversations=1 or more")
    # a latency split needs transfers inline, so that parts do not overlap
    with closing(make_engine(config, "inline" if config.profile else None)) as engine:
        encoder = make_encoder(config.prompt.encoder)
        reader = make_reader(config, engine, encoder)
        if earlier is not None:
            earlier.check_weights(engine.model_key)
            _check_questions(earlier, questions)
        OmegaConf.update(config, "weights", engine.model_key, force_add=True)
        run = earlier or create(OmegaConf.to_container(config, resolve=True))
        with progress(console, "questions", len(questions), run, config.eval.progress, lambda: _so_far(run)) as tell:
            todo = len(run.finished) < len(questions)
            skipped: list[Item] = []  # answered by an earlier run, so that this memory lacks their effects
            for index, item in enumerate(questions):
                if index in run.finished:
                    skipped.append(item)
                    continue
                _restore(reader, skipped, item)
                skipped.clear()
                run.commit(_ask(reader, index, item, encoder))
                tell()
    return _finish(run, config, console, versions_of(run, todo))


def make_conversations(config: DictConfig) -> list[Conversation]:
    """Load the conversations of ``data``, or generate them from the seed."""
    if config.data is not None:
        return load_conversations(Path(config.data))
    sizes, seed = config.generated, config.eval.seed
    talks = generate_conversations(sizes.conversations, sizes.sessions, sizes.turns, sizes.speakers, seed)
    return talks + debates(sizes.debates, sizes.agents, sizes.rounds, seed)


def make_reader(config: DictConfig, engine: Engine, encoder: CachedEncoder) -> Reader:
    """Make a reader with the config's method; a first encoding loads everything that loads lazily."""
    method, tokenizer = make_method(config.memory), make_tokenizer(config.model, engine.model)
    prompt = QuestionPrompt(tokenizer, config.prompt.instruction, config.choices, config.prompt.start)
    session = MemorySession(engine, method, encoder, prompt.line, config.prompt.budget, prompt.context())
    encoder.encode(["ready\n"])
    engine.encode([(None, prompt.line("ready\n"))])
    timer = ModuleTimer(engine) if config.profile else None
    return Reader(session, prompt, config.unit, config.planner.max_new_tokens, config.replay, timer)


def _check(config: DictConfig) -> None:
    if config.planner.kind != "kv":
        raise ConfigError(f"planner={config.planner.name} reads no conversations; choose one with a memory method")
    check_settings(config, LEAST, OPTIONAL, SWITCHES)
    make_method(config.memory)  # refuses impossible compositions before a model is loaded
    if config.replay not in (None, True, False):
        raise ConfigError(f"replay={config.replay} is invalid; use true, false or null")
    if config.bertscore is not None:
        check_bertscore(config.bertscore)


def _check_questions(run: AnswerFolder, questions: Sequence[Item]) -> None:
    """Check that the run's answers belong to the current data. Raises ConfigError otherwise."""
    current = {index: (row_id(item), item[1].text) for index, item in enumerate(questions)}
    for row in run.results:
        if current.get(row.index) != (row.id, row.question):
            raise ConfigError(
                f"{run.path} answered {row.id} as question {row.index}, but the data have changed; start a new run"
            )


def _restore(reader: Reader, skipped: Sequence[Item], item: Item) -> None:
    """Restore the effects of ``skipped`` questions on the memory of ``item``."""
    for earlier in skipped:
        if earlier[0].shares_memory(item[0]):
            reader.restore(earlier)


def _ask(reader: Reader, index: int, item: Item, encoder: CachedEncoder) -> AnswerRow:
    reading = reader.read(item[0])
    return answer_row(index, item, reading, reader.answer(item[1]), encoder)


def _so_far(run: AnswerFolder) -> str:
    scores = [row.scores.f1 for row in run.results if row.scores.f1 is not None]
    return f"F1 {100 * sum(scores) / len(scores):.1f}" if scores else ""


def _bert(rows: Sequence[AnswerRow], model: str | None) -> Mapping[int, float]:
    texts = [row for row in rows if row.scores.f1 is not None] if model else []
    values = bert_scores([row.answer for row in texts], [row.gold for row in texts], model or "") if texts else []
    return {row.index: value for row, value in zip(texts, values, strict=True)}


def _finish(run: AnswerFolder, config: DictConfig, console: Console, versions: Mapping[str, str]) -> dict[str, Any]:
    rows = sorted(run.results, key=lambda row: row.index)
    try:
        bert = _bert(rows, config.bertscore)
    except ConfigError as error:
        raise ConfigError(f"{error}; to keep all answers: eval.resume={run.path} bertscore=NAME, or null") from error
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    summary = {
        **summarize(rows, bert),
        "similarity_encoder": config.prompt.encoder,
        "seed": config.eval.seed,
        "config": plain,
        "versions": versions,
    }
    run.write_summary(summary)
    title = f"{config.planner.name}: {config.data or 'generated conversations'}"
    cost = cost_table(summary, "cost of an answer")
    for table in (quality_table(summary, title), tokens_table(summary), cost, split_table(summary)):
        if table is not None:
            console.print(table)
    console.print(f"run folder: {run.path}", soft_wrap=True)
    return summary
