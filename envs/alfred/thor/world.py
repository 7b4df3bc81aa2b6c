"""World of one ALFRED scene in AI2-THOR: the simulator executes each primitive action, and its reply gives the state.

A primitive is executed on a symbolic copy of the state first; if it fails there, the simulator does not execute it.
The simulator can fail too, for example if something is in the way. Hot, cold and clean are not read from the
simulator; they follow from the actions, as in ALFRED's own code.

A process that fails within an episode is restarted once: the scene is set up again and all successful actions are
repeated. If the room is then as before, the episode continues; otherwise it fails. ``restarts`` counts the restarts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from envs.alfred.objects import SLICED, name_of
from envs.alfred.scene import Item, Scene
from envs.alfred.state import Agent, Thing, by_type
from envs.alfred.thor.client import Reply, ThorClient
from envs.alfred.thor.errors import PROCESS_FAULTS, ThorError, ThorLost
from envs.alfred.thor.poses import Pose, PoseFinder
from envs.alfred.thor.reading import ThingIds, has_parent_in, kind_of, position_of, read_things, thing_in_hand
from envs.alfred.thor.restore import RestoreReport, restore
from envs.alfred.world import World
from envs.outcome import SUCCESS, Outcome, failed
from keep_agent.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)

RESTARTS = 1  # maximum per episode
Attempt = Callable[[], str | None]  # returns the simulator's reason of failure, or None


class _ActionRecord(NamedTuple):
    """An action that changes the room; ``thing`` is the id of the thing that it acts on, or None."""

    action: str
    thing: str | None
    arguments: Mapping[str, Any]


def _primitive(symbolic: Callable[..., Outcome], action: str) -> Callable[[ThorWorld, str], Outcome]:
    """Return the method that executes a primitive on one thing by an action of the simulator."""

    def execute(self: ThorWorld, thing_id: str) -> Outcome:
        return self._execute(symbolic, (thing_id,), partial(self._use, action, thing_id))

    return execute


class ThorWorld(World):
    """A scene in the simulator. Copies are symbolic, so actions on a copy leave the simulator unchanged."""

    __slots__ = ("_actions", "_entries", "_finder", "_ids", "_reply", "_thor", "description", "restarts", "restoration")

    def __init__(self, thor: ThorClient, description: Scene) -> None:
        """Set up the scene ``description``, which comes from ALFRED's data or the generator. Raises `ThorError`."""
        self._thor, self.description = thor, description
        self._actions: list[_ActionRecord] = []
        self.restoration: RestoreReport | None = None
        self.restarts = 0
        try:
            self._set_up()
        except PROCESS_FAULTS as fault:
            self._note_restart(fault)
            thor.restart()
            self._set_up()
        super().__init__(self._scene())
        self._read_state()

    def copy(self) -> World:  # type: ignore[override]
        """Return a symbolic world in the same state."""
        return self._copy_into(object.__new__(World))

    def __reduce__(self) -> NoReturn:
        raise ConfigError("a scene in AI2-THOR cannot be pickled; use one environment per simulator, in one process")

    @property
    def frame(self) -> np.ndarray | None:
        """Last image of the agent's camera, (height, width, 3) uint8; None if the simulator makes no images."""
        return self._reply.frame

    @property
    def points(self) -> list[tuple[float, float]]:
        """Standing points (x, z)."""
        return [(x, z) for x, _, z in self._finder.points]

    def lies_in(self, thing: Thing, places: Container[str], nested: bool = False) -> bool:
        """Return whether a thing is in or on one of ``places``; with ``nested``, a plate or bowl may be in between."""
        if thing.parent in places:
            return True
        direct = thing.parent is None or not self.things[thing.parent].movable
        return (nested or direct) and has_parent_in(self._entries[thing.id], places, self._ids)

    def sees(self, thing_id: str) -> bool:
        """Return whether a thing is in the hand, or visible according to the simulator."""
        return thing_id == self.holding or bool(self._entries[thing_id]["visible"])

    def ask(self, action: str, **arguments: Any) -> Reply:
        """Execute a query action, which changes nothing. Raises `ThorError`."""
        try:
            return self._thor.step(action, **arguments)
        except PROCESS_FAULTS as fault:
            self._recover(fault)
            return self._thor.step(action, **arguments)

    # primitives

    def goto(self, thing_id: str) -> Outcome:
        """Go to a pose from which the thing, or the closed container around it, can be used."""
        return self._execute(World.goto, (thing_id,), lambda: self._approach(self.hidden_in(thing_id) or thing_id))

    def close(self, thing_id: str) -> Outcome:
        if self[thing_id].openable and not self._entries[thing_id]["openable"]:
            return failed(f"{name_of(thing_id)} cannot be closed")
        return self._execute(World.close, (thing_id,), lambda: self._use("CloseObject", thing_id))

    def put(self, thing_id: str, receptacle_id: str) -> Outcome:
        """Put the thing wherever the receptacle has room, as ALFRED does."""
        do = partial(self._use, "PutObject", receptacle_id, forceAction=True, placeStationary=True)
        return self._execute(World.put, (thing_id, receptacle_id), do)

    def drop(self) -> Outcome:
        return self._execute(World.drop, (), self._drop)

    open = _primitive(World.open, "OpenObject")
    pick = _primitive(World.pick, "PickupObject")
    slice = _primitive(World.slice, "SliceObject")
    turn_on = _primitive(World.turn_on, "ToggleObjectOn")
    turn_off = _primitive(World.turn_off, "ToggleObjectOff")

    def _execute(self, primitive: Callable[..., Outcome], arguments: tuple[str, ...], do: Attempt) -> Outcome:
        """Execute a primitive on a symbolic copy and, if it succeeds there, in the simulator by calling ``do``."""
        expected = self.copy()
        outcome = primitive(expected, *arguments)
        if not outcome.ok:
            return outcome
        failure = do()
        self._read_state()
        if failure is not None:
            return failed(failure)
        self.heated, self.cooled, self.cleaned = expected.heated, expected.cooled, expected.cleaned
        if expected.agent.at is None or expected.agent.at in self.things:
            self.agent = replace(self.agent, at=expected.agent.at)
        return SUCCESS

    # execution in the simulator; a ``str | None`` is the reason of a failure, None means success

    def _approach(self, thing_id: str) -> str | None:
        """Stand at the best pose from which the thing is visible, else at the best reachable pose."""
        best = None
        for pose in self._usable_poses(thing_id):
            if self._teleport(pose):
                best = best or pose
                if self._in_view(thing_id):
                    return None
        if best is None:
            return self._failure("there is no way to get there")
        return None if self._teleport(best) else self._failure()

    def _use(self, action: str, thing_id: str, **arguments: Any) -> str | None:
        """Act at the current pose if the thing is in view; unless that succeeds, act at other poses, nearest first."""
        if self._in_view(thing_id) and self._do(action, thing_id, **arguments).ok:
            return None
        for pose in self._usable_poses(thing_id):
            if self._teleport(pose) and self._do(action, thing_id, **arguments).ok:
                return None
        return self._failure("no pose reaches it")

    def _drop(self) -> str | None:
        is_dropped = self._do("DropHandObject").ok or self._do("DropHandObject", forceAction=True).ok
        return None if is_dropped else self._failure()

    def _usable_poses(self, thing_id: str) -> list[Pose]:
        poses = self._finder.poses_for(self._ids.object_id(thing_id), self.things[thing_id].position)
        return poses[: self._thor.options.tries]

    def _teleport(self, pose: Pose) -> bool:
        """Teleport. If AI2-THOR refuses while the hand holds a thing, force the teleport, even through walls."""
        arguments = pose.arguments()
        if self._do("Teleport", **arguments).ok:
            return True
        return self.holding is not None and self._do("Teleport", **arguments, forceAction=True).ok

    def _in_view(self, thing_id: str) -> bool:
        object_id = self._ids.object_id(thing_id)
        return any(entry["objectId"] == object_id and entry["visible"] for entry in self._reply.objects)

    def _failure(self, default: str = "it refuses") -> str:
        reason = "" if self._reply.ok else _short_message(self._reply.message)
        return f"the simulator cannot do it: {reason or default}"

    # actions and state

    def _do(self, action: str, thing: str | None = None, **arguments: Any) -> Reply:
        """Execute an action that changes the room. Raises `ThorError`."""
        record = _ActionRecord(action, thing, arguments)
        try:
            self._reply = self._send(record)
        except PROCESS_FAULTS as fault:
            self._recover(fault)
            self._reply = self._send(record)
        if self._reply.ok:
            self._actions.append(record)
        return self._reply

    def _send(self, record: _ActionRecord) -> Reply:
        target = {} if record.thing is None else {"objectId": self._ids.object_id(record.thing)}
        return self._thor.step(record.action, **target, **record.arguments)

    def _set_up(self) -> None:
        """Set up the scene as described, and assign ids to all things."""
        description = self.description
        if description.start is None:
            from envs.alfred.thor_stub.house import to_house  # lazy: only the stand-in for AI2-THOR has such houses

            self._thor.reset(to_house(description))
        else:
            self.restoration = restore(self._thor, description.start, self._thor.reset(description.id))
        self._finder = PoseFinder(self._thor.options, self.ask, self._thor.require("GetReachablePositions").value)
        self._reply = self._thor.require("Pass")
        self._ids = ThingIds()
        self._ids.begin(self._reply.objects, description.items)

    def _scene(self) -> Scene:
        """Return the simulator's room as the scene of a symbolic world, with items in the description's order."""
        entries = self._ids.entries(self._reply.objects)
        order = {item.id: number for number, item in enumerate(self.description.items)}
        ids = sorted(entries, key=lambda name: (order.get(name, len(order)), name))
        items = tuple(Item(name, kind_of(entries[name]), position_of(entries[name])) for name in ids)
        place = self._reply.metadata["agent"]["position"]
        return Scene(self.description.id, self.description.room, items, (place["x"], place["z"]), tuple(self.points))

    def _read_state(self) -> None:
        """Read the state from the last reply."""
        self._entries = self._ids.entries(self._reply.objects)
        things = read_things(self._entries, self._ids, self.things)
        if things.keys() != self.things.keys():
            self._types = by_type(things)
        self.things = things
        self.holding = thing_in_hand(self._reply.metadata, self._ids)
        place = self._reply.metadata["agent"]["position"]
        at = self.agent.at if self.agent.at in things and self.agent.at != self.holding else None
        self.agent = Agent(place["x"], place["z"], at)

    # restarts

    def _recover(self, fault: ThorError) -> None:
        """Restore the room in a new process. Raises ``fault`` if no restart is left, `ThorLost` if the room differs."""
        if self.restarts >= RESTARTS:
            raise fault
        self._note_restart(fault)
        before = self._comparable_state()
        self._thor.restart()
        self._set_up()
        self._read_state()
        for record in self._actions:
            self._reply = self._send(record)
            if not self._reply.ok:
                self._thor.close()
                raise ThorLost(f"{record.action} worked before the restart and now does not: {self._failure()}")
            self._read_state()
        changed = sorted({name for name, _ in before.items() ^ self._comparable_state().items()})
        if changed:
            self._thor.close()
            raise ThorLost(f"{len(changed)} things are not as before the restart, such as {changed[0]}") from fault

    def _note_restart(self, fault: ThorError) -> None:
        self.restarts += 1
        log.warning("the simulator is restarted: %s", fault)

    def _comparable_state(self) -> dict[str, tuple[object, ...]]:
        """Return the state to compare after a restart. Physics varies positions and slices' states, so omit them."""
        state: dict[str, tuple[object, ...]] = dict.fromkeys(self.things, ())
        for thing in self.things.values():
            if thing.type not in SLICED:
                state[thing.id] = thing.parent, thing.is_open, thing.is_on, thing.id == self.holding
        return state


def _short_message(message: str) -> str:
    """Return AI2-THOR's message without exception name and trace."""
    first = message.strip().partition("\n")[0].partition(". trace:")[0]
    kind, colon, rest = first.partition(": ")
    return rest if colon and kind.endswith("Exception") else first
