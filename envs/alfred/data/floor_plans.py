"""Room types of ALFRED's floor plans."""

from __future__ import annotations

import re

from keep_agent.errors import DataError

ROOMS = {0: "kitchen", 2: "livingroom", 3: "bedroom", 4: "bathroom"}  # by the hundreds of the floor plan's number


def room_of(floor_plan: str) -> str:
    """Return the room type of a floor plan: "FloorPlan301" -> "bedroom". Raises DataError for other names."""
    number = re.fullmatch(r"FloorPlan(\d{1,3})", floor_plan, re.ASCII) if isinstance(floor_plan, str) else None
    room = ROOMS.get(int(number[1]) // 100) if number else None
    if room is None:
        raise DataError(
            f"unknown floor plan {floor_plan!r:.40}; ALFRED has FloorPlan1-30, 201-230, 301-330 and 401-430"
        )
    return room
