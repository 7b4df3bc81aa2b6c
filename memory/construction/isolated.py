"""Isolated units: look-up by identity; what is missing is encoded, by the prefill that reads it if that is not much."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise, takewhile

from memory.construction.base import Context, PreparedPrompt, PromptBuilder
from memory.construction.invalidation import Invalidation
from memory.construction.latent_choice import UnitChoice
from memory.construction.layout import lay_out, place, uses
from memory.engine.results import PrefillResult
from memory.engine.transformers.engine import Engine
from memory.engine.worker import Priority
from memory.kv_cache.block import KVBlock, identity, joined
from memory.kv_cache.block_lease import BlockLease
from memory.reports.timing import StepTimer
from memory.segments.store import SegmentStore
from memory.stages import Unit

CARRIED = 512  # tokens: more are encoded before, so that a prefill's activations stay bounded


class IsolatedBuilder(PromptBuilder):
    """Every unit has a block of its own; what the storage lacks is encoded in one packed forward, and one a chain of
    units that were computed behind each other.

    A few tokens are carried by the prefill itself: on a CPU, and on a GPU with a short prompt, a pass over the model's
    weights costs more than they do. The keys and values are the same.
    """

    harvests = False

    def __init__(
        self,
        engine: Engine,
        holder: BlockLease,
        store: SegmentStore,
        namespace: str,
        lossless: bool,
        latent: UnitChoice | None = None,
    ) -> None:
        """:param lossless: the storage gives back what was put into it
        :param latent: chooses among the units by their keys, which have to be there before; without it all of them
            enter the prompt
        """
        self._engine, self._holder, self._namespace, self._lossless = engine, holder, namespace, lossless
        self._lost, self._latent = Invalidation(store), latent
        self.reset()

    def reset(self) -> None:
        self._names: dict[tuple[tuple[tuple[int, ...], ...], tuple[int, ...], str], str] = {}
        self._lost.reset()

    def assemble(
        self, units: Sequence[Unit], query: Sequence[int], context: Context, clock: StepTimer
    ) -> PreparedPrompt:
        names = [self._name(unit, context) for unit in units]
        blocks = {name: self._holder.get(name) for name in dict.fromkeys(names) if name}
        missing = {name: unit for name, unit in zip(names, units, strict=True) if name and blocks[name] is None}
        carries = self._latent is None and _tokens(missing.values()) <= CARRIED
        behind = self._rides(missing, context) if carries else {}
        chained = {name: unit for name, unit in missing.items() if unit.behind and name not in behind}
        first, tokens = chained if carries else missing, 0
        if first:
            with clock.part("encode"):
                for block in self._encode(first, context, Priority.PLAN):
                    tokens += block.tokens
                    blocks[block.identity] = block
        riding = {name for name in missing if blocks[name] is None}
        tokens += _tokens(missing[name] for name in riding)
        lost, asked = self._lost.count(names, units), 0
        if self._latent is not None:
            front = (unit.token_ids for name, unit in zip(names, units, strict=True) if not name)
            new = [*chain.from_iterable(front), *query]
            chosen, asked = self._latent.choose(names, blocks, context.block, new, clock)
            units, names = [units[number] for number in chosen], [names[number] for number in chosen]
        hits = [bool(name) and name not in missing for name in names]
        placed = place(units, len(context.ids), [blocks.get(name) for name in names], hits)
        if riding:
            named = zip(placed, names, strict=True)
            placed = [replace(p, carried=n, behind=behind.get(n)) if n in riding else p for p, n in named]
        stands = self._lossless and context.seen_ids == context.ids  # so the first does, where it was encoded
        if placed and stands and not placed[0].unit.behind:
            placed[0] = replace(placed[0], exact=bool(placed[0].carried) or placed[0].block is not None)
        return PreparedPrompt(
            lay_out(context.ids, placed, query, True, self._engine.decoder.device),
            uses(placed),
            context.block,
            context.seen_block,
            encoded=tokens,
            asked=asked,
            invalidated=lost,
        )

    def prepare(self, units: Sequence[Unit], context: Context, tokens: int) -> tuple[int, int]:
        chains = (self._chain(unit, context) for unit in units if self._lacks(self._name(unit, context)))
        lacking = {name: link for links in chains for name, link in links.items() if self._lacks(name)}
        now: dict[str, Unit] = {}
        for name, unit in lacking.items():
            if now and _tokens(now.values()) + len(unit.token_ids) > tokens:
                break
            now[name] = unit
        encoded = sum(block.tokens for block in self._encode(now, context, Priority.BACKGROUND))
        return encoded, _tokens(lacking.values()) - _tokens(now.values())

    def after(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Blocks were stored when they were encoded."""
        self._lost.settle()

    def _encode(self, units: Mapping[str, Unit], context: Context, priority: Priority) -> list[KVBlock]:
        """Blocks of units, which are stored: in one packed forward those behind nothing, the others chain by chain.

        Where what a unit is computed behind is not stored it is encoded with it.
        """
        alone = {name: unit for name, unit in units.items() if not unit.behind}
        requests = [(context.seen_block, unit.token_ids) for unit in alone.values()]
        made = self._put(self._engine.encode(requests, list(alone), priority)) if requests else []
        chained = [(name, unit) for name, unit in units.items() if unit.behind]
        for name, unit in sorted(chained, key=lambda item: len(item[1].behind), reverse=True):
            if name not in {block.identity for block in made}:  # the longest chain brings those that it goes on
                made += self._put(self._encode_chain(unit, context, priority))
        return made

    def _rides(self, missing: Mapping[str, Unit], context: Context) -> dict[str, KVBlock | None]:
        """What the one unit that is missing behind others sees of them, by its name; nothing if one of them is, too."""
        chained = [(name, unit) for name, unit in missing.items() if unit.behind]
        if len(chained) != 1:
            return {}
        name, unit = chained[0]
        blocks = [self._holder.get(before) for before in [*self._chain(unit, context)][:-1]]
        found = [block for block in blocks if block is not None]
        return {name: joined(found)} if len(found) == len(blocks) else {}

    def _chain(self, unit: Unit, context: Context) -> dict[str, Unit]:
        """What it is computed behind and itself, by name, from the first on."""
        ids = [*unit.behind, unit.token_ids]
        links = [replace(unit, token_ids=ids[i], behind=unit.behind[:i]) for i in range(len(ids))]
        return {self._name(link, context): link for link in links}

    def _encode_chain(self, unit: Unit, context: Context, priority: Priority) -> list[KVBlock]:
        """The unit's block, and those that it is computed behind, from the first on that is not stored."""
        ids, names = [*unit.behind, unit.token_ids], [*self._chain(unit, context)]
        stored = list(takewhile(bool, map(self._holder.get, names[:-1])))
        new, names = ids[len(stored) :], names[len(stored) :]
        seen = joined([block for block in (context.seen_block, *stored) if block])
        (made,) = self._engine.encode([(seen, [*chain.from_iterable(new)])], priority=priority)
        if len(new) == 1:  # as it rests: in pinned memory, if any
            return [replace(made, identity=names[0])]
        cuts = pairwise(accumulate(map(len, new), initial=0))
        return [
            KVBlock(name, made.k[:, :, i:j].clone(), made.v[:, :, i:j].clone())
            for name, (i, j) in zip(names, cuts, strict=True)
        ]

    def _lacks(self, name: str) -> bool:
        return bool(name) and not self._holder.contains(name)

    def _put(self, blocks: list[KVBlock]) -> list[KVBlock]:
        for block in blocks:
            self._holder.put(block)
        return blocks

    def _name(self, unit: Unit, context: Context) -> str:
        """Identity of a unit; "" if it is never stored."""
        if not unit.reusable or not unit.token_ids:
            return ""
        namespace = unit.namespace or self._namespace
        key = unit.behind, unit.token_ids, namespace
        found = self._names.get(key)
        if found is None:
            if len(self._names) > 50_000:
                self._names.clear()
            seen = (*context.seen_ids, *chain.from_iterable(unit.behind))
            found = self._names[key] = identity(self._engine.model_key, seen, unit.token_ids, namespace)
        return found


def _tokens(units: Iterable[Unit]) -> int:
    return sum(len(unit.token_ids) for unit in units)
