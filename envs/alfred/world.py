"""Symbolic state of one ALFRED scene, and the primitive actions that change it: goto, open, close, pick, put, ...

Effects follow ALFRED's env/thor_env.py (commit f91f4c0): switching a microwave on heats its contents, closing a fridge
cools its contents, and turning a faucet on cleans the contents of its nearest basin if that is a ``SinkBasin``. Other
rules are AI2-THOR's: a microwave starts only while closed and opens only while off, a laptop closes when picked up, a
stove burner holds one thing. Nested things are heated, cooled and cleaned too. Every cut gives ``SLICES`` pieces.

A primitive fails if the held thing, a closed door or the nesting of containers prevents it. Primitives do not check
distances: the skills do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from envs.alfred import objects
from envs.alfred.objects import name_of
from envs.alfred.scene import Position
from envs.alfred.state import Agent, State, Thing
from envs.outcome import SUCCESS, Outcome, failed


class World(State):
    """Scene in which an agent can act. Every primitive returns an Outcome; an unknown id raises SkillError."""

    __slots__ = ()

    def goto(self, thing_id: str) -> Outcome:
        """Go to the outermost receptacle around a thing, open or closed, or to the thing itself if it is in none."""
        place = self.place_of(thing_id)
        if place == self.holding:
            return _in_hand(thing_id, place)
        self.agent = Agent(*self.geometry.standing_point(self.things[place].position), place)
        return SUCCESS

    def open(self, thing_id: str) -> Outcome:
        thing = self[thing_id]
        checks = {
            "cannot be opened": not thing.openable,
            "is already open": thing.is_open,
            "is on, turn it off first": thing.is_on,
        }
        if refusal := _refusal(thing_id, checks) or self._out_of_hand(thing_id):
            return refusal
        self._change(thing_id, is_open=True)
        return SUCCESS

    def close(self, thing_id: str) -> Outcome:
        thing = self[thing_id]
        checks = {"cannot be closed": not thing.openable, "is already closed": not thing.is_open}
        if refusal := _refusal(thing_id, checks) or self._out_of_hand(thing_id):
            return refusal
        self._change(thing_id, is_open=False)
        if thing.type == "Fridge":
            self.cooled.update(inner.id for inner in self.all_contents(thing_id))
        return SUCCESS

    def pick(self, thing_id: str) -> Outcome:
        thing = self[thing_id]
        if not thing.pickupable:
            return failed(f"{name_of(thing_id)} cannot be picked up")
        if self.holding is not None:
            return failed(f"you are already holding {name_of(self.holding)}")
        if refusal := self._out_of_hand(thing_id):
            return refusal
        self._replace_in_parent(thing)
        self._change(thing_id, parent=None, is_open=thing.is_open and thing.type != "Laptop")
        self.holding = thing_id
        if self.agent.at == thing_id:
            self.agent = replace(self.agent, at=None)
        return SUCCESS

    def put(self, thing_id: str, receptacle_id: str) -> Outcome:
        """Put the held thing into or onto a receptacle. As in ALFRED, types are not checked against `ACCEPTED`."""
        receptacle = self[receptacle_id]
        if self.holding != thing_id:
            return failed(f"you are not holding {name_of(thing_id)}")
        if refusal := self.no_room(thing_id, receptacle_id):
            return refusal
        self.holding = None
        self._change(thing_id, parent=receptacle_id)
        self._change(receptacle_id, contents=(*receptacle.contents, thing_id))
        self._move(thing_id, receptacle.position)
        return SUCCESS

    def no_room(self, thing_id: str, receptacle_id: str) -> Outcome | None:
        """Return the failure of putting a thing in or on a receptacle, or None if it fits."""
        thing, receptacle = self[thing_id], self[receptacle_id]
        if not receptacle.receptacle:
            return failed(f"{name_of(receptacle.id)} is not a receptacle")
        if receptacle.movable and thing.movable:
            return failed(f"{name_of(thing.id)} does not go in {name_of(receptacle.id)}: no container goes in another")
        if receptacle.closed:
            return failed(f"{name_of(receptacle.id)} is closed")
        if receptacle.type == "StoveBurner" and receptacle.contents:
            return failed(f"{name_of(receptacle.id)} is occupied by {name_of(receptacle.contents[0])}")
        return self._out_of_hand(receptacle.id)

    def drop(self) -> Outcome:
        """Drop the thing in the hand to the floor."""
        if self.holding is None:
            return failed("you are not holding anything")
        thing_id, self.holding = self.holding, None
        self._move(thing_id, (self.agent.x, 0.0, self.agent.z))
        return SUCCESS

    def slice(self, thing_id: str) -> Outcome:
        """Cut a thing with the held knife: slices take its place."""
        thing = self[thing_id]
        if thing.type not in objects.SLICEABLE:
            return failed(f"{name_of(thing_id)} cannot be sliced")
        if self.holding is None or self.things[self.holding].type not in objects.KNIVES:
            return failed("you need a knife in your hand to slice")
        if refusal := self._out_of_hand(thing_id):
            return refusal
        kind = f"{thing.type}Sliced"
        numbers = range(1, objects.SLICES + 1)
        pieces = [f"{objects.id_type(kind)}_{len(self.of_type(kind)) + number}" for number in numbers]
        for piece, number in zip(pieces, numbers, strict=True):
            source = f"{thing.source}|{kind}_{number}" if thing.source else ""
            self.things[piece] = Thing(piece, kind, thing.position, thing.parent, source=source)
        del self.things[thing_id]
        self._types[thing.type] = tuple(sibling for sibling in self.of_type(thing.type) if sibling != thing_id)
        self._types[kind] = (*self.of_type(kind), *pieces)
        self._replace_in_parent(thing, *pieces)
        if self.agent.at == thing.id:
            self.agent = replace(self.agent, at=pieces[0])
        return SUCCESS

    def turn_on(self, thing_id: str) -> Outcome:
        thing = self[thing_id]
        checks = {
            "cannot be turned on": not thing.toggleable,
            "is already on": thing.is_on,
            "is open, close it first": thing.type == "Microwave" and thing.is_open,
        }
        if refusal := _refusal(thing_id, checks):
            return refusal
        self._change(thing_id, is_on=True)
        if thing.type == "Microwave":
            self.heated.update(inner.id for inner in self.all_contents(thing_id))
        basin = self.geometry.basin_of.get(thing_id)
        if basin is not None and self.things[basin].type == "SinkBasin":
            self.cleaned.update(inner.id for inner in self.all_contents(basin))
        return SUCCESS

    def turn_off(self, thing_id: str) -> Outcome:
        thing = self[thing_id]
        checks = {"cannot be turned off": not thing.toggleable, "is already off": not thing.is_on}
        if refusal := _refusal(thing_id, checks):
            return refusal
        self._change(thing_id, is_on=False)
        return SUCCESS

    # state changes

    def _change(self, thing_id: str, **fields: object) -> None:
        self.things[thing_id] = replace(self.things[thing_id], **fields)

    def _move(self, thing_id: str, position: Position) -> None:
        """Set the position of a thing and of all its contents."""
        for part in (self.things[thing_id], *self.all_contents(thing_id)):
            self._change(part.id, position=position)

    def _replace_in_parent(self, thing: Thing, *pieces: str) -> None:
        """Replace a thing in its receptacle's contents by ``pieces``; without pieces, remove it."""
        if thing.parent is not None:
            rest = (sibling for sibling in self.things[thing.parent].contents if sibling != thing.id)
            self._change(thing.parent, contents=(*rest, *pieces))

    def _out_of_hand(self, thing_id: str) -> Outcome | None:
        """Return the failure for a thing in the hand, in a held container or behind a closed door, else None."""
        place = self.place_of(thing_id)
        if self.holding is not None and place == self.holding:
            return _in_hand(thing_id, place)
        hiding = self.hidden_in(thing_id)
        return failed(f"{name_of(thing_id)} is in {name_of(hiding)}, which is closed") if hiding else None


def _refusal(thing_id: str, checks: Mapping[str, bool]) -> Outcome | None:
    """Return the failure with the first text whose condition holds, or None if none holds."""
    return next((failed(f"{name_of(thing_id)} {text}") for text, holds in checks.items() if holds), None)


def _in_hand(thing_id: str, holder: str) -> Outcome:
    if thing_id == holder:
        return failed(f"you are holding {name_of(thing_id)}")
    return failed(f"{name_of(thing_id)} is in {name_of(holder)}, which you are holding")
