"""Isolated units: look-up by identity; what is missing is encoded, by the prefill that reads it if that is not much."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from memory.assembly.base import Assembled, Assembler, Context
from memory.assembly.latent import NamedChoice
from memory.assembly.layout import lay_out, place, uses
from memory.assembly.lost import Lost
from memory.block import KVBlock, identity
from memory.clock import Clock
from memory.engine.engine import Engine
from memory.engine.trace import PrefillResult
from memory.engine.worker import Priority
from memory.pool import Holder
from memory.stages import Unit
from memory.store import SegmentStore

CARRIED = 512  # tokens: more are encoded before, so that a prefill's activations stay bounded


class Blocks(Assembler):
    """Every unit has a block of its own; what the storage lacks is encoded in one packed forward.

    A few tokens are carried by the prefill itself: on a CPU, and on a GPU with a short prompt, a pass over the model's
    weights costs more than they do. The keys and values are the same.
    """

    harvests = False

    def __init__(
        self,
        engine: Engine,
        holder: Holder,
        store: SegmentStore,
        namespace: str,
        lossless: bool,
        latent: NamedChoice | None = None,
    ) -> None:
        """:param lossless: the storage gives back what was put into it
        :param latent: chooses among the units by their keys, which have to be there before; without it all of them
            enter the prompt
        """
        self._engine, self._holder, self._namespace, self._lossless = engine, holder, namespace, lossless
        self._lost, self._latent = Lost(store), latent
        self.reset()

    def reset(self) -> None:
        self._names: dict[tuple[tuple[int, ...], str], str] = {}
        self._lost.reset()

    def assemble(self, units: Sequence[Unit], query: Sequence[int], context: Context, clock: Clock) -> Assembled:
        names = [self._name(unit, context) for unit in units]
        blocks = {name: self._holder.get(name) for name in dict.fromkeys(names) if name}
        missing = {name: unit for name, unit in zip(names, units, strict=True) if name and blocks[name] is None}
        tokens = _tokens(missing.values())
        carries = self._latent is None and tokens <= CARRIED
        if missing and not carries:
            with clock.part("encode"):
                for block in self._encode(missing, context, Priority.PLAN):
                    self._holder.put(block)
                    blocks[block.identity] = block
        lost, asked = self._lost.count(names, units), 0
        if self._latent is not None:
            front = (unit.token_ids for name, unit in zip(names, units, strict=True) if not name)
            new = [*chain.from_iterable(front), *query]
            chosen, asked = self._latent.choose(names, blocks, context.block, new, clock)
            units, names = [units[number] for number in chosen], [names[number] for number in chosen]
        hits = [bool(name) and name not in missing for name in names]
        placed = place(units, len(context.ids), [blocks.get(name) for name in names], hits)
        if carries:
            named = zip(placed, names, strict=True)
            placed = [replace(p, carried=name) if name in missing else p for p, name in named]
        if placed and self._lossless and context.seen_ids == context.ids:  # the first does stand where it was encoded
            placed[0] = replace(placed[0], exact=bool(placed[0].carried) or placed[0].block is not None)
        return Assembled(
            lay_out(context.ids, placed, query, True, self._engine.decoder.device),
            uses(placed),
            context.block,
            context.seen_block,
            encoded=tokens,
            asked=asked,
            invalidated=lost,
        )

    def prepare(self, units: Sequence[Unit], context: Context, tokens: int) -> tuple[int, int]:
        names = {self._name(unit, context): unit for unit in units}
        lacking = {name: unit for name, unit in names.items() if name and not self._holder.contains(name)}
        now: dict[str, Unit] = {}
        for name, unit in lacking.items():
            if now and _tokens(now.values()) + len(unit.token_ids) > tokens:
                break
            now[name] = unit
        for block in self._encode(now, context, Priority.BACKGROUND):
            self._holder.put(block)
        encoded = _tokens(now.values())
        return encoded, _tokens(lacking.values()) - encoded

    def after(self, prompt: Assembled, result: PrefillResult) -> None:
        """Blocks were stored when they were encoded."""
        self._lost.settle()

    def _encode(self, units: Mapping[str, Unit], context: Context, priority: Priority) -> list[KVBlock]:
        """Blocks of units by their names, in one packed forward for all."""
        requests = [(context.seen_block, unit.token_ids) for unit in units.values()]
        return self._engine.encode(requests, list(units), priority) if requests else []

    def _name(self, unit: Unit, context: Context) -> str:
        """Identity of a unit; "" if it is never stored."""
        if not unit.reusable or not unit.token_ids:
            return ""
        key = unit.token_ids, unit.namespace or self._namespace
        found = self._names.get(key)
        if found is None:
            if len(self._names) > 50_000:
                self._names.clear()
            found = self._names[key] = identity(self._engine.model_key, context.seen_ids, *key)
        return found


def _tokens(units: Iterable[Unit]) -> int:
    return sum(len(unit.token_ids) for unit in units)
