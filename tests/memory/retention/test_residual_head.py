"""Retention heads: checked against the model when a session is built, and the heads of the bundled models."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from safetensors.torch import load_file

from keep_agent.config.planner_factory import make_method, make_model
from keep_agent.errors import ModelError
from memory.engine.base import Engine
from memory.engine.models.load import load_model
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from memory.method import MemoryMethod
from memory.retention.query_memory import QueryMemory
from memory.retention.residual_head import SHIPPED, ResidualHead, load_head, save_head
from memory.segments.sentence_encoder import CachedEncoder, HashedNgrams
from memory.session import MemorySession
from tests.memory.sessions import open_session, query_memory
from tests.references.intentkv import IntentKV
from tests.references.transcript import Transcript

PLANNER = "planners/planner_tiny"
BUDGET = 48


def with_head(head: str | None, **knobs: object) -> MemoryMethod:
    return replace(query_memory(), retention=QueryMemory(budget=40, head=head, **knobs))


def head_for(engine: Engine, folder: Path, head_dim: int | None = None, **about: str) -> str:
    path = folder / "head.safetensors"
    save_head(ResidualHead(head_dim or engine.info.head_dim), path, about)
    return str(path)


def test_an_unsuitable_head_is_refused_before_the_first_turn(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no retention head in 'nowhere'.*; train one with .*planner=intentkv_rule"):
        open_session(engine, with_head("nowhere"))
    with pytest.raises(ModelError, match=r"for head_dim 32, the model's is 8; train one with .*planner=intentkv_rule"):
        open_session(engine, with_head("planner-tiny"))
    wrong = head_for(engine, tmp_path, head_dim=9)
    with pytest.raises(ModelError, match="for head_dim 9, the model's is 8"):
        open_session(engine, with_head(wrong))
    open_session(engine, with_head(None))
    open_session(engine, with_head("nowhere", residual=False))  # the head is not read


@pytest.mark.parametrize(("damage", "sentence"), [
    (lambda raw: raw[: len(raw) // 2], "no retention head in"),
    (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "is damaged"),
    (lambda raw: raw.replace(rb"{\"model", rb"[\"model", 1), r"head\.safetensors.* \(JSONDecodeError.*; train or copy"),
])  # fmt: skip
def test_a_damaged_head_is_refused(damage: Any, sentence: str, engine: Engine, tmp_path: Path) -> None:
    file = Path(head_for(engine, tmp_path, model="a/b"))
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ModelError, match=sentence):
        load_head(str(file))


@pytest.mark.parametrize("about", ["own", "other", ""])
def test_another_models_head_gives_a_warning(
    about: str, engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights_key = engine.info.weights_key
    record = {"own": {"weights_key": weights_key}, "other": {"weights_key": "abc", "model": "a/b"}, "": {}}[about]
    method = with_head(head_for(engine, tmp_path, **record))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            open_session(engine, method)
    assert len(caplog.records) == (about == "other")
    if about == "other":
        assert f"was trained for model abc (a/b), this is {weights_key:.12s}" in caplog.text


@pytest.fixture(scope="module")
def planner_tiny() -> Iterator[Engine]:
    with TransformersEngine(load_model(PLANNER, "float64")) as engine:
        yield engine


@pytest.mark.parametrize("name", ["planner-tiny", "planner-tiny-long"])
def test_every_bundled_model_has_its_own_head(name: str) -> None:
    with initialize_config_module("configs", version_base="1.3"):
        config = compose("alfred", ["planner=intentkv", f"model={name}"])
    head, model = load_head(config.memory.retention.head), make_model(config.model)
    assert head.about["weights_key"] == model.spec.weights_key
    weighed = head.about["weighed"]
    assert head.alpha.item() == pytest.approx(min(weighed, key=lambda row: row["nats"])["alpha"], abs=1e-5)


def shipped(*overrides: str) -> MemoryMethod:
    with initialize_config_module("configs", version_base="1.3"):
        settings = ["memory=intentkv", f"memory.retention.budget={BUDGET}", *overrides]
        return make_method(compose("alfred", settings).memory)


def rows_kept(engine: Engine, method: MemoryMethod, references: bool) -> list[list[int]]:
    """Return the live rows after each turn of a short task, compared with the reference if ``references``."""
    tokenizer = load_tokenizer(PLANNER)

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    context, order = ids("context grounded\n"), ids("task put the mug on the table\n")
    session = MemorySession(engine, method, CachedEncoder(HashedNgrams()), ids, context_ids=context)
    weights = {name: weight.double() for name, weight in load_file(SHIPPED / "planner-tiny.safetensors").items()}
    transcript = Transcript(engine.model.module)
    reference = IntentKV(transcript, BUDGET, method.retention.decay, weights)
    live_rows, instruction = [], range(0)
    for turn, place in enumerate(["cabinet_1", "table_1", "fridge_1", "cabinet_2", "drawer_3"]):
        session.store.put(place, "receptacle", f"there {place} closed, mug mug_{turn} apple apple_{turn} in it\n")
        query = [*(order if turn == 0 else ()), *ids(f"at {place}\nnext")]
        prefill = session.prefill("put the mug on the table", query, instruction_ids=order if turn == 0 else ())
        ids_of, first = prefill.layout.token_ids.tolist(), prefill.layout.query
        if turn == 0:
            instruction = range(first, first + len(order))
        if references:
            transcript.append(ids_of[len(transcript.ids) :])
            span = sorted({*instruction, *range(first, len(ids_of))})
            reference.keep({*range(len(context)), *span}, span)
            assert session._builder.cache.positions.tolist() == transcript.live
        live_rows.append(session._builder.cache.positions.tolist())
        session.append_turn(ids(f" go to {place}\n"))
        session.advance()
    return live_rows


def test_planner_tiny_evicts_by_its_bundled_head(planner_tiny: Engine) -> None:
    live_rows = rows_kept(planner_tiny, shipped(), references=True)
    assert [len(live) for live in live_rows[1:]] == [BUDGET] * (len(live_rows) - 1)
    assert live_rows != rows_kept(planner_tiny, shipped("memory.retention.residual=false"), references=False)


def test_a_head_that_is_not_finite_is_refused(engine: Engine, tmp_path: Path) -> None:
    head = ResidualHead(engine.info.head_dim)
    head.alpha.data.fill_(float("nan"))
    save_head(head, tmp_path / "nan.safetensors", {})
    with pytest.raises(ModelError, match="holds numbers that are not finite; train it "):
        load_head(str(tmp_path / "nan.safetensors"))
