"""Cache of the surveys of rooms (see `mining`) in the user's cache folder: one file per data folder.

A file has a version, the trajectories' fingerprint and a checksum; if any of them differs, the survey is made again.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from platformdirs import user_cache_path

from envs.alfred.data.mining import Fixture, ObjectPlace, RoomSurvey, Survey, mine_survey, type_of
from envs.alfred.data.trajectories import Corpus

log = logging.getLogger(__name__)

VERSION = 1  # increase when `mine_survey` gives another result for the same files
_DAMAGE = (OSError, EOFError, ValueError, KeyError, IndexError, TypeError, RecursionError, zlib.error)


def load_survey(corpus: Corpus, progress: Callable[[], None] | None = None) -> Survey:
    """Return the survey of all trajectories: from the cache if that is valid, otherwise newly made and cached."""
    path, fingerprint = cache_file(corpus), corpus.fingerprint()
    cached = _read(path, fingerprint)
    if cached is not None:
        return cached
    log.info("reading receptacles and objects from all trajectories in %s", corpus.root)
    rooms = mine_survey(corpus.demonstrations(), progress)
    _write(path, fingerprint, rooms)
    return rooms


def cache_file(corpus: Corpus) -> Path:
    """Return the path of this data folder's cached survey."""
    name = hashlib.sha256(str(corpus.root.resolve()).encode()).hexdigest()[:16]
    return user_cache_path("keep-agent") / f"alfred-{name}.json.gz"


def _read(path: Path, fingerprint: str) -> Survey | None:
    if not path.exists():
        return None
    try:
        header, _, body = gzip.decompress(path.read_bytes()).partition(b"\n")
        if json.loads(header) != _header(fingerprint, body):
            log.info("%s is out of date or damaged; the trajectories are read again", path)
            return None
        content = json.loads(body)
        return {plan: _decode_room(room, content["trials"]) for plan, room in content["rooms"].items()}
    except _DAMAGE as error:
        log.info("%s is damaged (%s); the trajectories are read again", path, error)
        return None


def _write(path: Path, fingerprint: str, rooms: Survey) -> None:
    """Replace the cache file atomically. If it cannot be written, the next run makes the survey again."""
    body = json.dumps(_encode(rooms), separators=(",", ":")).encode()
    content = gzip.compress(json.dumps(_header(fingerprint, body)).encode() + b"\n" + body, 6, mtime=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=path.parent) as folder:
            file = Path(folder) / path.name
            file.write_bytes(content)
            file.replace(path)
    except OSError as error:
        log.warning("%s cannot be written (%s); the trajectories will be read again next time", path, error)


def _header(fingerprint: str, body: bytes) -> dict[str, Any]:
    return {"version": VERSION, "fingerprint": fingerprint, "sha256": hashlib.sha256(body).hexdigest()}


def _encode(rooms: Survey) -> dict[str, Any]:
    fixture_trials = {trial for room in rooms.values() for fixture in room.fixtures for trial in fixture.trials}
    trials = sorted(fixture_trials | {place.trial for room in rooms.values() for place in room.places})
    numbers = {trial: number for number, trial in enumerate(trials)}
    return {"trials": trials, "rooms": {plan: _encode_room(room, numbers) for plan, room in rooms.items()}}


def _encode_room(room: RoomSurvey, numbers: dict[str, int]) -> dict[str, Any]:
    indices = {"": -1} | {fixture.id: number for number, fixture in enumerate(room.fixtures)}
    fixtures = [(item.id, item.position, sorted(numbers[trial] for trial in item.trials)) for item in room.fixtures]
    places = [(numbers[item.trial], item.type, item.position, indices[item.fixture]) for item in room.places]
    return {"fixtures": fixtures, "labels": places}


def _decode_room(room: dict[str, Any], trials: list[str]) -> RoomSurvey:
    fixtures = tuple(
        Fixture(name, type_of(name), tuple(position), frozenset(trials[number] for number in numbers))
        for name, position, numbers in room["fixtures"]
    )
    ids = [*(fixture.id for fixture in fixtures), ""]  # index -1 is the last entry: no receptacle
    places = (ObjectPlace(trials[trial], kind, tuple(xyz), ids[number]) for trial, kind, xyz, number in room["labels"])
    return RoomSurvey(fixtures, tuple(places))
