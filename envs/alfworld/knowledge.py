"""What the text has told, as facts."""

from __future__ import annotations

from collections.abc import Iterator

from envs.alfworld.text_state import kind, numbered
from envs.alfworld.wordings import FAUCET, LIGHTS, faucets
from envs.alfworld.world import World
from envs.fact import Fact


class Knowledge:
    """Call ``update()`` after every step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.facts: dict[str, Fact] = {}  # what was last told, by id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Knowledge):
            return NotImplemented
        return self.facts == other.facts and self.world == other.world

    __hash__ = None  # type: ignore[assignment]

    def update(self) -> list[Fact]:
        """Every fact that is new or different since the last call; the agent's own is the last."""
        facts = [fact for fact in self._now() if self.facts.get(fact.id) != fact]
        self.facts.update((fact.id, fact) for fact in facts)
        return facts

    def _now(self) -> Iterator[Fact]:
        world, told = self.world, self.world.told
        fixtures = sorted([*told.receptacles, *faucets(world)], key=numbered)
        yield from map(self._fixture, fixtures)
        for place in told.receptacles:
            yield from (self._thing(one, place) for one in told.inside(place))
        if told.holding is not None:
            yield self._thing(told.holding, "agent")
        sees = () if world.facing else tuple(one for one in told.before() if kind(one) not in LIGHTS)
        yield Fact("agent", "agent", "agent", place=world.facing or told.at, holds=told.holding, sees=sees)

    def _fixture(self, one: str) -> Fact:
        """A receptacle, or a faucet that goes with one."""
        told, runs = self.world.told, one in self.world.running
        if kind(one) == FAUCET:
            return Fact(one, "receptacle", FAUCET, states=("on" if runs else "off",))
        words = {told.doors.get(one, ""), "on" if runs else "", "" if one in told.seen else "unseen"} - {""}
        return Fact(one, "receptacle", kind(one), states=tuple(sorted(words)))

    def _thing(self, one: str, place: str) -> Fact:
        marks = self.world.told.marks.get(one, set())
        if kind(one) in LIGHTS:  # one that nobody has used is off: ALFWorld's `examine` says so too
            return Fact(one, "receptacle", kind(one), place, states=("on" if "on" in marks else "off",))
        return Fact(one, "object", kind(one), place, states=tuple(sorted(marks)))
