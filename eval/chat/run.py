"""One run: read conversations, answer their questions, write the folder, show the tables. Resumable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from eval.chat.answer_scores import bert_scores, check_bertscore
from eval.chat.conversation import Asked, Conversation, draw, together
from eval.chat.debate import debates
from eval.chat.generated import generated
from eval.chat.loader import load_conversations
from eval.chat.prompt import QuestionPrompt
from eval.chat.reader import Reader
from eval.chat.rows import AnswerFolder, AnswerRow, answer_row, row_id
from eval.chat.summary import summarize
from eval.chat.tables import quality_table, split_table, tokens_table
from eval.chat.time_split import Stopwatch
from eval.common.progress import progress
from eval.common.resume import Create, begin
from eval.common.run import versions_of
from eval.common.tables import cost_table
from keep_agent.config.planner_factory import make_engine, make_method, make_tokenizer
from keep_agent.config.settings import check_settings
from keep_agent.errors import ConfigError
from memory.engine.base import Engine
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


def evaluate(config: DictConfig, folder: Path, console: Console, given: Sequence[str] = ()) -> dict[str, Any]:
    """Answer the questions of ``config`` into ``folder``, or the one it resumes; returns the summary that was written.

    ``given`` are the overrides of the command line. Everything that can be wrong with the input is found before the
    folder is touched.
    """
    with begin(AnswerFolder, config, folder, given, _check) as (earlier, config, create):
        return _evaluate(earlier, config, create, console)


def _evaluate(
    earlier: AnswerFolder | None, config: DictConfig, create: Create[AnswerFolder], console: Console
) -> dict[str, Any]:
    questions = draw(make_conversations(config), config.limit, config.eval.seed)
    if not questions:
        raise ConfigError("there is no question to answer; give data=PATH, or generated.conversations=1 or more")
    # for a latency split nothing may run beside anything else
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
            answered: list[Asked] = []  # by an earlier run, and not in this memory
            for index, asked in enumerate(questions):
                if index in run.finished:
                    answered.append(asked)
                    continue
                _remind(reader, answered, asked)
                answered.clear()
                run.commit(_ask(reader, index, asked, encoder))
                tell()
    return _finish(run, config, console, versions_of(run, todo))


def make_conversations(config: DictConfig) -> list[Conversation]:
    """What ``data`` holds, or what the seed makes up."""
    if config.data is not None:
        return load_conversations(Path(config.data))
    made, seed = config.generated, config.eval.seed
    told = generated(made.conversations, made.sessions, made.turns, made.speakers, seed)
    return told + debates(made.debates, made.agents, made.rounds, seed)


def make_reader(config: DictConfig, engine: Engine, encoder: CachedEncoder) -> Reader:
    """A memory of the config's method, with everything loaded that loads lazily."""
    method, tokenizer = make_method(config.memory), make_tokenizer(config.model, engine.model)
    prompt = QuestionPrompt(tokenizer, config.prompt.instruction, config.choices, config.prompt.start)
    session = MemorySession(engine, method, encoder, prompt.line, config.prompt.budget, prompt.context())
    encoder.encode(["ready\n"])
    engine.encode([(None, prompt.line("ready\n"))])
    stopwatch = Stopwatch(engine) if config.profile else None
    return Reader(session, prompt, config.unit, config.planner.max_new_tokens, config.replay, stopwatch)


def _check(config: DictConfig) -> None:
    if config.planner.kind != "kv":
        raise ConfigError(f"planner={config.planner.name} reads no conversations; choose one with a memory method")
    check_settings(config, LEAST, OPTIONAL, SWITCHES)
    make_method(config.memory)  # refuses what does not go together before a model is loaded
    if config.replay not in (None, True, False):
        raise ConfigError(f"replay={config.replay} does not work; give true, false or null")
    if config.bertscore is not None:
        check_bertscore(config.bertscore)


def _check_questions(run: AnswerFolder, questions: Sequence[Asked]) -> None:
    """Raises ConfigError if what was answered is not what ``questions`` has there: the data have changed."""
    asked = {index: (row_id(one), one[1].text) for index, one in enumerate(questions)}
    for row in run.results:
        if asked.get(row.index) != (row.id, row.question):
            raise ConfigError(f"{run.path} answered {row.id}, which the data no longer have there; start a new run")


def _remind(reader: Reader, answered: Sequence[Asked], asked: Asked) -> None:
    """Bring back what the questions before ``asked`` have left in its memory."""
    for earlier in answered:
        if together(earlier[0], asked[0]):
            reader.remind(earlier)


def _ask(reader: Reader, index: int, asked: Asked, encoder: CachedEncoder) -> AnswerRow:
    conversation, question = asked
    reading = reader.read(conversation)
    return answer_row(index, asked, reading, reader.answer(question), encoder)


def _so_far(run: AnswerFolder) -> str:
    found = [row.scores.f1 for row in run.results if row.scores.f1 is not None]
    return f"F1 {100 * sum(found) / len(found):.1f}" if found else ""


def _bert(rows: Sequence[AnswerRow], model: str | None) -> Mapping[int, float]:
    texts = [row for row in rows if row.scores.f1 is not None] if model else []
    values = bert_scores([row.answer for row in texts], [row.gold for row in texts], model or "") if texts else []
    return {row.index: value for row, value in zip(texts, values, strict=True)}


def _finish(run: AnswerFolder, config: DictConfig, console: Console, versions: Mapping[str, str]) -> dict[str, Any]:
    rows = sorted(run.results, key=lambda row: row.index)
    try:
        bert = _bert(rows, config.bertscore)
    except ConfigError as error:
        raise ConfigError(f"{error}; no answer is lost: eval.resume={run.path} bertscore=NAME, or null") from error
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
