"""Trainer of planner-tiny: batches from rollout files, and checkpoints from which a run goes on."""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from transformers import Qwen2ForCausalLM

from keep_agent.errors import ConfigError, KeepError, ModelError, check_rate
from keep_agent.files import read_json
from keep_agent.options import usable_device
from planners.prompts.styles import make_style
from planners.prompts.text import clean
from planners.tiny.checkpoint import (
    RESTORE,
    SAYS_GOALS,
    build,
    deepen,
    latest_checkpoint,
    load_planner,
    load_weights,
    new_checkpoint,
    read_tensors,
    weights_of,
    widen,
    write_planner,
)
from planners.tiny.shape import VOCAB, Shape
from planners.tiny.tokenizer import BOS, PAD, extend_tokenizer, train_tokenizer
from planners.training.batches import LEVELS, Feed
from planners.training.choices import HISTORY
from planners.training.induction_init import seed_induction
from planners.training.lessons import lesson_files, read_lessons
from planners.training.optimizers import Optimizers
from planners.training.packed_attention import Batch
from planners.training.packing import IGNORE
from planners.training.parallel import ALONE, Team
from planners.training.precision import faster_precision
from planners.training.rollout_files import Rollout, read_rollouts, rollout_files

MASTER, STATE = "master.safetensors", "optimizer.safetensors"  # float32 weights; state of the optimisers
AVERAGE = "average.safetensors"  # the running mean of the float32 weights, which is what ships
OWN_WORDS = (
    "task lota grounded next goal failed agent at start holding nothing hand floor unseen there now gone "
    "did finished succeeded after steps where door state\n"
)


@dataclass
class Progress:
    """Everything that is not weights: survives a restart."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    level: int = 0
    mark: float = 0.0  # running accuracy at the current level
    curve: list[dict] = field(default_factory=list)


def corpus(files: Iterable[Path], limit: int, lessons: Iterable[Path] = ()) -> tuple[list[str], set[str]]:
    """Texts and entity names of up to ``limit`` rollouts and lessons of each file, for the tokenizer."""
    texts: list[str] = [
        "abcdefghijklmnopqrstuvwxyz " + " ".join(f"a{c}" for c in "abcdefghijklmnopqrstuvwxyz") + "\n"
    ] * 4
    names: set[str] = set()
    texts += [OWN_WORDS] * 50
    for path in files:
        for rollout in islice(read_rollouts(path), limit):
            texts += rollout_texts(rollout)
    for path in lessons:
        for lesson in islice(read_lessons(path), limit):
            texts += [clean(text) for text in (lesson.text, *chain.from_iterable(lesson.steps))]
    for text in texts:
        names.update(word for word in text.split() if _is_entity(word))
    highest: dict[str, int] = {}
    for name in names:
        kind, number = name.rsplit("_", 1)
        highest[kind] = max(int(number), highest.get(kind, 0))
    # more than were seen: a name that falls into pieces would look like another one's beginning
    return texts, {f"{kind}_{number}" for kind, most in highest.items() for number in range(1, max(10, 3 * most) + 1)}


def _is_entity(word: str) -> bool:
    kind, _, number = word.rpartition("_")
    return kind.isalpha() and number.isdecimal()


def rollout_texts(rollout: Rollout) -> Iterable[str]:
    style = make_style("plain")
    for task in rollout.tasks:
        yield from (f"{text}\n" for text in task.instructions)
        yield from (edit.text for edit in style.edits(task.facts) if edit.text)
        for step in task.steps:
            yield step.turn.text
            yield from (edit.text for edit in style.edits(step.facts) if edit.text)


@dataclass(frozen=True, slots=True)
class Scores:
    """Exactness per kind of slot: a target line counts when all its tokens are right."""

    right: dict[str, int]
    total: dict[str, int]

    def rate(self, kind: str) -> float:
        return self.right.get(kind, 0) / max(1, self.total.get(kind, 0))


def forward(
    model: Qwen2ForCausalLM, batch: Batch, precision: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logits of supervised rows, their labels, flat row numbers)."""
    device = batch.ids.device.type
    shifted = torch.full_like(batch.labels, IGNORE)
    shifted[:, :-1] = batch.labels[:, 1:]
    rows = (shifted.flatten() != IGNORE).nonzero()[:, 0]
    with torch.autocast(device, torch.bfloat16, enabled=precision is torch.bfloat16):
        hidden = model.model(
            input_ids=batch.ids,
            position_ids=batch.positions,
            attention_mask={"full_attention": None},
            use_cache=False,
            pack=batch,
        ).last_hidden_state
        logits = model.lm_head(hidden.flatten(0, 1)[rows])
    return logits.float(), shifted.flatten()[rows], rows


def score(logits: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor, batch: Batch) -> Scores:
    """Count exact target lines; a run of neighbouring supervised rows is one target."""
    ok = (logits.argmax(-1) == labels).tolist()
    places = rows.tolist()
    width = (batch.ids.shape[1] - batch.memory) // batch.slots
    right: dict[str, int] = {}
    total: dict[str, int] = {}
    start = 0
    for i in range(1, len(places) + 1):
        if i < len(places) and places[i] == places[i - 1] + 1:
            continue
        row, column = divmod(places[start], batch.ids.shape[1])
        kind = batch.kinds[row][(column - batch.memory) // width]
        total[kind] = total.get(kind, 0) + 1
        right[kind] = right.get(kind, 0) + all(ok[start:i])
        start = i
    return Scores(right, total)


def _pooled(window: Sequence[Scores], kind: str) -> float:
    """Exactness of a kind over several batches."""
    return sum(s.right.get(kind, 0) for s in window) / max(1, sum(s.total.get(kind, 0) for s in window))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one batch: mean loss, norm of the step's gradient before clipping, exactness."""

    loss: float
    norm: float
    scores: Scores


def _shape_of(model: Qwen2ForCausalLM) -> dict[str, int]:
    """A model's own numbers, by the options that ask for them."""
    shape = asdict(Shape.of(model.config))
    del shape["positions"]
    return shape


class Trainer:
    """One training run in a folder: weights, optimiser state and progress are written together."""

    def __init__(self, args: argparse.Namespace, team: Team = ALONE) -> None:
        check_rate(args.lr)
        self.args, self.team = args, team
        self.device = usable_device("--device", args.device)
        self.out = Path(args.out)
        self.files, self.lessons = rollout_files(Path(args.data)), lesson_files(Path(args.data))
        self.made = [read_json(path) for path in sorted(Path(args.data).glob("*.json"))]
        self.progress = Progress()
        self.calls: list[dict] = []  # settings of the calls that trained these weights, this one included
        self.checkpoint = latest_checkpoint(self.out)
        self.model, self.tokenizer = self._start()
        own = {key: value for key, value in vars(args).items() if key not in ("data", "out", "init")}
        own |= self._own_shape(self.model)
        call = {"from_step": self.progress.step, "args": own, "data": self.made}
        began = {"init": weights_of(Path(args.init))} if args.init and not self.checkpoint else {}
        self.calls.append(call | began)
        setattr(self.model.config, SAYS_GOALS, True)
        self.model.to(self.device).train()
        self.precision = self._precision()
        self.optimizers = Optimizers(self.model, args.optimizer, args.lr)
        if self.checkpoint:
            self.optimizers.load(read_tensors(self.checkpoint / STATE))
        self.average = self._average()
        encode = self.tokenizer.encode
        ids = {name: self.tokenizer.token_to_id(name) for name in (BOS, PAD)}
        self.feed = Feed(
            self.files, lambda text: encode(text).ids, ids[BOS], ids[PAD], args.batch_tokens,
            args.seed + self.progress.step + 7919 * team.rank, self.progress.level, args.transcript,
            self.lessons, args.apart,
        )  # fmt: skip

    def _start(self) -> tuple[Qwen2ForCausalLM, object]:
        source = self.checkpoint or (self.args.init and Path(self.args.init))
        torch.manual_seed(self.args.seed)
        if source:
            model, tokenizer, history = load_planner(source)
            try:
                self.progress, self.calls = Progress(**history["progress"]), history["calls"]
            except (LookupError, TypeError) as error:
                raise ModelError(f"{source / HISTORY} is no training record ({error!r}); {RESTORE}") from error
            if self.checkpoint:
                began = [call["init"] for call in self.calls if "init" in call]
                if self.args.init and not self._began_with(began[-1:]):
                    raise ConfigError(
                        f"--init {self.args.init} is for a run that begins, and {self.out} holds one that did not "
                        "begin with what is there now: leave it out"
                    )
                load_weights(model, read_tensors(self.checkpoint / MASTER), self.checkpoint / MASTER)
            else:
                texts, names = corpus(self.files, self.args.corpus, self.lessons)
                widen(model, tokenizer, extend_tokenizer(tokenizer, texts, names))
                model = deepen(model, self.args.deepen or len(model.model.layers))
            self._check_layers(len(model.model.layers))
            self._check_shape(model, source)
            return model, tokenizer
        self._check_layers(self.args.layers)
        texts, names = corpus(self.files, self.args.corpus, self.lessons)
        tokenizer = train_tokenizer(texts, names, self.args.vocab)
        shape = Shape(self.args.hidden, self.args.layers, self.args.heads, self.args.intermediate)
        model = build(shape.config(tokenizer))
        seed_induction(model, self.args.seed)
        return model, tokenizer

    def _check_shape(self, model: Qwen2ForCausalLM, source: Path) -> None:
        """Refuse a shape that was asked for beside a model that has its own."""
        asked, usual = vars(self.args), {**asdict(Shape()), "vocab": VOCAB}
        for name, value in self._own_shape(model).items():
            if asked[name] not in (value, usual[name]):
                raise ConfigError(
                    f"--{name} {asked[name]} is for a model that begins, and the one in {source} has {value}: "
                    "leave it out"
                )

    def _began_with(self, digests: Collection[str]) -> bool:
        try:
            return weights_of(Path(self.args.init)) in digests
        except ModelError:  # it is gone, and not needed
            return False

    def _own_shape(self, model: Qwen2ForCausalLM) -> dict[str, int]:
        """What the model has, whatever this call was given; its vocabulary is as large as the first call wanted it."""
        vocab = {"vocab": self.calls[0]["args"]["vocab"]} if self.calls else {}
        return _shape_of(model) | vocab

    def _check_layers(self, layers: int) -> None:
        if self.args.deepen not in (0, layers):
            raise ConfigError(
                f"--deepen {self.args.deepen} deepens what --init names, for a run that begins; this one has {layers} "
                "layers"
            )

    def _precision(self) -> torch.dtype:
        """One for all processes, though each would time its own machine's products."""
        named = self.args.precision
        chosen = faster_precision(self.device) if named == "auto" else getattr(torch, named)
        (half,) = self.team.told(int(chosen is torch.bfloat16))
        return torch.bfloat16 if half else torch.float32

    def _average(self) -> Qwen2ForCausalLM:
        """The running mean as it was saved; it begins with the weights themselves."""
        average = copy.deepcopy(self.model).eval().requires_grad_(False)
        if self.checkpoint and (file := self.checkpoint / AVERAGE).exists():
            load_weights(average, read_tensors(file), file)
        return average.to(self.device)

    def save(self) -> None:
        """The running mean in bf16 (what ships), and beside it in float32, the weights and the optimiser's state."""
        shape = asdict(Shape.of(self.model.config))
        history = {"calls": self.calls, "shape": shape, "progress": vars(self.progress)}
        more = {MASTER: _tensors(self.model), AVERAGE: _tensors(self.average), STATE: self.optimizers.state()}
        with new_checkpoint(self.out, self.progress.step) as folder:
            write_planner(self.average, self.tokenizer, history, folder, more)

    def rate(self, share: float, steps_here: int) -> float:
        """Learning rate: warm-up, short for a run that goes on, constant, then linear to 2 % over the last ``--decay``
        share.
        """
        warm = min(1.0, (steps_here + 1) / (20 if self.checkpoint else 100))
        decay = self.args.decay
        tail = 1.0 if share < 1 - decay else max(0.02, (1 - share) / decay)
        return self.args.lr * warm * tail

    def run(self) -> None:
        began, reported, saved, here = time.time(), time.time(), time.time(), 0
        base = self.progress.seconds
        window: list[Outcome] = []
        budget = self.args.minutes * 60
        while (elapsed := self._goes_on(time.time() - began, here)) is not None:
            self.optimizers.set_rate(self.rate(elapsed / budget, here))
            drawn = [self.feed.next() for _ in range(max(1, self.args.accumulate // self.team.size))]
            window += (outcomes := self._step([batch.to(self.device) for _, batch in drawn]))
            for (level, _), outcome in zip(drawn, outcomes, strict=True):
                self._advance(level, outcome.scores)
            here += 1
            self.progress.seconds = base + time.time() - began
            if self.team.leads and time.time() - reported > self.args.report:
                self._report(window)
                window, reported = [], time.time()
            if self.team.leads and time.time() - saved > self.args.save:
                self.save()
                saved = time.time()
        if self.team.leads:
            self._report(window)
            self.save()

    def _goes_on(self, elapsed: float, here: int) -> float | None:
        """Seconds so far, None where no other step is due. The leading process says so, and the level: rates that
        follow a clock of one's own would drift apart, and with them the weights.
        """
        more = elapsed < self.args.minutes * 60 and here != self.args.steps
        more, ms, self.feed.level = self.team.told(int(more), int(1e3 * elapsed), self.feed.level)
        return ms / 1e3 if more else None

    def close(self) -> None:
        """Stop packing batches."""
        self.feed.close()

    def _step(self, batches: Sequence[Batch]) -> list[Outcome]:
        """One optimiser step over the mean of the batches' losses."""
        seen = []
        for batch in batches:
            logits, labels, rows = forward(self.model, batch, self.precision)
            loss = F.cross_entropy(logits, labels)
            (loss / len(batches)).backward()
            seen.append((loss.item(), score(logits.detach(), labels, rows, batch)))
            self.progress.tokens += batch.ids.numel() * self.team.size
        self.team.average(self.model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5).item()
        if not math.isfinite(norm):
            raise ModelError(
                f"the gradient of step {self.progress.step + 1} is not finite in {self.precision}; go on from the last "
                "checkpoint with --precision float32, or a lower --lr"
            )
        self.optimizers.step()
        self.progress.step += 1
        if self.team.leads:
            self._follow()
        return [Outcome(loss, norm, scores) for loss, scores in seen]

    @torch.no_grad()
    def _follow(self) -> None:
        """The running mean takes a step towards the weights; at first it is the mean of all there were."""
        share = max(1 - self.args.average, 1 / (self.progress.step + 1))
        for mean, parameter in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(parameter, share)

    def _advance(self, level: int, scores: Scores) -> None:
        if not self.team.leads:  # `_goes_on` tells the others
            return
        progress = self.progress
        judge = LEVELS[level].judged_by
        if level != progress.level or level + 1 == len(LEVELS) or not scores.total.get(judge):
            return
        progress.mark = 0.95 * progress.mark + 0.05 * scores.rate(judge)
        if progress.mark > LEVELS[level].pass_mark:
            progress.level, progress.mark = level + 1, 0.3
            self.feed.level = progress.level
            print(f"-- level {progress.level} at step {progress.step}, {progress.seconds:.0f} s", flush=True)

    def _report(self, window: Sequence[Outcome]) -> None:
        if not window:
            return
        kinds = sorted({kind for one in window for kind in one.scores.total})
        exact = {f"exact_{kind}": round(_pooled([one.scores for one in window], kind), 4) for kind in kinds}
        progress = self.progress
        row = {
            "step": progress.step,
            "seconds": round(progress.seconds),
            "tokens": progress.tokens,
            "level": progress.level,
        }
        means = {key: sum(getattr(one, key) for one in window) / len(window) for key in ("loss", "norm")}
        row |= {key: round(value, 4) for key, value in means.items()} | exact
        progress.curve.append(row)
        print(json.dumps(row), flush=True)


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().cpu().contiguous() for name, parameter in model.named_parameters()}


def train(team: Team, args: argparse.Namespace) -> None:
    """One process of a call."""
    if args.threads or team.size > 1:
        torch.set_num_threads(args.threads or max(1, (os.cpu_count() or 1) // team.size))
    try:
        with closing(Trainer(args, team)) as trainer:
            trainer.run()
    except KeyboardInterrupt:
        sys.exit(130)
    except KeepError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
