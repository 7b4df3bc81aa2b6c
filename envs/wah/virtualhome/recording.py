"""Recording of a simulator's requests and answers on disk, and its replay.

Each line is a JSON object {"request": .., "answer": ..} without the protocol's request ids. The last line of a
complete file is {"end": number of exchanges}. A file is compressed if its name ends in .gz. Requests without an answer
are omitted.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import zip_longest
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, NoReturn

from envs.wah.virtualhome.errors import ReplayMismatch
from envs.wah.virtualhome.transport import Fields, Request, Transport
from keep_agent.errors import CapacityError, ConfigError, DataError
from keep_agent.files import reading

_DAMAGE = (OSError, EOFError, ValueError, RecursionError, zlib.error)


class Recording:
    """Transport (sender of requests) that records the exchanges of another transport.

    The file has a temporary name until `close` renames it. Without any exchange, `close` removes the file.
    """

    def __init__(self, transport: Transport, path: str | Path) -> None:
        """Create the folder and a temporary file. Raises ConfigError if the file exists or cannot be written."""
        self.name, self._transport, self._path = transport.name, transport, Path(path)
        if self._path.exists():
            raise ConfigError(f"{path} already exists; record to another file, or move the existing one away")
        self._temporary = self._path.with_name(f".{self._path.name}.{token_hex(4)}.partial")
        self._count, self._is_open = 0, True
        self._failure: CapacityError | None = None
        self._exit_stack = ExitStack()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._exit_stack.enter_context(self._temporary.open("xb"))
        except OSError as error:
            raise ConfigError(f"{path} cannot be recorded to ({error}); name another file") from error
        self._exit_stack.callback(lambda: os.fsync(file.fileno()))
        self._exit_stack.callback(file.flush)
        self._stream: IO[bytes] = file
        if self._path.suffix == ".gz":  # no name and time in the header, so equal recordings are equal files
            self._stream = self._exit_stack.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0))

    def exchange(self, request: Request) -> Fields:
        """Send a request through the other transport. Raises CapacityError if the file cannot be written."""
        if self._failure is not None:
            raise self._failure
        fields = self._transport.exchange(request)
        self._write({"request": _without_id(request), "answer": _without_id(fields)})
        self._count += 1
        return fields

    def close(self) -> None:
        """Close the other transport, complete the file and rename it; a second call does not change the file."""
        self._transport.close()
        if self._is_open and self._count:
            self._write({"end": self._count})
            self._publish()
        elif self._is_open:
            self._discard()

    def _write(self, entry: Mapping[str, Any]) -> None:
        try:
            self._stream.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            self._fail(error)

    def _publish(self) -> None:
        try:
            self._exit_stack.close()
        except OSError as error:
            self._fail(error)
        self._is_open = False
        try:
            self._rename()
        except FileExistsError as error:
            raise ConfigError(
                f"{self._path} was recorded by another process; this recording is {self._temporary}, rename it"
            ) from error
        except OSError as error:
            raise CapacityError(f"{self._temporary} is complete, but must be renamed by hand ({error})") from error

    def _rename(self) -> None:
        """Give the file its name by a link, since a rename could overwrite another process's recording."""
        try:
            os.link(self._temporary, self._path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if self._path.exists():
                raise FileExistsError(self._path) from None
            self._temporary.replace(self._path)
        else:
            self._temporary.unlink()

    def _discard(self) -> None:
        self._is_open = False
        for close in (self._exit_stack.close, self._temporary.unlink):
            with suppress(OSError):
                close()

    def _fail(self, error: OSError) -> NoReturn:
        self._discard()
        self._failure = CapacityError(f"{self._path} cannot be written ({error}): free some room, or record elsewhere")
        raise self._failure from error


class Replay:
    """Transport that answers the same requests in the same order from a recording.

    A request that differs from the next line is rejected, and the line is kept for the next request. The recorded run
    may have sent the rejected request too: a recording omits requests without an answer.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the recording. Raises DataError for a file that cannot be read."""
        self.name = f"recording {path}"
        self._path = Path(path)
        self._number = 0  # number of lines read
        self._entry: dict[str, Any] | None = None  # content of the last line read, until it has been replayed
        with reading(self._path, "name a recording"):
            self._stream: IO[bytes] = (gzip.open if self._path.suffix == ".gz" else open)(self._path, "rb")

    def exchange(self, request: Request) -> Fields:
        """Return the recorded answer. Raises `ReplayMismatch` for a different request, DataError for a damaged line."""
        entry = self._entry = self._next_entry() if self._entry is None else self._entry
        if "request" not in entry:
            raise self._mismatch(request, "the recording is at its end")
        difference = first_difference(_without_id(entry["request"]), _without_id(request))
        if difference is not None:
            raise self._mismatch(request, f"the request differs from line {self._number}: {difference}")
        self._entry = None
        return _without_id(entry["answer"])

    def close(self) -> None:
        self._entry = {}
        self._stream.close()

    def _mismatch(self, request: Request, problem: str) -> ReplayMismatch:
        error = ReplayMismatch(problem, is_sent=False)
        error.action, error.address = str(request.get("action")), self.name
        return error

    def _next_entry(self) -> dict[str, Any]:
        self._number += 1
        try:
            entry = json.loads(self._stream.readline())
            last = not _is_exchange(entry)
            continues = last and self._stream.read(1)  # reading to the end also verifies an archive's checksum
        except _DAMAGE as error:
            raise self._damaged(f"is damaged or cut short ({error})") from error
        if last and (continues or entry != {"end": self._number - 1}):
            raise self._damaged("is neither an exchange nor the end of this recording")
        return entry

    def _damaged(self, problem: str) -> DataError:
        return DataError(f"{self._path}:{self._number} {problem}; record again")


def _is_exchange(entry: Any) -> bool:
    has_both = isinstance(entry, dict) and entry.keys() == {"request", "answer"}
    return has_both and all(isinstance(part, dict) for part in entry.values())


def _without_id(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "id"}


_EXCERPT_SIDE = 40  # characters shown on either side of the first different one
_MISSING = object()


def first_difference(recorded: Any, current: Any) -> str | None:
    """Return the path of the first difference and both values, as a text; None if the values are equal."""
    if recorded == current:
        return None
    old, new = dict(_leaves(recorded)), dict(_leaves(current))
    for place in old | new:
        before, after = old.get(place, _MISSING), new.get(place, _MISSING)
        if before != after:
            return f"{place} was {_excerpt(before, after)}, is {_excerpt(after, before)}"
    return "the same values are nested differently"


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) for every leaf of a JSON value; empty objects and lists are leaves too."""
    if value and isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}.{key}".lstrip("."))
    elif value and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{index}]")
    else:
        yield place, value


def _excerpt(value: Any, reference: Any) -> str:
    """Format a value for a message; a text is cut to the part around its first difference from ``reference``."""
    if value is _MISSING:
        return "not there"
    if not isinstance(value, str):
        return repr(value)
    pairs = enumerate(zip_longest(value, reference)) if isinstance(reference, str) else ()
    start = max(0, next((i for i, (a, b) in pairs if a != b), 0) - _EXCERPT_SIDE)
    stop = start + 2 * _EXCERPT_SIDE
    return f"{'...' if start else ''}{value[start:stop]!r}{'...' if stop < len(value) else ''}"
