"""Start of a training run: a new model, a planner with tokens added for new rollouts, or the last checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from string import ascii_lowercase

import torch
from tokenizers import Tokenizer
from transformers import Qwen2ForCausalLM

from keep_agent.errors import ConfigError, ModelError
from planners.prompts.text import clean, make_style
from planners.tiny.checkpoint import (
    RESTORE,
    build,
    latest_checkpoint,
    load_planner,
    load_weights,
    read_tensors,
    weights_hash,
)
from planners.tiny.growth import add_embeddings, deepen
from planners.tiny.shape import HISTORY, VOCAB, Shape
from planners.tiny.tokenizer import extend_tokenizer, train_tokenizer
from planners.training.induction_init import seed_induction
from planners.training.lessons import read_lessons
from planners.training.rollout_files import Rollout, read_rollouts

MASTER_WEIGHTS = "master.safetensors"  # file of the float32 weights
PROMPT_WORDS = (
    "task lota grounded next goal failed agent at start holding nothing hand floor unseen there now gone "
    "did finished succeeded after steps where door state\n"
)
ALPHABET = ascii_lowercase + " " + " ".join(f"a{letter}" for letter in ascii_lowercase) + "\n"


def corpus(files: Iterable[Path], limit: int, lessons: Iterable[Path] = ()) -> tuple[list[str], set[str]]:
    """Return the tokenizer's corpus: texts and entity names of up to ``limit`` rollouts and lessons of each file."""
    texts = [ALPHABET] * 4 + [PROMPT_WORDS] * 50
    for path in files:
        for rollout in islice(read_rollouts(path), limit):
            texts += rollout_texts(rollout)
    for path in lessons:
        for lesson in islice(read_lessons(path), limit):
            texts += [clean(text) for text in (lesson.text, *chain.from_iterable(lesson.steps))]
    highest: dict[str, int] = {}
    for name in {word for text in texts for word in text.split()}:
        kind, _, number = name.rpartition("_")
        if kind.isalpha() and number.isdecimal():
            highest[kind] = max(int(number), highest.get(kind, 0))
    # includes names that do not occur: without its own token, mug_12 would begin with the token of mug_1
    return texts, {f"{kind}_{number}" for kind, most in highest.items() for number in range(1, max(10, 3 * most) + 1)}


def rollout_texts(rollout: Rollout) -> Iterator[str]:
    """Yield the instructions, fact lines and turns of a rollout."""
    style = make_style("plain")
    for task in rollout.tasks:
        yield from (f"{text}\n" for text in task.instructions)
        yield from (edit.text for edit in style.edits(task.facts) if edit.text)
        for step in task.steps:
            yield step.turn.text
            yield from (edit.text for edit in style.edits(step.facts) if edit.text)


@dataclass
class Progress:
    """Progress of a run: the numbers that a checkpoint stores besides weights."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    level: int = 0
    mark: float = 0.0  # running accuracy at the current level
    curve: list[dict] = field(default_factory=list)


@dataclass
class RunStart:
    """A model with its tokenizer and training record; ``checkpoint`` is the folder that the run resumes from."""

    model: Qwen2ForCausalLM
    tokenizer: Tokenizer
    progress: Progress = field(default_factory=Progress)
    calls: list[dict] = field(default_factory=list)  # settings of earlier training calls
    checkpoint: Path | None = None

    def shape(self) -> dict[str, int]:
        """Return the model's sizes by command-line option; ``vocab`` is the value of --vocab in the first call."""
        shape = asdict(Shape.of(self.model.config))
        del shape["positions"]
        return shape | ({"vocab": self.calls[0]["args"]["vocab"]} if self.calls else {})


def start_run(args: argparse.Namespace, files: Sequence[Path], lessons: Sequence[Path]) -> RunStart:
    """Resume the run in ``--out``, else extend the planner of ``--init``, else build a new model.

    :raises ConfigError: an option does not fit the existing model
    :raises ModelError: a checkpoint is damaged
    """
    checkpoint = latest_checkpoint(Path(args.out))
    torch.manual_seed(args.seed)
    if not checkpoint and not args.init:
        _check_layers(args, args.layers)
        tokenizer = train_tokenizer(*corpus(files, args.corpus, lessons), args.vocab)
        model = build(Shape(args.hidden, args.layers, args.heads, args.intermediate).config(tokenizer))
        seed_induction(model, args.seed)
        return RunStart(model, tokenizer)
    source = checkpoint or Path(args.init)
    model, tokenizer, history = load_planner(source)
    try:
        start = RunStart(model, tokenizer, Progress(**history["progress"]), history["calls"], checkpoint)
    except (LookupError, TypeError) as error:
        raise ModelError(f"{source / HISTORY} is not a training record ({error!r}); {RESTORE}") from error
    if checkpoint:
        _check_init(args, start.calls)
        load_weights(model, read_tensors(checkpoint / MASTER_WEIGHTS), checkpoint / MASTER_WEIGHTS)
    else:
        add_embeddings(model, tokenizer, extend_tokenizer(tokenizer, *corpus(files, args.corpus, lessons)))
        start.model = deepen(model, args.deepen or len(model.model.layers))
    _check_layers(args, len(start.model.model.layers))
    _check_shape(args, start.shape(), source)
    return start


def _check_init(args: argparse.Namespace, calls: Sequence[dict]) -> None:
    """Raise ConfigError for an ``--init`` that the resumed run did not start from, or that does not exist."""
    if not args.init:
        return
    digests = [call["init"] for call in calls if "init" in call]
    try:
        if weights_hash(Path(args.init)) in digests[-1:]:
            return
    except ModelError:
        pass
    raise ConfigError(
        f"--init {args.init} is for a new run: the run in {args.out} did not start from the weights that {args.init} "
        "holds now; leave --init out"
    )


def _check_shape(args: argparse.Namespace, shape: dict[str, int], source: Path) -> None:
    """Raise ConfigError for shape options that differ from both the model and the default."""
    options, defaults = vars(args), {**asdict(Shape()), "vocab": VOCAB}
    for name, value in shape.items():
        if options[name] not in (value, defaults[name]):
            raise ConfigError(
                f"--{name} {options[name]} is for new models; the model in {source} has {value}: leave --{name} out"
            )


def _check_layers(args: argparse.Namespace, layers: int) -> None:
    if args.deepen not in (0, layers):
        raise ConfigError(
            f"--deepen {args.deepen} is for a new run with --init; the model of this run has {layers} layers: "
            "leave --deepen out"
        )
