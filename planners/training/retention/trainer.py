"""Trainer of IntentKV's residual head: replays sessions, and writes checkpoints from which a run goes on."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from statistics import fmean

import torch
from safetensors.torch import save
from torch.nn import functional as F

from keep_agent.errors import ConfigError, ModelError, check_rate
from keep_agent.files import loading
from keep_agent.options import usable_device
from memory.engine.models.load import load_model
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from memory.files.atomic import clean, write_atomic
from memory.files.tensor_file import open_tensors
from memory.retention.residual_head import ResidualHead, checksum, save_head
from planners.training.retention.replay import Example, Moment, Words, replay
from planners.training.retention.tool_sessions import ToolSession, read_sessions, session_line

REMEDY = "restore it, or train anew with another --out"
HEAD, STATE, PROGRESS = "head.safetensors", "training.safetensors", "progress.json"
RANK, SPARSE, NORM = 0.05, 0.01, 0.001  # weights of the loss's later terms
HARD = 64  # negatives each positive is compared with
MEASURED = 8  # sessions, for what features are like
SHARES = (0.0, 0.01, 0.02, 0.04, 0.08, 0.2, 1.0)  # of the alpha that was learned, to choose from
FORESEEN = 8  # tokens of what a session goes on with


@dataclass
class Progress:
    """Everything that is not weights: survives a restart."""

    epoch: int = 0
    session: int = 0  # of the epoch
    steps: int = 0
    rows: int = 0
    dropped: int = 0  # turns without evidence
    curve: list[dict] = field(default_factory=list)
    weighed: list[dict] = field(default_factory=list)


def loss_of(head: ResidualHead, example: Example) -> torch.Tensor:
    """The paper's four terms (equation 8). The last has no gradient here, for the query memory is given."""
    scores, wanted = head(example.features, example.span, example.rule), example.wanted
    share = wanted.float().mean().clamp(0.02, 0.5)
    right = F.binary_cross_entropy_with_logits(scores, wanted.float(), pos_weight=(1 - share) / share)
    hard = scores[~wanted].topk(min(HARD, int((~wanted).sum()))).values
    rank = F.softplus(hard[None] - scores[wanted][:, None]).mean()
    return right + RANK * rank + SPARSE * scores.sigmoid().mean() + NORM * (example.norm - 1).square()


class Trainer:
    """Replays sessions for some epochs; shuffled between epochs by the seed, so that a resumed run goes on alike."""

    def __init__(self, args: argparse.Namespace) -> None:
        check_rate(args.lr)
        torch.manual_seed(args.seed)
        self.args, self.out = args, Path(args.out)
        device = usable_device("--device", args.device)
        self.engine = TransformersEngine(load_model(args.model, args.dtype, device))
        tokenizer = load_tokenizer(args.tokenizer or args.model, self.engine.info.vocab)
        encode = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
        self.sessions = [one for file in args.sessions for one in read_sessions(Path(file), encode)]
        if not self.sessions:
            raise ConfigError(f"no session in {', '.join(args.sessions)}: write some with python -m eval.sessions")
        if not 0 <= args.held_out < len(self.sessions):
            raise ConfigError(f"--held-out {args.held_out} of {len(self.sessions)} sessions leaves none to train on")
        learned = len(self.sessions) - args.held_out
        self.sessions, self.held = self.sessions[:learned], self.sessions[learned:]
        special = set(tokenizer.all_special_ids)
        texts = {token: tokenizer.decode([token]) for token in set(tokenizer.get_vocab().values()) - special}
        self.words = Words(texts, args.shortest)
        kept = ("model", "dtype", "lr", "decay", "budgets", "shortest", "accumulate", "seed")
        self.settings = {key: value for key, value in vars(args).items() if key in kept}
        self.settings["weights_key"] = self.engine.info.weights_key
        self.settings |= {"sessions": len(self.sessions), "held_out": len(self.held)}
        self.settings["content"] = _digest([*self.sessions, *self.held])
        self.head = ResidualHead(self.engine.info.head_dim).train().to(device)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=args.lr, weight_decay=0.01)
        self.progress = Progress()
        if (self.out / STATE).is_file():
            self._resume()
        self._window: list[tuple[float, float, float]] = []

    def run(self) -> None:
        if not self.progress.steps:
            self._measure()
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
        if self.held:
            self._weigh()

    def save(self) -> None:
        """What a resumed run reads is one file, whole or not there; the head and the report are for others."""
        self._report()
        state = self.optimizer.state_dict()["state"]
        flat = {f"optimizer.{index}.{key}": value for index, own in state.items() for key, value in own.items()}
        flat |= {f"head.{name}": value for name, value in self.head.state_dict().items()}
        report = json.dumps(asdict(self.progress), indent=1)
        metadata = {"progress": report, "settings": json.dumps(self.settings)}
        flat = {name: value.cpu().contiguous() for name, value in flat.items()}
        metadata["sha256"] = checksum(flat, metadata["progress"], metadata["settings"])
        write_atomic(self.out / STATE, save(flat, metadata))
        self._publish()

    def _publish(self) -> None:
        """Write what others read."""
        about = {**self.settings, **asdict(self.progress)}
        save_head(self.head, self.out / HEAD, {key: value for key, value in about.items() if key != "curve"})
        write_atomic(self.out / PROGRESS, json.dumps(asdict(self.progress), indent=1))

    def close(self) -> None:
        self.engine.close()

    def _replay(self, session: ToolSession, budget: int) -> Iterator[Moment]:
        return replay(self.engine, session, self.words, self.head, budget, self.args.decay)

    def _replay_all(self, sessions: Sequence[ToolSession]) -> Iterator[Moment]:
        """Each under the next of the budgets."""
        for budget, session in zip(cycle(self.args.budgets), sessions, strict=False):
            yield from self._replay(session, budget)

    def _measure(self) -> None:
        """Tell the head what its features are like, over some sessions that the rule decides alone."""
        seen = [moment.example.features for moment in self._replay_all(self.sessions[:MEASURED])]
        if not seen:
            raise ConfigError(f"the first sessions never have more rows than --budgets {self.args.budgets}: lower them")
        features = torch.cat(seen)
        self.head.center.copy_(features.mean(0))
        self.head.spread.copy_(features.std(0).clamp(min=1e-6))

    def _weigh(self) -> None:
        """Publish the head with the share of its alpha behind which the held-out sessions are least of a surprise.

        The loss knows which rows are wanted, and not what a planner does without the others: trained to the end, a head
        drowns the rule, whose scores are shares of a softmax and differ by hundredths.
        """
        learned = self.head.alpha.detach().clone()
        self.progress.weighed = []
        for share in SHARES:
            self.head.alpha.data.copy_(learned * share)
            surprises = list(self._surprises(self.held))
            if not surprises:
                raise ConfigError(
                    f"the held-out sessions never have more rows than --budgets {self.args.budgets}: lower them"
                )
            row = {"alpha": round(float(self.head.alpha.detach()), 5), "nats": round(fmean(surprises), 4)}
            self.progress.weighed.append(row)
            print(json.dumps(row), flush=True)
        best = min(range(len(SHARES)), key=lambda number: self.progress.weighed[number]["nats"])
        self.head.alpha.data.copy_(learned * SHARES[best])
        self._publish()
        self.head.alpha.data.copy_(learned)

    def _surprises(self, sessions: Sequence[ToolSession]) -> Iterator[float]:
        """-log p, in nats, of the first tokens that each turn went on with, behind what was kept of its past."""
        for moment in self._replay_all(sessions):
            if moment.following is not None:
                said = moment.following.ids[: -moment.following.query or None][:FORESEEN]
                if said:
                    yield -float(self.engine.score(moment.cache, [said]).scores[0])

    def _learn(self, session: ToolSession) -> None:
        waiting, chance = 0, random.Random(f"{self.args.seed} {self.progress.epoch} {session.name}")
        budget = chance.choice(self.args.budgets)
        for moment in self._replay(session, budget):
            example = moment.example
            if not example.evidence:
                self.progress.dropped += 1
                continue
            loss = loss_of(self.head, example)
            if not bool(loss.isfinite()):
                raise ModelError(
                    f"the loss is {loss.item()} in session {session.name} behind {self.progress.steps} steps: train in "
                    f"another --out with a smaller --lr than {self.args.lr:g}, with which a head in {self.out} was made"
                )
            (loss / self.args.accumulate).backward()
            self._window.append((loss.item(), *_recall(self.head, example)))
            self.progress.rows += 1
            waiting += 1
            if waiting % self.args.accumulate == 0:
                self._step()
        if waiting % self.args.accumulate:
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
        """Go on with a run of the same settings.

        :raises ConfigError: it was begun with others
        :raises ModelError: the checkpoint is damaged
        """
        clean(self.out)  # of what a killed run was about to write
        metadata, flat = read_state(self.out / STATE)
        with loading(self.out / STATE, REMEDY):
            old, progress = json.loads(metadata["settings"]), Progress(**json.loads(metadata["progress"]))
        changed = [f"{key}={self.settings[key]} (was {old.get(key)})" for key in old if old[key] != self.settings[key]]
        if changed:
            raise ConfigError(f"{self.out} was begun with other settings: {', '.join(changed)}; choose another --out")
        self.progress = progress
        state = self.optimizer.state_dict()
        for name, value in flat.items():
            kind, _, rest = name.partition(".")
            if kind == "optimizer":
                index, _, key = rest.partition(".")
                state["state"].setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict(state)
        own = {name.removeprefix("head."): value for name, value in flat.items() if name.startswith("head.")}
        self.head.load_state_dict(own)


def _digest(sessions: Sequence[ToolSession]) -> str:
    """SHA-256 of sessions in their order, as the tokenizer has them."""
    return sha256("\n".join(json.dumps(session_line(one)) for one in sessions).encode()).hexdigest()


def read_state(file: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """(progress and settings, tensors) of a trainer's checkpoint. Those of 0.2.0 have no checksum.

    :raises ModelError: it is damaged
    """
    with loading(file, REMEDY), open_tensors(file) as content:
        metadata = content.metadata() or {}
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        due = checksum(tensors, metadata["progress"], metadata["settings"])
    if set(metadata) != {"progress", "settings"} and metadata.get("sha256") != due:
        raise ModelError(f"{file} is damaged: it is not what its SHA-256 is of; {REMEDY}")
    return metadata, tensors


def _recall(head: ResidualHead, example: Example) -> tuple[float, float]:
    """Share of the wanted rows among the best quarter, by the head and by the rule alone."""
    best, wanted = max(1, example.wanted.numel() // 4), example.wanted
    with torch.no_grad():
        scores = head(example.features, example.span, example.rule)
    ours, rules = (wanted[one.topk(best).indices].sum() / wanted.sum() for one in (scores, example.rule))
    return float(ours), float(rules)
