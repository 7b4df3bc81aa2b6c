"""Fixtures of the planners' tests: an artificial house as rollouts, its tokenizer, and refused command lines."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from planners.prompts.styles import FactRecord
from planners.tiny.tokenizer import train_tokenizer
from planners.training.rollout_files import Rollout, StepRecord, TaskRecord, write_rollouts
from planners.training.run_start import rollout_texts

agent_at = partial(FactRecord, "agent", "agent", "agent")
AGENT = agent_at("start")


def rollout(seed: int = 0, receptacles: int = 6, objects: int = 6) -> Rollout:
    """Make one grounded put task in an artificial room, with the object in a closed cabinet."""
    rng = random.Random(seed)
    cabinets = [FactRecord(f"cabinet_{i}", "receptacle", "cabinet", states=("closed",)) for i in range(1, receptacles)]
    table = FactRecord("diningtable_1", "receptacle", "diningtable")
    things = [FactRecord(f"mug_{i}", "object", "mug", rng.choice(cabinets).id) for i in range(1, objects + 1)]
    mug = rng.choice(things)
    place, name = mug.place.replace("_", " "), mug.id.replace("_", " ")
    mug_at = partial(FactRecord, mug.id, "object", "mug")
    steps = (
        _step(f"go to {place}", agent_at(mug.place)),
        _step(f"open {place}", FactRecord(mug.place, "receptacle", "cabinet", states=("open",))),
        StepRecord("open diningtable 1", f"pick up {name}", False, "diningtable 1 cannot be opened", ()),
        _step(f"pick up {name}", mug_at("agent"), agent_at(mug.place, mug.id)),
        _step("go to diningtable 1", agent_at("diningtable_1", mug.id)),
        _step(f"put {name} in diningtable 1", mug_at("diningtable_1"), agent_at("diningtable_1")),
        _step("done"),
    )
    facts = (*cabinets, table, *things, AGENT)
    task = TaskRecord((f"Put {name} on the table.",), facts, steps, True, "find mug put diningtable")
    return Rollout(f"test:{seed}", "grounded", "full", (task,))


def _step(skill: str, *facts: FactRecord) -> StepRecord:
    return StepRecord(skill, skill, True, "", facts)


@pytest.fixture
def make_rollout() -> Callable[..., Rollout]:
    return rollout


@pytest.fixture
def data(tmp_path: Path, make_rollout: Callable[..., Rollout]) -> Path:
    """Make a folder of rollouts for a trainer."""
    folder = tmp_path / "rollouts"
    folder.mkdir()
    write_rollouts(folder / "a.jsonl.gz", (make_rollout(seed) for seed in range(600)))
    return folder


@pytest.fixture
def tokenizer() -> Tokenizer:
    texts = [text for seed in range(5) for text in rollout_texts(rollout(seed))]
    names = {word for text in texts for word in text.split() if "_" in word}
    return train_tokenizer([*texts, *["where state door now there hand did\n"] * 3], names, 600)


@pytest.fixture
def check_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Callable[[], None], str, Sequence[str], str], None]:
    """Return a check that a command refuses its options with one line, without importing ``module``.

    FILE and EMPTY in options and message stand for a file and an empty folder.
    """
    (file := tmp_path / "text.txt").write_text("text\n")
    (tmp_path / "none").touch()
    (empty := tmp_path / "empty").mkdir()

    def check(main: Callable[[], None], module: str, options: Sequence[str], message: str) -> None:
        words = [word.replace("FILE", str(file)).replace("EMPTY", str(empty)) for word in options]
        monkeypatch.setattr(sys, "argv", ["train", "--out", str(tmp_path / "run"), *words])
        monkeypatch.setitem(sys.modules, module, None)  # its import would fail
        with pytest.raises(SystemExit, match="2"):
            main()
        err = capsys.readouterr().err
        pattern = message.replace("FILE", re.escape(str(file))).replace("EMPTY", re.escape(str(empty)))
        assert err.count("\n") == 1 and re.match(f"error: {pattern}", err)
        assert not (tmp_path / "run").exists()

    return check
