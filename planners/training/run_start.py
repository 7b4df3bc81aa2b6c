"""Start of a training run: a new model, a planner with tokens added for new rollouts, or the last checkpoint."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from string import ascii_lowercase
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel, Qwen2ForCausalLM

from keep_agent.errors import ConfigError, ModelError
from planners.prompts.styles import make_style
from planners.prompts.text import clean
from planners.tiny.checkpoint import (
    RESTORE,
    SAYS_GOALS,
    WEIGHTS,
    build,
    latest_checkpoint,
    load_planner,
    load_weights,
    read_tensors,
    weights_hash,
    write_planner,
)
from planners.tiny.growth import add_embeddings, deepen
from planners.tiny.shape import HISTORY, VOCAB, Shape
from planners.tiny.tokenizer import BOS, PAD, extend_tokenizer, train_tokenizer
from planners.training.batches import PLANNER_CURRICULUM, Curriculum
from planners.training.induction_init import seed_induction
from planners.training.lessons import read_lessons
from planners.training.packing import Encode
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
class RunStart(ABC):
    """A model with its vocabulary and training record; ``checkpoint`` is the folder that the run resumes from.

    Only the parameters that require gradients are trained.
    """

    model: PreTrainedModel
    encode: Encode
    bos: int
    pad: int
    curriculum: Curriculum
    progress: Progress
    calls: list[dict]  # settings of earlier training calls
    checkpoint: Path | None
    weights: ClassVar[str] = WEIGHTS  # file of the weights in a checkpoint

    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """Return the values of command-line options that describe the model."""

    @abstractmethod
    def write(
        self, folder: Path, tensors: Mapping[str, torch.Tensor], history: dict[str, Any],
        more: Mapping[str, Mapping[str, torch.Tensor]],
    ) -> None:  # fmt: skip
        """Write a model folder with the trained ``tensors``, the training record, and more files of tensors."""


@dataclass
class PlannerStart(RunStart):
    """A small planner, of which all parameters are trained, and its tokenizer."""

    tokenizer: Tokenizer

    def shape(self) -> dict[str, Any]:
        """Return the model's sizes by command-line option; ``vocab`` is the value of --vocab in the first call."""
        shape = asdict(Shape.of(self.model.config))
        del shape["positions"]
        return shape | ({"vocab": self.calls[0]["args"]["vocab"]} if self.calls else {})

    def write(
        self, folder: Path, tensors: Mapping[str, torch.Tensor], history: dict[str, Any],
        more: Mapping[str, Mapping[str, torch.Tensor]],
    ) -> None:  # fmt: skip
        setattr(self.model.config, SAYS_GOALS, True)
        record = {**history, "shape": asdict(Shape.of(self.model.config))}
        write_planner(self.model, self.tokenizer, record, folder, more, tensors)


def load_trained(target: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor], where: Path) -> None:
    """Copy tensors into ``target``, by name. Raises ModelError, naming ``where``, for tensors that do not fit."""
    odd = sorted(name for name in {*target, *state} if name not in state or name not in target)
    odd += [name for name in target if name in state and target[name].shape != state[name].shape]
    if odd:
        raise ModelError(f"the tensors of {where} do not fit the model, for example {odd[0]}; {RESTORE}")
    for name, tensor in target.items():
        tensor.copy_(state[name])


def _planner_start(
    model: Qwen2ForCausalLM, tokenizer: Tokenizer, progress: Progress, calls: list[dict], checkpoint: Path | None
) -> PlannerStart:
    ids = (tokenizer.token_to_id(name) for name in (BOS, PAD))
    encode = tokenizer.encode
    return PlannerStart(
        model, lambda text: encode(text).ids, *ids, PLANNER_CURRICULUM, progress, calls, checkpoint, tokenizer
    )


def start_run(args: argparse.Namespace, files: Sequence[Path], lessons: Sequence[Path]) -> PlannerStart:
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
        return _planner_start(model, tokenizer, Progress(), [], None)
    source = checkpoint or Path(args.init)
    model, tokenizer, history = load_planner(source)
    try:
        start = _planner_start(model, tokenizer, Progress(**history["progress"]), history["calls"], checkpoint)
    except (LookupError, TypeError) as error:
        raise ModelError(f"{source / HISTORY} is not a training record ({error!r}); {RESTORE}") from error
    if checkpoint:
        check_init(args, start.calls, WEIGHTS)
        load_weights(model, read_tensors(checkpoint / MASTER_WEIGHTS), checkpoint / MASTER_WEIGHTS)
    else:
        add_embeddings(model, tokenizer, extend_tokenizer(tokenizer, *corpus(files, args.corpus, lessons)))
        start.model = deepen(model, args.deepen or len(model.model.layers))
    _check_layers(args, len(start.model.model.layers))
    _check_shape(args, start.shape(), source)
    return start


def check_init(args: argparse.Namespace, calls: Sequence[dict], weights: str) -> None:
    """Raise ConfigError for an ``--init`` that the resumed run did not start from, or that does not exist."""
    if not args.init:
        return
    digests = [call["init"] for call in calls if "init" in call]
    try:
        if weights_hash(Path(args.init), weights) in digests[-1:]:
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
