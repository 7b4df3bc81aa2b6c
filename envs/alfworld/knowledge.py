"""Knowledge of the agent in ALFWorld: facts from the state that the text describes."""

from __future__ import annotations

from collections.abc import Iterator

from envs.alfworld.translation import FAUCET, LIGHTS, faucets
from envs.alfworld.world import GameWorld, sort_key, type_of
from envs.fact import Fact


class Knowledge:
    """Facts of one game; call ``update()`` after every step."""

    def __init__(self, world: GameWorld) -> None:
        self.world = world
        self.facts: dict[str, Fact] = {}  # last reported facts, by id

    def __eq__(self, value: object) -> bool:
        if not isinstance(value, Knowledge):
            return NotImplemented
        return self.facts == value.facts and self.world == value.world

    def update(self) -> list[Fact]:
        """Return every fact that is new or changed since the last call; the fact about the agent comes last."""
        facts = [fact for fact in self._all_facts() if self.facts.get(fact.id) != fact]
        self.facts.update((fact.id, fact) for fact in facts)
        return facts

    def _all_facts(self) -> Iterator[Fact]:
        world, state = self.world, self.world.state
        yield from map(self._fixture, sorted([*state.receptacles, *faucets(world)], key=sort_key))
        for place in state.receptacles:
            yield from (self._object(thing, place) for thing in state.inside(place))
        if state.holding is not None:
            yield self._object(state.holding, "agent")
        sees = () if world.lamp else tuple(thing for thing in state.in_view() if type_of(thing) not in LIGHTS)
        yield Fact("agent", "agent", "agent", place=world.lamp or state.at, holds=state.holding, sees=sees)

    def _fixture(self, thing: str) -> Fact:
        """Return the fact of a receptacle or of a faucet."""
        state, runs = self.world.state, thing in self.world.active
        if type_of(thing) == FAUCET:
            return Fact(thing, "receptacle", FAUCET, states=("on" if runs else "off",))
        words = {state.doors.get(thing, ""), "on" if runs else "", "" if thing in state.inspected else "unseen"} - {""}
        return Fact(thing, "receptacle", type_of(thing), states=tuple(sorted(words)))

    def _object(self, thing: str, place: str) -> Fact:
        marks = self.world.state.marks.get(thing, set())
        if type_of(thing) in LIGHTS:  # a lamp that was never used is off, as ALFWorld's `examine` also says
            return Fact(thing, "receptacle", type_of(thing), place, states=("on" if "on" in marks else "off",))
        return Fact(thing, "object", type_of(thing), place, states=tuple(sorted(marks)))
