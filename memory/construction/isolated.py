"""Isolated units: parts of the memory encoded without seeing each other. Their blocks (KV) are looked up, or encoded.

Missing blocks are encoded in one packed forward pass. If they have few tokens, the prompt's own prefill encodes them
(they are *fused*), which saves a pass over the model's weights. Keys and values are the same either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise, takewhile
from typing import ClassVar

import torch

from memory.construction.base import Context, PreparedPrompt, PromptBuilder, SessionResources
from memory.construction.latent_choice import UnitChoice
from memory.engine.base import PrefillResult, Priority
from memory.kv_cache.block import KVBlock
from memory.kv_cache.block_store import identity
from memory.prompt.layout import Placement, Unit, lay_out
from memory.prompt.report import StepTimer
from memory.segments.store import SegmentStore
from memory.stages import Capabilities

MAX_FUSED_TOKENS = 512  # most tokens of missing blocks that a prefill encodes; bounds its activations
MAX_CACHED_NAMES = 50_000  # most units whose block's identity is cached


class Invalidation:
    """Comparison of a prompt's units with the last prompt's. A unit's name identifies its block; "": no block."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self.reset()

    def reset(self) -> None:
        self._previous: dict[str, Unit] = {}
        self._cursor = 0
        self._present = self._previous, self._cursor

    def count(self, names: Sequence[str], units: Sequence[Unit]) -> int:
        """Count the tokens of the last prompt's blocks that became useless.

        Reasons are a changed segment, shifted tokens, a group that became static or dynamic, and the end of a task,
        which ends its log. A block whose segments were not retrieved this time is still valid.
        """
        changed = set(self._store.changed_ids(self._cursor))
        retrieved = {span.segment for unit in units for span in unit.spans}
        present = {name: unit for name, unit in zip(names, units, strict=True) if name}
        tokens = 0
        for name, unit in self._previous.items():
            segments = {span.segment for span in unit.spans}
            if name not in present and (segments & changed or segments <= retrieved):
                tokens += len(unit.token_ids)
        self._present = present, self._store.changes
        return tokens

    def commit(self) -> None:
        """Compare the next prompt with the units counted last. Not called after a prompt with ``persist=False``."""
        self._previous, self._cursor = self._present


class Isolated:
    """Base of constructions whose units attend only to themselves and the context prefix."""

    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, moves_blocks=True, selectable=True)
    layouts: ClassVar[tuple[str, ...]] = ("memory",)

    def builder(self, session: SessionResources) -> IsolatedBuilder:
        return IsolatedBuilder(session)


class IsolatedBuilder(PromptBuilder):
    """Builder of prompts of isolated units; a latent retrieval chooses among them by their keys."""

    harvests = False

    def __init__(self, session: SessionResources) -> None:
        self._engine, self._lease, self._namespace = session.engine, session.lease, session.namespace
        self._lossless = session.method.storage.capabilities.exact
        retrieval = session.method.retrieval
        self._choice = UnitChoice(session.engine, retrieval) if retrieval.capabilities.latent else None
        self._invalidation = Invalidation(session.store)
        self.reset()

    def reset(self) -> None:
        self._names: dict[tuple[tuple[tuple[int, ...], ...], tuple[int, ...], str], str] = {}
        self._invalidation.reset()

    def build(self, units: Sequence[Unit], query: Sequence[int], context: Context, timer: StepTimer) -> PreparedPrompt:
        names = [self._name(unit, context) for unit in units]
        blocks = {name: self._lease.get(name) for name in dict.fromkeys(names) if name}
        missing = {name: unit for name, unit in zip(names, units, strict=True) if name and blocks[name] is None}
        fuses = self._choice is None and _tokens(missing.values()) <= MAX_FUSED_TOKENS
        prefixes = self._fused_prefix(missing, context) if fuses else {}
        chained = {name: unit for name, unit in missing.items() if unit.preceding and name not in prefixes}
        first, tokens = chained if fuses else missing, 0
        if first:
            with timer.part("encode"):
                for block in self._encode(first, context, Priority.PLAN):
                    tokens += block.tokens
                    blocks[block.identity] = block
        fused = {name for name in missing if blocks[name] is None}
        tokens += _tokens(missing[name] for name in fused)
        invalidated, query_token_layers = self._invalidation.count(names, units), 0
        if self._choice is not None:
            front = (unit.token_ids for name, unit in zip(names, units, strict=True) if not name)
            computed = [*chain.from_iterable(front), *query]
            numbers, query_token_layers = self._choice.choose(names, blocks, context.block, computed, timer)
            units, names = [units[number] for number in numbers], [names[number] for number in numbers]
        row, placements = len(context.ids), []
        first_exact = self._lossless and context.unit_context_ids == context.ids  # unit 0 attends to the whole context
        for name, unit in zip(names, units, strict=True):
            block, new = blocks.get(name), name if name in fused else ""
            exact = first_exact and not placements and not unit.preceding and (block is not None or bool(new))
            hit = bool(name) and name not in missing
            placements.append(Placement(unit, row, block, hit, exact, new, prefixes.get(new)))
            row += len(unit.token_ids)
        return PreparedPrompt(
            lay_out(context.ids, placements, query, True, self._engine.device),
            context.block,
            context.unit_context,
            encoded=tokens,
            query_token_layers=query_token_layers,
            invalidated=invalidated,
        )

    def prepare(self, units: Sequence[Unit], context: Context, tokens: int) -> tuple[int, int]:
        chains = (self._chain(unit, context) for unit in units if self._is_missing(self._name(unit, context)))
        missing = {name: link for links in chains for name, link in links.items() if self._is_missing(name)}
        batch: dict[str, Unit] = {}
        for name, unit in missing.items():
            if batch and _tokens(batch.values()) + len(unit.token_ids) > tokens:
                break
            batch[name] = unit
        encoded = sum(block.tokens for block in self._encode(batch, context, Priority.BACKGROUND))
        return encoded, _tokens(missing.values()) - _tokens(batch.values())

    def store_rows(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Keep the units for the next prompt's count of invalidated tokens; blocks were stored when encoded."""
        self._invalidation.commit()

    def _encode(self, units: Mapping[str, Unit], context: Context, priority: Priority) -> list[KVBlock]:
        """Encode and store units: log lines with the missing lines before them, other units in one packed pass."""
        alone = {name: unit for name, unit in units.items() if not unit.preceding}
        requests = [(context.unit_context, unit.token_ids) for unit in alone.values()]
        blocks = self._store(self._engine.encode(requests, list(alone), priority)) if requests else []
        chained = [(name, unit) for name, unit in units.items() if unit.preceding]
        for name, unit in sorted(chained, key=lambda item: len(item[1].preceding), reverse=True):
            if name not in {block.identity for block in blocks}:  # a longer chain may have encoded it already
                blocks += self._store(self._encode_chain(unit, context, priority))
        return blocks

    def _fused_prefix(self, missing: Mapping[str, Unit], context: Context) -> dict[str, KVBlock | None]:
        """Map the only missing log line to the joined blocks before it; {} if more lines or such blocks are missing."""
        chained = [(name, unit) for name, unit in missing.items() if unit.preceding]
        if len(chained) != 1:
            return {}
        name, unit = chained[0]
        blocks = [self._lease.get(before) for before in [*self._chain(unit, context)][:-1]]
        stored = [block for block in blocks if block is not None]
        return {name: join_blocks(stored)} if len(stored) == len(blocks) else {}

    def _chain(self, unit: Unit, context: Context) -> dict[str, Unit]:
        """Return the lines that ``unit`` is encoded after, in order, and ``unit`` itself, all as units by name."""
        ids = [*unit.preceding, unit.token_ids]
        links = [replace(unit, token_ids=ids[i], preceding=unit.preceding[:i]) for i in range(len(ids))]
        return {self._name(link, context): link for link in links}

    def _encode_chain(self, unit: Unit, context: Context, priority: Priority) -> list[KVBlock]:
        """Encode the unit, together with the lines before it, from the first missing line on."""
        ids, names = [*unit.preceding, unit.token_ids], [*self._chain(unit, context)]
        stored = list(takewhile(bool, map(self._lease.get, names[:-1])))
        new, names = ids[len(stored) :], names[len(stored) :]
        prefix = join_blocks([block for block in (context.unit_context, *stored) if block])
        (block,) = self._engine.encode([(prefix, [*chain.from_iterable(new)])], priority=priority)
        if len(new) == 1:  # a copy would not be in page-locked memory
            return [replace(block, identity=names[0])]
        cuts = pairwise(accumulate(map(len, new), initial=0))
        return [
            KVBlock(name, block.k[:, :, i:j].clone(), block.v[:, :, i:j].clone())
            for name, (i, j) in zip(names, cuts, strict=True)
        ]

    def _is_missing(self, name: str) -> bool:
        return bool(name) and not self._lease.contains(name)

    def _store(self, blocks: list[KVBlock]) -> list[KVBlock]:
        for block in blocks:
            self._lease.put(block)
        return blocks

    def _name(self, unit: Unit, context: Context) -> str:
        """Return the identity of a unit's block; "" if it is never stored."""
        if not unit.reusable or not unit.token_ids:
            return ""
        namespace = unit.namespace or self._namespace
        key = unit.preceding, unit.token_ids, namespace
        name = self._names.get(key)
        if name is None:
            if len(self._names) > MAX_CACHED_NAMES:
                self._names.clear()
            prefix = (*context.unit_context_ids, *chain.from_iterable(unit.preceding))
            name = self._names[key] = identity(self._engine.model_key, prefix, unit.token_ids, namespace)
        return name


def join_blocks(blocks: Sequence[KVBlock]) -> KVBlock | None:
    """Join the rows of several blocks in one unnamed block, on the last block's device; None for no blocks."""
    if len(blocks) < 2:
        return blocks[0] if blocks else None
    device = blocks[-1].k.device
    return KVBlock("", *(torch.cat([getattr(block, side).to(device)[:] for block in blocks], 2) for side in "kv"))


def _tokens(units: Iterable[Unit]) -> int:
    return sum(len(unit.token_ids) for unit in units)
