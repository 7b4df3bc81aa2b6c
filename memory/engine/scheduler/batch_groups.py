"""Batches of any caches: those of one kind go together, and what goes wrong with one is its own affair."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memory.engine.scheduler.batch import Batch, Member, kind
from memory.engine.transformers.decoder import Decoder

Result = torch.Tensor | Exception  # logits (vocab,) behind a member, or why it did not take its token


class BatchGroups:
    """One batch per kind of cache. Callers name the same caches in the same order, until one of them leaves."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._batches: dict[object, Batch] = {}

    def step(self, caches: Sequence[Member], token_ids: Sequence[int]) -> list[Result]:
        """Append one token to each of ``caches``; those that are new join, those that failed leave."""
        found: list[Result] = [self._room(cache) for cache in caches]
        teams: dict[object, list[int]] = {}
        for number, cache in enumerate(caches):
            if found[number] is None:
                teams.setdefault(kind(cache), []).append(number)
        for name, numbers in teams.items():
            batch = self._batches.setdefault(name, Batch(self._decoder))
            for number in numbers[len(batch) :]:
                batch.join(caches[number])
            for number, result in zip(numbers, self._advance(batch, [token_ids[i] for i in numbers]), strict=True):
                found[number] = result
        for cache, result in zip(caches, found, strict=True):
            if isinstance(result, Exception):
                self.leave(cache)
        return found

    def leave(self, cache: Member) -> None:
        """Take ``cache`` out, if it is in."""
        for name, batch in list(self._batches.items()):
            numbers = [i for i, member in enumerate(batch.members) if member is cache]
            if numbers:
                batch.extract(numbers[0])
            if not len(batch):
                del self._batches[name]

    def _room(self, cache: Member) -> Exception | None:
        """What keeps the next row from fitting."""
        try:
            cache.reserve(1, lasting=True)
            self._decoder.rope.at(cache.positions[:0], cache.next_position + 1)
        except Exception as error:
            self.leave(cache)  # now: the others' batch goes on without it
            return error
        return None

    def _advance(self, batch: Batch, token_ids: Sequence[int]) -> list[Result]:
        """A forward that fails is made once more, one by one: whose error is it?"""
        try:
            stepped = batch.advance(token_ids)
        except Exception as error:
            if len(batch) == 1:
                return [error]
            members = [batch.extract(0) for _ in token_ids]
            alone = [Batch(self._decoder, [member]) for member in members]
            found = [self._advance(own, [token])[0] for own, token in zip(alone, token_ids, strict=True)]
            for own in alone:
                batch.join(own.extract(0))
            return found
        return [stepped.errors.get(i, logits) for i, logits in enumerate(stepped.logits)]
