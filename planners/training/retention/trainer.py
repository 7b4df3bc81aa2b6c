"""Trainer of IntentKV's residual head: replay of sessions, optimiser steps, and checkpoints to resume from."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import save
from torch.nn import functional as F

from keep_agent.errors import ConfigError, ModelError, check_rate
from keep_agent.files import loading
from keep_agent.options import usable_device
from memory.engine.models.load import load_model
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from memory.files.atomic import remove_temp, write_atomic
from memory.files.tensor_file import open_tensors
from memory.retention.residual_head import ResidualHead, checksum, save_head
from planners.training.retention.replay import ArgumentMatcher, EvictionPoint, TurnExample, replay
from planners.training.retention.tool_sessions import ToolSession, read_sessions, session_line

RESTORE = "restore it, or train again with another --out"
HEAD, STATE, PROGRESS = "head.safetensors", "training.safetensors", "progress.json"
RANK, SPARSE, NORM = 0.05, 0.01, 0.001  # weights of the second to fourth term of the loss
HARD_NEGATIVES = 64  # number of highest-scored negatives with which each positive is compared
FEATURE_SESSIONS = 8  # sessions from which the features' mean and deviation are computed
ALPHA_SHARES = (0.0, 0.01, 0.02, 0.04, 0.08, 0.2, 1.0)  # tried shares of alpha, the trained weight of the head
NEXT_TOKENS = 8  # tokens after an eviction whose likelihood chooses alpha


@dataclass
class Progress:
    """Progress of a run: the numbers that a checkpoint stores besides weights."""

    epoch: int = 0
    session: int = 0  # sessions done in this epoch
    steps: int = 0
    rows: int = 0  # turns trained on
    dropped: int = 0  # turns without both positive and negative rows
    curve: list[dict] = field(default_factory=list)
    weighed: list[dict] = field(default_factory=list)  # tried values of alpha, with the mean surprisal of each


def write_state(
    file: Path, head: ResidualHead, optimizer: torch.optim.Optimizer, settings: Mapping[str, Any], progress: Progress
) -> None:
    state = optimizer.state_dict()["state"]
    tensors = {f"optimizer.{index}.{key}": value for index, values in state.items() for key, value in values.items()}
    tensors |= {f"head.{name}": value for name, value in head.state_dict().items()}
    tensors = {name: value.cpu().contiguous() for name, value in tensors.items()}
    metadata = {"progress": json.dumps(asdict(progress), indent=1), "settings": json.dumps(settings)}
    metadata["sha256"] = checksum(tensors, metadata["progress"], metadata["settings"])
    write_atomic(file, save(tensors, metadata))


def read_state(file: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Read (progress and settings, tensors) from a checkpoint; checkpoints of version 0.2.0 have no checksum.

    :raises ModelError: the file is damaged
    """
    with loading(file, RESTORE), open_tensors(file) as content:
        metadata = content.metadata() or {}
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        expected = checksum(tensors, metadata["progress"], metadata["settings"])
    if set(metadata) != {"progress", "settings"} and metadata.get("sha256") != expected:
        raise ModelError(f"{file} is damaged: its SHA-256 does not match; {RESTORE}")
    return metadata, tensors


def load_tensors(tensors: Mapping[str, torch.Tensor], head: ResidualHead, optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state_dict()
    weights = {}
    for name, value in tensors.items():
        match name.split("."):
            case ["optimizer", index, *key]:
                state["state"].setdefault(int(index), {})[".".join(key)] = value
            case ["head", *key]:
                weights[".".join(key)] = value
    optimizer.load_state_dict(state)
    head.load_state_dict(weights)


def loss_of(head: ResidualHead, example: TurnExample) -> torch.Tensor:
    """Sum the four terms of IntentKV's equation 8. The last has no gradient, since the query memory is not trained."""
    scores, labels = head(example.features, example.span, example.rule), example.labels
    share = labels.float().mean().clamp(0.02, 0.5)
    entropy = F.binary_cross_entropy_with_logits(scores, labels.float(), pos_weight=(1 - share) / share)
    hard = scores[~labels].topk(min(HARD_NEGATIVES, int((~labels).sum()))).values
    rank = F.softplus(hard[None] - scores[labels][:, None]).mean()
    return entropy + RANK * rank + SPARSE * scores.sigmoid().mean() + NORM * (example.norm - 1).square()


class Trainer:
    """Training run over epochs of sessions. The seed orders the sessions, so a resumed run gives the same result."""

    def __init__(self, args: argparse.Namespace) -> None:
        check_rate(args.lr)
        torch.manual_seed(args.seed)
        self.args, self.out = args, Path(args.out)
        device = usable_device("--device", args.device)
        self.engine = TransformersEngine(load_model(args.model, args.dtype, device))
        tokenizer = load_tokenizer(args.tokenizer or args.model, self.engine.info.vocab)
        encode = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
        sessions = [session for file in args.sessions for session in read_sessions(Path(file), encode)]
        if not sessions:
            raise ConfigError(f"no session in {', '.join(args.sessions)}: write some with python -m eval.sessions")
        if not 0 <= args.held_out < len(sessions):
            held_out = f"--held-out {args.held_out} of {len(sessions)} sessions"
            raise ConfigError(f"{held_out} leaves no session to train on: lower --held-out")
        count = len(sessions) - args.held_out
        self.sessions, self.held_out = sessions[:count], sessions[count:]
        special = set(tokenizer.all_special_ids)
        texts = {token: tokenizer.decode([token]) for token in set(tokenizer.get_vocab().values()) - special}
        self.matcher = ArgumentMatcher(texts, args.shortest)
        keys = ("model", "dtype", "lr", "decay", "budgets", "shortest", "accumulate", "seed")
        self.settings = {key: value for key, value in vars(args).items() if key in keys}
        # digest of all tokenized sessions in their order
        content = sha256("\n".join(json.dumps(session_line(session)) for session in sessions).encode()).hexdigest()
        self.settings["weights_key"] = self.engine.info.weights_key
        self.settings |= {"sessions": len(self.sessions), "held_out": len(self.held_out), "content": content}
        self.head = ResidualHead(self.engine.info.head_dim).train().to(device)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=args.lr, weight_decay=0.01)
        self.progress = Progress()
        if (self.out / STATE).is_file():
            self._resume()
        self._window: list[tuple[float, float, float]] = []

    def run(self) -> None:
        if not self.progress.steps:
            self._set_scale()
        while self.progress.epoch < self.args.epochs:
            order = list(range(len(self.sessions)))
            random.Random(f"{self.args.seed} {self.progress.epoch}").shuffle(order)
            for number in order[self.progress.session :]:
                self._learn(self.sessions[number])
                self.progress.session += 1
                if self.progress.session % self.args.save == 0:
                    self.save()
            self.progress.epoch, self.progress.session = self.progress.epoch + 1, 0
            self.save()
        if self.held_out:
            self._choose_alpha()

    def save(self) -> None:
        """Write the state for a resumed run atomically to one file, and publish head and report."""
        self._report()
        write_state(self.out / STATE, self.head, self.optimizer, self.settings, self.progress)
        self._publish()

    def _publish(self) -> None:
        """Write head and report, which a resumed run does not read."""
        about = {**self.settings, **asdict(self.progress)}
        save_head(self.head, self.out / HEAD, {key: value for key, value in about.items() if key != "curve"})
        write_atomic(self.out / PROGRESS, json.dumps(asdict(self.progress), indent=1))

    def close(self) -> None:
        self.engine.close()

    def _replay(self, session: ToolSession, budget: int) -> Iterator[EvictionPoint]:
        return replay(self.engine, session, self.matcher, self.head, budget, self.args.decay)

    def _replay_all(self, sessions: Sequence[ToolSession]) -> Iterator[EvictionPoint]:
        """Replay the sessions, cycling through the budgets."""
        for budget, session in zip(cycle(self.args.budgets), sessions, strict=False):
            yield from self._replay(session, budget)

    def _set_scale(self) -> None:
        """Set the features' mean and deviation from the first sessions, in which the new head adds 0 to the rule."""
        examples = [point.example.features for point in self._replay_all(self.sessions[:FEATURE_SESSIONS])]
        if not examples:
            raise ConfigError(f"the first sessions never exceed --budgets {self.args.budgets} rows: lower the budgets")
        features = torch.cat(examples)
        self.head.center.copy_(features.mean(0))
        self.head.spread.copy_(features.std(0).clamp(min=1e-6))

    def _choose_alpha(self) -> None:
        """Publish the head with the best alpha of `ALPHA_SHARES`, by the likelihood of the held-out sessions.

        With its trained alpha, the head outweighs the rule, whose scores are softmax shares that differ by hundredths.
        """
        trained = self.head.alpha.detach().clone()
        self.progress.weighed = []
        for share in ALPHA_SHARES:
            self.head.alpha.data.copy_(trained * share)
            surprisals = list(self._surprisals(self.held_out))
            if not surprisals:
                budgets = f"--budgets {self.args.budgets}"
                raise ConfigError(f"the held-out sessions never exceed {budgets} rows: lower the budgets")
            row = {"alpha": round(float(self.head.alpha.detach()), 5), "nats": round(fmean(surprisals), 4)}
            self.progress.weighed.append(row)
            print(json.dumps(row), flush=True)
        best = min(range(len(ALPHA_SHARES)), key=lambda number: self.progress.weighed[number]["nats"])
        self.head.alpha.data.copy_(trained * ALPHA_SHARES[best])
        self._publish()
        self.head.alpha.data.copy_(trained)

    def _surprisals(self, sessions: Sequence[ToolSession]) -> Iterator[float]:
        """Yield -log p, in nats, of the first tokens after each eviction."""
        for point in self._replay_all(sessions):
            if point.next_turn is not None:
                tokens = point.next_turn.ids[: -point.next_turn.query or None][:NEXT_TOKENS]
                if tokens:
                    yield -float(self.engine.score(point.cache, [tokens]).scores[0])

    def _learn(self, session: ToolSession) -> None:
        count, rng = 0, random.Random(f"{self.args.seed} {self.progress.epoch} {session.name}")
        budget = rng.choice(self.args.budgets)
        for point in self._replay(session, budget):
            example = point.example
            if not example.has_both_labels:
                self.progress.dropped += 1
                continue
            loss = loss_of(self.head, example)
            if not bool(loss.isfinite()):
                raise ModelError(
                    f"the loss is {loss.item()} in session {session.name} after {self.progress.steps} steps: train "
                    f"with a smaller --lr than {self.args.lr:g}, in another --out than {self.out}"
                )
            (loss / self.args.accumulate).backward()
            self._window.append((loss.item(), *_recall(self.head, example)))
            self.progress.rows += 1
            count += 1
            if count % self.args.accumulate == 0:
                self._step()
        if count % self.args.accumulate:
            self._step()

    def _step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress.steps += 1

    def _report(self) -> None:
        if not self._window:
            return
        loss, head, rule = (sum(column) / len(self._window) for column in zip(*self._window, strict=True))
        row = {"epoch": self.progress.epoch, "session": self.progress.session, "steps": self.progress.steps}
        row |= {"loss": round(loss, 4), "recall": round(head, 4), "rule_recall": round(rule, 4)}
        self.progress.curve.append(row)
        self._window = []
        print(json.dumps(row), flush=True)

    def _resume(self) -> None:
        """Resume a run. Raises ConfigError if its settings differ, ModelError if the checkpoint is damaged."""
        remove_temp(self.out)  # deletes temporary files of a killed run
        metadata, tensors = read_state(self.out / STATE)
        with loading(self.out / STATE, RESTORE):
            old, progress = json.loads(metadata["settings"]), Progress(**json.loads(metadata["progress"]))
        changed = [f"{key}={self.settings[key]} (was {old.get(key)})" for key in old if old[key] != self.settings[key]]
        if changed:
            raise ConfigError(f"{self.out} holds a run with other settings: {', '.join(changed)}; choose another --out")
        self.progress = progress
        load_tensors(tensors, self.head, self.optimizer)


def _recall(head: ResidualHead, example: TurnExample) -> tuple[float, float]:
    """Return the share of positive rows that are in the best quarter of all rows, by the head and by the rule alone."""
    best, labels = max(1, example.labels.numel() // 4), example.labels
    with torch.no_grad():
        scores = head(example.features, example.span, example.rule)
    shares = (labels[values.topk(best).indices].sum() / labels.sum() for values in (scores, example.rule))
    return tuple(map(float, shares))
