"""One ALFRED scene in AI2-THOR: every primitive is done there, and what the simulator then says is the state.

What a primitive may do is decided by the symbolic world in the same state: where that refuses, nothing is sent, and the
sentence is its own. The simulator can refuse besides (something is in the way). Hot, cold and clean are no states of
the simulator but follow from what was done, as in ALFRED's own code.

A simulator that is lost in an episode is started anew once: the scene is set up again and everything that worked so
far is done again. If the room is then as it was, the episode goes on, marked; if not, it has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from envs.alfred.objects import SLICED, say
from envs.alfred.scene import Item, Scene
from envs.alfred.state import Agent
from envs.alfred.thing import Thing, by_type
from envs.alfred.thor.client import Reply, Thor
from envs.alfred.thor.errors import LOST, ThorError, ThorLost
from envs.alfred.thor.poses import Pose, Poses
from envs.alfred.thor.reading import Names, held, kind_of, position_of, read_things, touches
from envs.alfred.thor.restore import Restored, restore
from envs.alfred.world import World
from envs.outcome import DONE, Outcome, failed
from keep_agent.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)

RESTARTS = 1  # in an episode
Attempt = Callable[[], str | None]  # returns what the simulator objects, if it does


class _Act(NamedTuple):
    """Something that was done, on one of our things or on none."""

    action: str
    thing: str | None
    arguments: Mapping[str, Any]


class ThorWorld(World):
    """A scene in the simulator. Copies are symbolic: whoever tries things out on one disturbs nothing."""

    __slots__ = ("_done", "_entries", "_names", "_poses", "_reply", "_thor", "described", "restarts", "restored")

    def __init__(self, thor: Thor, described: Scene) -> None:
        """``described`` is the scene as ALFRED's data or the generator has it. Raises `ThorError`."""
        self._thor, self.described = thor, described
        self._done: list[_Act] = []
        self.restored: Restored | None = None
        self.restarts = 0
        try:
            self._enter()
        except LOST as fault:
            self._note_restart(fault)
            thor.restart()
            self._enter()
        super().__init__(self._scene())
        self._look()

    def copy(self) -> World:  # type: ignore[override]
        """Return a symbolic world in the same state."""
        return self._copy_into(object.__new__(World))

    def __reduce__(self) -> NoReturn:
        raise ConfigError("a scene in AI2-THOR stays in its process; play one environment per simulator, no vectors")

    @property
    def frame(self) -> np.ndarray | None:
        """What the agent saw last, (height, width, 3) uint8; None without images."""
        return self._reply.frame

    @property
    def points(self) -> list[tuple[float, float]]:
        """Standing points (x, z)."""
        return [(x, z) for x, _, z in self._poses.points]

    def lies_in(self, thing: Thing, places: Container[str], nested: bool = False) -> bool:
        """In any receptacle that the simulator names for it: of two tables it touches, or, ``nested``, of a plate and
        the table below.
        """
        if thing.parent in places:
            return True
        direct = thing.parent is None or not self.things[thing.parent].movable
        return (nested or direct) and touches(self._entries[thing.id], places, self._names)

    def sees(self, thing_id: str) -> bool:
        """Return whether it is in the hand or in the picture."""
        return thing_id == self.holding or bool(self._entries[thing_id]["visible"])

    def ask(self, action: str, **arguments: Any) -> Reply:
        """Something that changes nothing. Raises `ThorError`."""
        try:
            return self._thor.step(action, **arguments)
        except LOST as fault:
            self._recover(fault)
            return self._thor.step(action, **arguments)

    # primitives

    def goto(self, thing_id: str) -> Outcome:
        """Stand where the thing can be used, or the closed thing it is in."""
        return self._carry_out(World.goto, (thing_id,), lambda: self._approach(self.hidden_in(thing_id) or thing_id))

    def open(self, thing_id: str) -> Outcome:
        return self._carry_out(World.open, (thing_id,), lambda: self._use("OpenObject", thing_id))

    def close(self, thing_id: str) -> Outcome:
        if self[thing_id].openable and not self._entries[thing_id]["openable"]:
            return failed(f"{say(thing_id)} cannot be closed")
        return self._carry_out(World.close, (thing_id,), lambda: self._use("CloseObject", thing_id))

    def pick(self, thing_id: str) -> Outcome:
        return self._carry_out(World.pick, (thing_id,), lambda: self._use("PickupObject", thing_id))

    def put(self, thing_id: str, receptacle_id: str) -> Outcome:
        """As ALFRED does: wherever there is room, whatever usually belongs there."""

        def do() -> str | None:
            return self._use("PutObject", receptacle_id, forceAction=True, placeStationary=True)

        return self._carry_out(World.put, (thing_id, receptacle_id), do)

    def drop(self) -> Outcome:
        return self._carry_out(World.drop, (), self._let_go)

    def slice(self, thing_id: str) -> Outcome:
        return self._carry_out(World.slice, (thing_id,), lambda: self._use("SliceObject", thing_id))

    def turn_on(self, thing_id: str) -> Outcome:
        return self._carry_out(World.turn_on, (thing_id,), lambda: self._use("ToggleObjectOn", thing_id))

    def turn_off(self, thing_id: str) -> Outcome:
        return self._carry_out(World.turn_off, (thing_id,), lambda: self._use("ToggleObjectOff", thing_id))

    def _carry_out(self, primitive: Callable[..., Outcome], given: tuple[str, ...], do: Attempt) -> Outcome:
        """Do what the symbolic world allows."""
        expected = self.copy()
        outcome = primitive(expected, *given)
        if not outcome.ok:
            return outcome
        objection = do()
        self._look()
        if objection is not None:
            return failed(objection)
        self.heated, self.cooled, self.cleaned = expected.heated, expected.cooled, expected.cleaned
        if expected.agent.at is None or expected.agent.at in self.things:
            self.agent = replace(self.agent, at=expected.agent.at)
        return DONE

    # how things are done there; each returns what the simulator objects

    def _approach(self, thing_id: str) -> str | None:
        """Stand at the best pose from which the thing can be seen, else at the best one there is."""
        arrived = None
        for pose in self._towards(thing_id):
            if self._teleport(pose):
                arrived = arrived or pose
                if self._in_view(thing_id):
                    return None
        if arrived is None:
            return self._objection("there is no way to get there")
        return None if self._teleport(arrived) else self._objection()

    def _use(self, action: str, thing_id: str, **arguments: Any) -> str | None:
        """Act from here if the thing is in view, then from poses farther and farther away."""
        if self._in_view(thing_id) and self._do(action, thing_id, **arguments).ok:
            return None
        for pose in self._towards(thing_id):
            if self._teleport(pose) and self._do(action, thing_id, **arguments).ok:
                return None
        return self._objection("nobody can stand before it")

    def _let_go(self) -> str | None:
        if self._do("DropHandObject").ok:
            return None
        return None if self._do("DropHandObject", forceAction=True).ok else self._objection()

    def _towards(self, thing_id: str) -> list[Pose]:
        found = self._poses.towards(self._names.theirs(thing_id), self.things[thing_id].position)
        return found[: self._thor.options.tries]

    def _teleport(self, pose: Pose) -> bool:
        """What is carried may be in the way; it is let through walls rather than left behind."""
        arguments = pose.arguments()
        if self._do("Teleport", **arguments).ok:
            return True
        return self.holding is not None and self._do("Teleport", **arguments, forceAction=True).ok

    def _in_view(self, thing_id: str) -> bool:
        theirs = self._names.theirs(thing_id)
        return any(one["objectId"] == theirs and one["visible"] for one in self._reply.objects)

    def _objection(self, otherwise: str = "it refuses") -> str:
        said = "" if self._reply.ok else _plain(self._reply.message)
        return f"the simulator cannot do it: {said or otherwise}"

    # talking

    def _do(self, action: str, thing: str | None = None, **arguments: Any) -> Reply:
        """Something that changes the room. Raises `ThorError`."""
        act = _Act(action, thing, arguments)
        try:
            self._reply = self._send(act)
        except LOST as fault:
            self._recover(fault)
            self._reply = self._send(act)
        if self._reply.ok:
            self._done.append(act)
        return self._reply

    def _send(self, act: _Act) -> Reply:
        target = {} if act.thing is None else {"objectId": self._names.theirs(act.thing)}
        return self._thor.step(act.action, **target, **act.arguments)

    def _enter(self) -> None:
        """Return the scene as its description says, and a name for everything in it."""
        described = self.described
        if described.start is None:
            from envs.alfred.thor_stub.house import to_house  # here: only the stand-in has such houses

            self._thor.reset(to_house(described))
        else:
            self.restored = restore(self._thor, described.start, self._thor.reset(described.id))
        self._poses = Poses(self._thor.options, self.ask, self._thor.insist("GetReachablePositions").value)
        self._reply = self._thor.insist("Pass")
        self._names = Names()
        self._names.begin(self._reply.objects, described.items)

    def _scene(self) -> Scene:
        """What is there now, in the order of the description, as the start of a symbolic world."""
        entries = self._names.entries(self._reply.objects)
        order = {item.id: number for number, item in enumerate(self.described.items)}
        ids = sorted(entries, key=lambda one: (order.get(one, len(order)), one))
        items = tuple(Item(one, kind_of(entries[one]), position_of(entries[one])) for one in ids)
        place = self._reply.metadata["agent"]["position"]
        return Scene(self.described.id, self.described.room, items, (place["x"], place["z"]), tuple(self.points))

    def _look(self) -> None:
        """Take the state that the last reply shows."""
        self._entries = self._names.entries(self._reply.objects)
        things = read_things(self._entries, self._names, self.things)
        if things.keys() != self.things.keys():
            self._types = by_type(things)
        self.things = things
        self.holding = held(self._reply.metadata, self._names)
        place = self._reply.metadata["agent"]["position"]
        at = self.agent.at if self.agent.at in things and self.agent.at != self.holding else None
        self.agent = Agent(place["x"], place["z"], at)

    # a simulator that is lost

    def _recover(self, fault: ThorError) -> None:
        """Return the same room in a new process. Raises `ThorLost` if it is not the same, ``fault`` after the last restart."""
        if self.restarts >= RESTARTS:
            raise fault
        self._note_restart(fault)
        before = self._shape()
        self._thor.restart()
        self._enter()
        self._look()
        for act in self._done:
            self._reply = self._send(act)
            if not self._reply.ok:
                self._thor.close()
                raise ThorLost(f"{act.action} worked before the restart and now does not: {self._objection()}")
            self._look()
        changed = sorted({name for name, _ in before.items() ^ self._shape().items()})
        if changed:
            self._thor.close()
            raise ThorLost(f"{len(changed)} things are not as before the restart, such as {changed[0]}") from fault

    def _note_restart(self, fault: ThorError) -> None:
        self.restarts += 1
        log.warning("the simulator is started again: %s", fault)

    def _shape(self) -> dict[str, tuple[object, ...]]:
        """What must be the same after a restart; not positions, nor which slice is where: no physics repeats that."""
        return {
            one.id: () if one.type in SLICED else (one.parent, one.is_open, one.is_on, one.id == self.holding)
            for one in self.things.values()
        }


def _plain(message: str) -> str:
    """What the build says, without the name of its exception and the trace behind it."""
    first = message.strip().partition("\n")[0].partition(". trace:")[0]
    kind, colon, rest = first.partition(": ")
    return rest if colon and kind.endswith("Exception") else first
