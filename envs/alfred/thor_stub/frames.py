"""Draws only what is wanted, and nothing twice."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from envs.alfred.thor_stub.session import Session


def state_of(session: Session) -> Hashable:
    """Two equal ones look the same and read the same. A room equals only itself."""
    stage = session.stage
    return (
        stage,
        stage.version,
        stage.body,
        session.settings,
        session.width,
        session.height,
        session.map_view,
        tuple(session.cameras),
    )


@dataclass(slots=True)
class Frames:
    """The last pictures."""

    _state: Hashable = None
    _image: bytes = b""
    _others: tuple[bytes, ...] = field(default=())

    def of(self, session: Session) -> tuple[bytes, tuple[bytes, ...]]:
        """What the agent sees, and what the further cameras see."""
        state = state_of(session)
        if state != self._state:
            from envs.alfred.thor_stub import picture  # not before a picture is wanted: it takes its time

            self._image = picture.first_person(session)
            self._others = tuple(picture.through(session, camera) for camera in session.cameras)
            self._state = state
        return self._image, self._others
