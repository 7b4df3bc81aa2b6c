from __future__ import annotations

import json
import random
from argparse import Namespace
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from keep_agent.errors import ConfigError, ModelError
from memory.retention.residual_head import ResidualHead, load_head
from planners.train_retention import RANGES, check_options, main, parser
from planners.training.retention.replay import ArgumentMatcher, TurnExample, replay
from planners.training.retention.tool_sessions import ToolSession, ToolTurn, session_line
from planners.training.retention.trainer import ALPHA_SHARES, HEAD, PROGRESS, STATE, Trainer, loss_of, read_state

Arguments = Callable[..., Namespace]
Check = Callable[..., None]


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """Write transcripts of random ids; each action names one of the first turn."""
    rng, lines = random.Random(0), []
    for number in range(3):
        turns, first = [], [rng.randrange(5, 60) for _ in range(30)]
        for turn in range(4):
            new = first if not turn else [rng.randrange(5, 60) for _ in range(8)]
            turns.append(ToolTurn(tuple(new), 4, (f"w{rng.choice(first)}",), 2 if not turn else 0, not turn))
        lines.append(json.dumps(session_line(ToolSession(f"s{number}", tuple(turns)))))
    file = tmp_path / "sessions.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture
def arguments(tiny_model: Path, sessions: Path, tmp_path: Path) -> Arguments:

    def parse(out: str = "run", *more: str) -> Namespace:
        options = ["--sessions", str(sessions), "--out", str(tmp_path / out), "--model", str(tiny_model)]
        options += ["--budgets", "12", "20", "--save", "1", "--shortest", "1", "--held-out", "0", "--dtype", "float32"]
        return parser().parse_args([*options, *more])

    return parse


def train(args: Namespace) -> Trainer:
    with closing(Trainer(args)) as trainer:
        trainer.matcher = ArgumentMatcher({token: f"w{token}" for token in range(100)}, 2)  # artificial words
        trainer.run()
        return trainer


def test_positive_tokens_are_literal_parts_of_an_argument() -> None:
    matcher = ArgumentMatcher({1: "mug", 2: " mug_1", 3: "a", 4: "cup"}, 2)
    assert matcher.labels([1, 2, 3, 4, 9], ["take mug_1", "a"]).tolist() == [True, True, False, False, False]
    assert ArgumentMatcher({3: "a"}, 1).labels([3], ["take"]).tolist() == [True]


def test_a_head_is_trained_and_can_be_loaded(arguments: Arguments, tmp_path: Path) -> None:
    trainer = train(arguments())
    progress = json.loads((tmp_path / "run" / PROGRESS).read_text())
    assert progress["epoch"] == 2 and progress["rows"] > 8 and progress["steps"] > 0
    assert float(load_head(str(tmp_path / "run" / HEAD)).out.weight.detach().abs().max()) > 0
    assert trainer.progress.curve[-1]["loss"] > 0
    assert bool((trainer.head.center != 0).any()) and bool((trainer.head.spread != 1).any())
    with pytest.raises(ConfigError, match="--budgets"):
        train(arguments("never", "--budgets", "1000"))


def test_sessions_are_replayed_under_the_budget(arguments: Arguments, sessions: Path) -> None:
    with closing(Trainer(arguments())) as trainer:
        (session, *_) = trainer.sessions
        protected = replace(session, turns=(replace(session.turns[0], protected=3), *session.turns[1:]))
        examples = [
            [point.example for point in replay(trainer.engine, item, trainer.matcher, trainer.head, 12, 0.5)]
            for item in (session, protected)
        ]
    (first, *later), (first_protected, *_) = examples
    assert first.labels.numel() == 30 - 4 and first_protected.labels.numel() == 30 - 4 - 3
    assert [example.labels.numel() for example in later] == [12 + 8 - 4 - 2] * 3  # kept rows, new rows, less the span


def test_a_resumed_run_equals_a_full_one(arguments: Arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt one run between epochs and another within one; the settings must stay the same."""
    train(arguments("whole"))
    train(arguments("epochs", "--epochs", "1"))
    learn, names = Trainer._learn, []

    def interrupt(self: Trainer, session: ToolSession) -> None:
        if len(names) == 2:
            raise KeyboardInterrupt
        names.append(session.name)
        learn(self, session)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "_learn", interrupt)
        train(arguments("parts"))
    (tmp_path / "parts" / HEAD).unlink()  # as if killed before it was written
    whole = load_head(str(tmp_path / "whole" / HEAD)).state_dict()
    for name in ("epochs", "parts"):
        train(arguments(name))
        resumed = load_head(str(tmp_path / name / HEAD)).state_dict()
        assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    with pytest.raises(ConfigError, match=r"decay=0.25 \(was 0.5\)"):
        Trainer(arguments("parts", "--decay", "0.25"))


@pytest.mark.parametrize("damage", ["tensor", "number", "name", "cut", "empty"])
def test_a_damaged_checkpoint_is_refused(arguments: Arguments, tmp_path: Path, damage: str) -> None:
    train(arguments("run", "--epochs", "1"))
    file = tmp_path / "run" / STATE
    raw = file.read_bytes()
    file.write_bytes(
        {
            "tensor": raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:],
            "number": raw.replace(b'\\"steps\\": ', b'\\"steps\\":1', 1), "name": raw.replace(b"sha256", b"sha257", 1),
            "cut": raw[: len(raw) // 2], "empty": b"",
        }[damage]
    )  # fmt: skip
    assert file.read_bytes() != raw
    with pytest.raises(ModelError, match=rf"{STATE}.*; restore it, or train again"):
        Trainer(arguments())


def test_a_checkpoint_without_checksum_is_resumed_unless_it_is_damaged(arguments: Arguments, tmp_path: Path) -> None:
    train(arguments("run", "--epochs", "1"))
    file = tmp_path / "run" / STATE
    metadata, tensors = read_state(file)
    del metadata["sha256"]
    for part in ("settings", "progress"):
        save_file(tensors, file, metadata | {part: "{"})
        with pytest.raises(ModelError, match=rf"{STATE} \(JSONDecodeError.*; restore it, or train again"):
            Trainer(arguments())
    save_file(tensors, file, metadata)
    assert train(arguments()).progress.epoch == 2


def test_alpha_is_chosen_by_the_held_out_sessions(arguments: Arguments, sessions: Path, tmp_path: Path) -> None:
    trainer = train(arguments("run", "--held-out", "1"))
    assert len(trainer.sessions) == 2 and [session.name for session in trainer.held_out] == ["s2"]
    candidates = json.loads((tmp_path / "run" / PROGRESS).read_text())["weighed"]
    trained, best = trainer.head.alpha.item(), min(candidates, key=lambda row: row["nats"])
    assert [row["alpha"] for row in candidates] == pytest.approx([trained * share for share in ALPHA_SHARES], abs=1e-5)
    head = load_head(str(tmp_path / "run" / HEAD))
    assert head.alpha.item() == pytest.approx(best["alpha"], abs=1e-5)
    assert head.about["held_out"] == 1 and head.about["weighed"] == candidates
    with pytest.raises(ConfigError, match="--held-out 3 of 3 sessions leaves no session"):
        Trainer(arguments("all", "--held-out", "3"))


def test_surprisal_is_of_the_tokens_between_two_queries(arguments: Arguments, sessions: Path) -> None:
    with closing(Trainer(arguments())) as trainer:
        first, second, third, fourth = trainer.sessions[0].turns
        restart, silent = replace(third, begins=True), replace(second, query=8)
        (surprisal,) = trainer._surprisals([ToolSession("s", (first, second))])
        point = next(trainer._replay(ToolSession("s", (first, second)), 12))
        expected = -float(trainer.engine.score(point.cache, [list(second.ids[:4])]).scores[0])
        assert list(trainer._surprisals([ToolSession("silent", (first, silent))])) == []
        assert list(trainer._surprisals([ToolSession("restart", (first, restart, fourth))])) == []
    assert surprisal == pytest.approx(expected, rel=1e-6) and surprisal > 0
    assert point.next_turn == second and point.cache.positions.numel() == 12


def test_files_without_sessions_are_refused(arguments: Arguments, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="no session in"):
        Trainer(arguments("run", "--sessions", str(tmp_path / "none.jsonl")))


def test_a_missing_tokenizer_is_named(arguments: Arguments) -> None:
    with pytest.raises(ModelError, match=r"the tokenizer of '/no/where'.*--tokenizer"):
        Trainer(arguments("run", "--tokenizer", "/no/where"))


def test_the_loss_has_the_papers_terms() -> None:
    """Compute them by hand for four rows, one of them positive, with an untrained head."""
    rule, labels = torch.tensor([0.3, -0.2, 0.1, 0.0]), torch.tensor([True, False, False, False])
    example = TurnExample(torch.zeros(4, 13), torch.zeros(2, 4), rule, labels, torch.tensor(1.5))
    weight, probability = (1 - 0.25) / 0.25, rule.sigmoid()
    entropy = -(weight * probability[0].log() + (1 - probability[1:]).log().sum()) / 4
    rank = torch.log1p((rule[1:] - rule[0]).exp()).mean()
    expected = entropy + 0.05 * rank + 0.01 * probability.mean() + 0.001 * 0.25
    assert loss_of(ResidualHead(4), example).item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_run_is_not_resumed_with_other_sessions(arguments: Arguments, sessions: Path) -> None:
    """Another order is refused as well: held-out sessions, which choose alpha, would be trained on."""
    train(arguments("run", "--epochs", "1"))
    lines = sessions.read_text().splitlines()
    sessions.write_text("\n".join(reversed(lines)) + "\n")
    with pytest.raises(ConfigError, match=r"a run with other settings: content="):
        Trainer(arguments())


def test_a_loss_of_nan_ends_the_training(arguments: Arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = "planners.training.retention.trainer.loss_of"
    monkeypatch.setattr(loss, lambda head, example: head.out.weight.sum() * float("nan"))
    with pytest.raises(ModelError, match=r"the loss is nan in session s\d after 0 steps.*smaller --lr than 0.001"):
        train(arguments())
    assert not (tmp_path / "run" / HEAD).exists()
    for rate in ("0", "nan", "1e38"):
        with pytest.raises(ConfigError, match=f"--lr ({rate}|1e\\+38) is not a learning rate"):
            Trainer(arguments("other", "--lr", rate))


def test_the_default_model_is_in_the_package() -> None:
    assert (Path(parser().parse_args(["--sessions", "s", "--out", "o"]).model).resolve() / "config.json").is_file()
    assert Path(parser().get_default("model")).is_absolute()


def test_every_number_has_a_range() -> None:
    assert {action.dest for action in parser()._actions if action.type in (int, float)} == {*RANGES, "lr"}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--device cud", "--device=cud is not a device; give auto, cpu, cuda, .*; did you mean 'cuda'?"),
        ("--dtype flot32", "--dtype='flot32' is unknown; use one of .*; did you mean 'float32'?"),
        ("--threads -1", "--threads -1 does not work; give a number from 0 to 4096"),
        ("--save 0", "--save 0 does not work"),
        ("--budgets 12 0", "--budgets 0 does not work"),
        ("--held-out -1", "--held-out -1 does not work"),
        ("--decay nan", "--decay nan does not work; give a number from 0 to 1"),
        ("--lr nan", "--lr nan is not a learning rate"),
        ("--out FILE", "--out FILE cannot be a folder, since FILE is not one; name another place"),
        ("--model FILE", "--model FILE is neither a folder nor a name on the hub"),
        ("--model nowhere", "--model nowhere is neither a folder nor a name on the hub"),
        ("--model EMPTY", "--model EMPTY is an empty folder"),
        ("--tokenizer nowhere", "--tokenizer nowhere is neither a folder"),
        ("--sessions nowhere", "nowhere does not exist"),
        ("--sessions FILE", "FILE:1 is not JSON"),
        ("--sessions EMPTY", "EMPTY cannot be read"),
        ("--sessions EMPTY/../none", ".*none is empty"),
    ],
)
def test_a_mistyped_option_loads_no_torch(option: str, message: str, sessions: Path, check_refusal: Check) -> None:
    check_refusal(main, "planners.training.retention.trainer", ["--sessions", str(sessions), *option.split()], message)


def test_chats_pass_the_check_of_options_without_a_tokenizer(tmp_path: Path) -> None:
    call = {"function": {"name": "take", "arguments": '{"what": "mug"}'}}
    chat = [{"role": "user", "content": "bring it"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    check_options(parser().parse_args(["--sessions", str(tmp_path / "chats.jsonl"), "--out", str(tmp_path / "run")]))
