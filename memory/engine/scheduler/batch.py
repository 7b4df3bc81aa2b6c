"""Batched greedy decoding: one forward computes one row for each of several agents, each at its own position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from keep_agent.errors import ConfigError
from memory.engine.attention.function import Angles
from memory.engine.attention.kernels import AttentionParams, LayerAttention, MaskPlan, causal_plan
from memory.engine.scheduler.batched_cache import BatchedCache, BatchedPagedCache
from memory.engine.scheduler.batched_quantized import BatchedQuantizedCache
from memory.engine.transformers.decoder import Decoder, check_finite
from memory.kv_cache.dense import WorkingCache
from memory.kv_cache.paged import PagedCache
from memory.kv_cache.quantized import QuantizedCache

Member = QuantizedCache | PagedCache


def batch_key(cache: WorkingCache) -> object:
    """Return the kind of a cache, which all caches of a batch share: a packed cache's format, or a paged cache's pool.

    :raises ConfigError: the cache is neither packed nor paged
    """
    if isinstance(cache, QuantizedCache):
        return cache.format
    if isinstance(cache, PagedCache):
        return id(cache.pool)
    raise ConfigError(f"a {type(cache).__name__} is for one prompt: batches need packed or paged caches")


class Batch:
    """Batch of caches (its members) that decode together; they may join and leave between steps.

    A member has the same rows as a cache that decodes alone, and may be read, forked and cut between steps.
    """

    def __init__(self, decoder: Decoder, members: Iterable[Member] = ()) -> None:
        self._decoder = decoder
        self._members: list[Member] = []
        self._order: list[int] = []  # numbers of the members, the longest first
        self._rows: BatchedCache | None = None  # the members' rows in that order; None until a step
        for member in members:
            self.join(member)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def members(self) -> Sequence[Member]:
        return tuple(self._members)

    def join(self, cache: Member) -> None:
        """Add a cache, as the last member.

        :raises ConfigError: it is already in this batch, or of another kind than its members
        """
        if any(member is cache for member in self._members):
            raise ConfigError("this cache is already in the batch: fork it to continue it twice")
        if batch_key(cache) != batch_key(self._members[0] if self._members else cache):
            raise ConfigError("caches of one batch need one pack format or one pool: make a batch per kind")
        self._end_rows()
        self._members.append(cache)

    def extract(self, number: int) -> Member:
        """Remove and return a member with its new rows; later members move up."""
        self._end_rows()
        return self._members.pop(number)

    def step(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Append one token to each member; returns logits (members, vocab) after them, in float32 or wider.

        The error of a member, or a ModelError for logits that are not finite, is raised after the other members' step.
        """
        logits, errors = self.advance(token_ids)
        for error in errors.values():
            raise error
        check_finite(logits, self._decoder.spec.dtype, *self._members)
        return logits

    @torch.inference_mode()
    def advance(self, token_ids: Sequence[int]) -> tuple[torch.Tensor, dict[int, Exception]]:
        """Append one token to each member; returns unchecked logits (members, vocab), and errors by member.

        :raises CapacityError: there is no room for the rows; no member has changed
        """
        if len(token_ids) != len(self._members) or not token_ids:
            raise ConfigError(f"{len(token_ids)} tokens for {len(self)} members: give one token per member, at least 1")
        for member in self._members:
            member.reserve(1, keep=True)
        ids = torch.tensor([token_ids[i] for i in self._ordered()], device=self._decoder.device)
        places = torch.tensor([self._members[i].next_position for i in self._order], device=ids.device)
        logits = self._forward(ids, places)
        errors = {}
        for row, number in enumerate(self._order):
            part = slice(row, row + 1)
            try:
                self._members[number].extend(places[part], logits[part], ids[part])
            except Exception as error:
                errors[number] = error
        return logits[torch.tensor(self._order, device=ids.device).argsort()], errors

    def _forward(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Compute the logits of ``ids`` (members,) at positions ``places``, in the order of the batched rows."""
        decoder, rows = self._decoder, self._rows
        at = decoder.rope.angles_at(places, max(member.next_position for member in self._members) + 1)
        angles = {key: (cos.transpose(0, 1), sin.transpose(0, 1)) for key, (cos, sin) in at.items()}
        rows.begin()
        with ExitStack() as stack:
            observers = self._observers(places, stack)
            hidden = decoder.run(decoder.embed(ids).transpose(0, 1), _DecodePass(angles, rows, observers))
            logits = decoder.head(hidden[:, -1])
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _observers(self, places: torch.Tensor, stack: ExitStack) -> list[_MemberObserver]:
        """Count the rows that a pass reads, and start the members' observers."""
        observers = []
        for number, member in enumerate(self._members[i] for i in self._order):
            visible = member.end_at(member.length + 1)
            if member.observer is not None:
                positions = torch.cat([member.positions, places[number : number + 1]])
                stack.enter_context(member.observer.observing(positions, 1))
                row = torch.tensor([member.length], device=places.device)
                plan = causal_plan(row, positions, self._decoder.spec.dtype)
                observers.append(_MemberObserver(number, member, visible, plan))
        return observers

    def _ordered(self) -> list[int]:
        """Return the order of the members in the batched rows, which are rebuilt if the members have changed."""
        if self._rows is None or not self._rows.is_current:
            self._order = sorted(range(len(self)), key=lambda i: -self._members[i].length)
            members = [self._members[i] for i in self._order]
            rows = BatchedQuantizedCache if isinstance(members[0], QuantizedCache) else BatchedPagedCache
            self._rows = rows(members, self._decoder.spec.heads)
        return self._order

    @torch.inference_mode()
    def _end_rows(self) -> None:
        if self._rows is not None:
            self._rows.end()
            self._rows = None


@dataclass(frozen=True)
class _MemberObserver:
    """Attention observer of a member, whose row in the pass is ``number``."""

    number: int
    member: Member
    visible: int
    plan: MaskPlan

    def record(self, layer: int, query: torch.Tensor, params: AttentionParams) -> None:
        observer, blocks = self.member.observer, self.plan.blocks(params.window)
        collector = None if self.member.tiled else observer.collector(blocks)
        keys = None if collector is None else self.member.read(layer, self.visible)[0]
        part = query[self.number : self.number + 1]
        observer.record(LayerAttention(layer, part, keys, None, params, blocks), collector)


@dataclass(frozen=True)
class _DecodePass:
    """State of one forward that computes one row for each member: a `BatchPass`."""

    angles: Angles
    rows: BatchedCache
    observers: Sequence[_MemberObserver]
    unrotated: bool = False

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, params: AttentionParams
    ) -> torch.Tensor:
        self.rows.write(layer, key[:, :, 0], value[:, :, 0])
        for observer in self.observers:
            observer.record(layer, query, params)
        return self.rows.attend(layer, query, params)


StepResult = torch.Tensor | Exception  # logits (vocab,) of a member, or the error of its step


class BatchGroups:
    """Batches, one per kind of cache; a failing member is removed without affecting the others.

    A step must get the previous step's caches, in the same order and without removed ones, and then new caches.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._batches: dict[object, Batch] = {}

    def step(self, caches: Sequence[Member], token_ids: Sequence[int]) -> list[StepResult]:
        """Append one token to each of ``caches``; new caches join a batch, failing caches are removed."""
        results: list[StepResult] = [self._reserve(cache) for cache in caches]
        groups: dict[object, list[int]] = {}
        for number, cache in enumerate(caches):
            if results[number] is None:
                groups.setdefault(batch_key(cache), []).append(number)
        for name, numbers in groups.items():
            batch = self._batches.setdefault(name, Batch(self._decoder))
            for number in numbers[len(batch) :]:
                batch.join(caches[number])
            for number, result in zip(numbers, self._advance(batch, [token_ids[i] for i in numbers]), strict=True):
                results[number] = result
        for cache, result in zip(caches, results, strict=True):
            if isinstance(result, Exception):
                self.remove(cache)
        return results

    def remove(self, cache: Member) -> None:
        """Remove ``cache``, if it is a member."""
        for name, batch in list(self._batches.items()):
            numbers = [i for i, member in enumerate(batch.members) if member is cache]
            if numbers:
                batch.extract(numbers[0])
            if not len(batch):
                del self._batches[name]

    def _reserve(self, cache: Member) -> Exception | None:
        """Reserve the next row; returns the error if that fails."""
        try:
            cache.reserve(1, keep=True)
            self._decoder.rope.angles_at(cache.positions[:0], cache.next_position + 1)
        except Exception as error:
            self.remove(cache)  # the batch continues without it
            return error
        return None

    def _advance(self, batch: Batch, token_ids: Sequence[int]) -> list[StepResult]:
        """Step a batch; if this fails, step its members one by one to find the failing one."""
        try:
            logits, errors = batch.advance(token_ids)
        except Exception as error:
            if len(batch) == 1:
                return [error]
            alone = [Batch(self._decoder, [batch.extract(0)]) for _ in token_ids]
            results = [self._advance(part, [token])[0] for part, token in zip(alone, token_ids, strict=True)]
            for part in alone:
                batch.join(part.extract(0))
            return results
        return [errors.get(i, row) for i, row in enumerate(logits)]
