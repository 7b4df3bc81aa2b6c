"""Engine: Protocols of engines that drive a language model for the memory, and of their caches.

Callers check `Engine.capabilities`, and use only the attributes and methods that are declared here. Every engine
passes ``tests/memory/engine/test_contract.py``. A memory unit is a run of tokens whose keys and values are computed
together (encoded) and stored as one block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from keep_agent.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from memory.engine.attention.observer import AttentionObserver
    from memory.engine.trace import PrefillTrace
    from memory.files.block_file import BlockFile
    from memory.kv_cache.block import KVBlock
    from memory.kv_cache.quantization import PackFormat
    from memory.prompt.layout import Layout
    from memory.stages import Loading, PerLayerRows, Recompute

T = TypeVar("T")
EncodeRequest = tuple["KVBlock | None", Sequence[int]]  # context of a memory unit, and the unit's token ids


class Priority(IntEnum):
    """Order of work on the engine's worker: lower values run first."""

    EXIT = -1  # stop the worker before queued work, because the process ends
    PLAN = 0
    BACKGROUND = 1
    CLOSE = 2  # stop the worker after queued work


@dataclass(frozen=True)
class ChunkSchedule:
    """Chunk sizes of a prefill: the longer the cache, the smaller the next chunk, which bounds the memory of a pass.

    See "Agent Memory Below the Prompt", section 4. Each of ``steps`` is (limit, size). A chunk has the ``size`` of the
    first step whose ``limit`` exceeds the cache's number of rows, or ``rest`` rows if no limit does. A prefill of fewer
    than ``one_pass`` rows is one chunk.
    """

    one_pass: int = 2048
    steps: tuple[tuple[int, int], ...] = ((2048, 4096), (8192, 2048), (20480, 1024))
    rest: int = 512

    def __post_init__(self) -> None:
        if min(self.one_pass, self.rest, *(size for _, size in self.steps)) < 1:
            raise ConfigError(f"{self} has a chunk without rows: use sizes of 1 or more")

    def size(self, cached: int, remaining: int) -> int:
        """Return the size of the next chunk, with ``cached`` rows in the cache and ``remaining`` ones to compute."""
        return min(remaining, next((size for below, size in self.steps if cached < below), self.rest))


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """Abilities of an engine beyond plain prefill, scoring and decoding."""

    selective_recompute: bool = True  # computes the rows that a recompute stage chooses, layer by layer
    per_layer_rows: bool = True  # fills prompt rows with blocks that each layer chooses (MemArt with ``layers=each``)
    session_caches: bool = True  # has caches that drop rows, fork, and share a prefix
    quantized_caches: bool = True  # has caches that store rows in 4 or 8 bits

    def require(self, needed: EngineCapabilities, owner: str) -> None:
        """Raise ConfigError naming the caller, ``owner``, if a ``needed`` ability is missing."""
        missing = [f.name for f in fields(self) if getattr(needed, f.name) and not getattr(self, f.name)]
        if missing:
            raise ConfigError(f"{owner} needs an engine with {', '.join(missing)}: use engine=transformers")


class ModelInfo(Protocol):
    """Facts of the model that an engine drives."""

    family: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    mlp_width: int  # intermediate size; with experts: an expert's size times the number of active experts
    experts: int  # number of routed experts; 0: dense model
    vocab: int
    max_positions: int
    dtype: torch.dtype
    windows: tuple[int | None, ...]  # per layer: tokens of its sliding window; None: full attention
    parameter_bytes: int  # as loaded
    bytes_per_token: int  # of keys and values, over all layers
    model_key: str  # hash of weights, dtype and configuration: the first part of every block's identity
    weights_key: str  # hash of weights and configuration, without the dtype


@dataclass(slots=True)
class ReadCounts:
    """Rows of keys and values that forward passes read from a cache; a row counts once per pass, not per layer."""

    raw: int = 0  # rows that would be read if no row had been evicted
    live: int = 0  # rows that are read

    def add(self, raw: int, live: int) -> None:
        self.raw += raw
        self.live += live


class KVCache(Protocol):
    """Keys and values of a prompt. Rows are numbered from 0 in order of their ``positions``."""

    length: int  # rows
    positions: torch.Tensor  # (rows,) long
    logits: torch.Tensor | None  # (1, vocab) of the last row
    reads: ReadCounts

    @property
    def next_position(self) -> int:
        """Position of the next token: one after the last row's. If rows were evicted, it is larger than ``length``."""

    def rewind(self, length: int, logits: torch.Tensor | None) -> None:
        """Delete the rows from ``length`` on; ``logits`` are those of the last row that stays."""


class SessionCache(KVCache, Protocol):
    """Cache that lasts from turn to turn: it knows its tokens, can drop rows, and can be forked."""

    tokens: list[int]  # by position, evicted ones included
    exact: int  # number of leading positions whose rows are not evicted, and equal those of a plain forward
    observer: AttentionObserver | None  # records attention and the last queries for a retention stage

    def cut(self, position: int) -> None:
        """Delete everything from ``position`` on."""

    def drop(self, keep: torch.Tensor) -> None:
        """Evict the live rows that are False in ``keep`` (rows,) bool."""

    def fork(self) -> SessionCache:
        """Return a cache with the same rows; changes to one do not affect the other."""

    def keys(self, layer: int) -> torch.Tensor:
        """Return the rotated keys of the live rows, (kv_heads, rows, head_dim)."""


class PersistentCache(SessionCache, Protocol):
    """Quantized cache of one session, which may be stored in a file."""

    format: PackFormat
    nbytes: int  # bytes of its rows
    requests: int  # number of unfinished scheduler requests that use it

    def freeze(self) -> None:
        """Make this cache's blocks read-only: a fork shares full ones, and copies an incomplete one to extend it."""

    def unshared_bytes(self, caches: Iterable[PersistentCache]) -> int:
        """Count the bytes of this cache's rows, without blocks that it shares with one of ``caches``."""


class CacheProvider(Protocol):
    """Provider of session caches of one model. Sessions may share exact rows (see `SessionCache.exact`) or none."""

    @property
    def block_size(self) -> int:
        """Number of tokens of a shared block."""
        return 1

    def cache(self, counts_mass: bool = False) -> SessionCache:
        """Make an empty cache; ``counts_mass``: its observer adds up the attention that every row receives."""

    def take(self, cache: SessionCache, ids: Sequence[int], namespace: str, more_than: int) -> int:
        """Add shared rows of a prefix of ``ids`` to ``cache`` if over ``more_than`` rows; return the number added."""
        return 0

    def publish(self, cache: SessionCache, namespace: str) -> list[str]:
        """Share the exact rows of ``cache``; returns the names of their blocks, in order."""
        return []

    def withdraw(self, cache: SessionCache, names: Sequence[str]) -> None:
        """Stop sharing the blocks ``names`` of ``cache``, except those that another session uses."""

    def shares(self, name: str) -> bool:
        """Tell whether a block of this name is shared."""
        return False


@dataclass(frozen=True)
class PrefillResult:
    """Result of a prefill; ``logits`` (1, vocab) of the prompt's last row are in float32 or wider."""

    logits: torch.Tensor
    cache: KVCache
    trace: PrefillTrace
    encoded: tuple[KVBlock, ...] = ()  # blocks of the units that the prefill encoded


@dataclass(frozen=True)
class ScoreResult:
    """Log-likelihoods of candidates (-inf: not among the best), and the number of rows computed for them."""

    scores: torch.Tensor
    computed_tokens: int


class Engine(Protocol):
    """Engine of one model, with one worker thread; every method may be called from any thread."""

    info: ModelInfo
    capabilities: EngineCapabilities
    device: torch.device
    model_key: str  # `ModelInfo.model_key`

    def encode(
        self, units: Sequence[EncodeRequest], identities: Sequence[str] = (), priority: Priority = Priority.PLAN
    ) -> list[KVBlock]:
        """Encode each memory unit into a block in host memory. A unit attends to itself and its context.

        :param identities: names of the blocks, one per unit; empty names if omitted
        """

    def prefill(
        self, layout: Layout, recompute: Recompute, loading: Loading, context_block: KVBlock | None = None,
        keep_raw: bool = False, layer_rows: PerLayerRows | None = None, unit_context: KVBlock | None = None,
    ) -> PrefillResult:  # fmt: skip
        """Compute the rows of ``layout`` that ``recompute`` chooses, and load the other rows as ``loading`` schedules.

        :param context_block: keys and values of the context rows
        :param keep_raw: keep unrotated keys, so that `harvest` can copy rows
        :param layer_rows: prompt rows that each layer fills with blocks of its own choice
        :param unit_context: context of fused units, which are units without a block that the prefill encodes
        """

    def extend(
        self, cache: KVCache, token_ids: Sequence[int] | torch.Tensor, chunking: ChunkSchedule | None = None
    ) -> PrefillResult:
        """Prefill ``token_ids`` after the rows of ``cache``, and add their rows to it."""

    def append(self, cache: KVCache, token_ids: Sequence[int]) -> torch.Tensor:
        """Add ``token_ids`` to ``cache``; returns the logits (1, vocab) after them."""

    def score(
        self, cache: KVCache, candidates: Sequence[Sequence[int]], reduce: str = "sum", best: int | None = None
    ) -> ScoreResult:
        """Return the log-likelihood of every candidate after the prompt in ``cache``, which stays unchanged.

        :param reduce: sum or mean over a candidate's tokens
        :param best: number of best candidates whose scores are needed; the other candidates may get -inf
        """

    def generate(
        self, cache: KVCache, first_logits: torch.Tensor, max_new_tokens: int, stop_ids: Collection[int] = ()
    ) -> list[int]:
        """Decode greedily until one of ``stop_ids``, which is not returned, or ``max_new_tokens`` tokens."""

    def harvest(self, cache: KVCache, rows: Sequence[int] | torch.Tensor, identity: str = "") -> KVBlock:
        """Copy rows of a cache that was prefilled with ``keep_raw=True`` into a block."""

    def query_states(
        self, context: KVBlock | None, token_ids: Sequence[int], layers: Sequence[int]
    ) -> list[torch.Tensor]:
        """Compute the unrotated queries (heads, rows, head_dim) of ``token_ids`` after ``context``, per layer."""

    def cache_provider(
        self, format: PackFormat | None = None, block_size: int = 1, prefix_tokens: int = 0
    ) -> CacheProvider:
        """Make a provider of session caches: quantized ones if ``format`` is set, else ones that share exact prefixes.

        :param block_size: tokens of a shared block
        :param prefix_tokens: maximum number of shared tokens to keep while no session uses them
        """

    def new_cache(self, format: PackFormat) -> PersistentCache:
        """Make an empty quantized cache."""

    def restore_cache(self, file: BlockFile) -> PersistentCache:
        """Make the quantized cache of a file that was written for this model.

        :raises CorruptError: the file's parts do not fit together, or a checksum is wrong
        :raises DataError: the file lacks a part that this version needs
        """

    def compact(self, cache: SessionCache) -> None:
        """Renumber the live rows of ``cache`` from position 0 on, and rotate their keys to the new positions."""

    def run(self, work: Callable[[], T]) -> T:
        """Run ``work``, which may call the engine, on the worker; returns its result."""

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue ``work`` with `Priority.PLAN`, behind queued work of that priority, and return at once."""

    def in_background(self, work: Callable[[], T]) -> Future[T]:
        """Queue ``work`` that runs only when no `Priority.PLAN` work is queued."""

    def close(self) -> None:
        """Stop the worker after the queued work."""
