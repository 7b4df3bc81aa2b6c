"""MCAP log of an episode for Foxglove: decisions, facts, memory, messages and pictures on one time line.

``python -m keep_agent.robots.mcap_log RUN --episode ID --out FILE``
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO

from keep_agent import __version__
from keep_agent.errors import ConfigError, DataError
from keep_agent.files import unpacking, writing
from keep_agent.guard import guarded
from keep_agent.robots.executor import NotInstalled
from keep_agent.robots.mcap.messages import CHANNELS, Message, entry_messages, event_messages
from keep_agent.rollout.run_folder import RESTORE, TRACE
from keep_agent.rollout.trace import Entry, read_trace
from keep_agent.viewer.runs import picture
from memory.files.atomic import replace_file

if TYPE_CHECKING:
    from mcap.writer import Writer

    from keep_agent.robots.task.events import Event

NANOSECONDS = 10**9  # in one second


class McapLog:
    """Watcher of a `RobotSession`: it writes a file, which `close` completes. Thread-safe. Raises NotInstalled."""

    def __init__(self, stream: BinaryIO) -> None:
        self._writer = _writer()(stream)
        self._writer.start(profile="", library=f"keep-agent {__version__}")
        self._channels: dict[str, int] = {}
        self._lock, self._open, self._number = Lock(), True, 0

    def __call__(self, event: Event) -> None:
        at = int(event.at * NANOSECONDS)
        self.write(at, event_messages(event, at))

    def write(self, at: int, messages: Iterable[Message]) -> None:
        """Write messages with the timestamp ``at`` in nanoseconds; after `close` they are dropped."""
        for key, message in messages:
            data = json.dumps(message, ensure_ascii=False).encode()
            with self._lock:
                if self._open:
                    self._number += 1
                    self._writer.add_message(self._channel(key), at, data, at, sequence=self._number)

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                self._writer.finish()

    def _channel(self, key: str) -> int:
        if key not in self._channels:
            schema, text = CHANNELS[key], json.dumps(CHANNELS[key]).encode()
            id = self._writer.register_schema(schema["title"], "jsonschema", text)
            self._channels[key] = self._writer.register_channel(f"/keep/{key}", "json", id)
        return self._channels[key]


def _writer() -> type[Writer]:
    try:
        from mcap.writer import Writer
    except ImportError as error:
        raise NotInstalled("an MCAP log needs mcap: pip install 'keep-agent[ros]'") from error
    return Writer


@contextmanager
def mcap_log(path: Path) -> Iterator[McapLog]:
    """Log a running session. The file is complete after the ``with`` block, also after an error.

    A killed process loses at most the last chunk of 1 MiB; `mcap recover` repairs the file. Raises ConfigError for an
    existing file.
    """
    _writer()  # here, so that NotInstalled is raised before a file is made
    if path.exists():
        raise ConfigError(f"{path} already exists: name another file, or move it away")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("xb")
    with stream, closing(McapLog(stream)) as log:
        yield log


def write_episode(entries: Iterable[Entry], path: Path, run: Path | None = None) -> int:
    """Write the entries of one episode and return their number. ``run`` is the run folder with the episode's pictures.

    A trace has no timestamps. In the log each entry lasts one second, or the decision's time to first token if longer.
    """
    at = count = 0

    def read(name: str) -> bytes | None:
        file = (run or Path()) / name
        return picture(run, name).read_bytes() if run is not None and file.is_file() else None

    with replace_file(path) as stream, closing(McapLog(stream)) as log:
        for entry in entries:
            count += 1
            with unpacking(f"entry {count} of the episode", "not an entry of a trace", RESTORE):
                log.write(at, entry_messages(entry, at, read))
                at += max(NANOSECONDS, int(entry.get("timings", {}).get("ttft", 0) * NANOSECONDS / 1e3))
    return count


def episode_of(run: Path, name: str = "0") -> list[Entry]:
    """Return the entries of an episode by its id, or by its number in the run from 0. Raises DataError."""
    file = run / TRACE
    if not file.is_file():
        raise DataError(f"{run} holds no {TRACE}: give the folder of a run")
    numbers: dict[str, int] = {}
    entries: list[Entry] = []
    for line, entry in enumerate(read_trace(file), 1):
        with unpacking(f"{file}:{line}", "not an entry of a trace", RESTORE):
            number = numbers.setdefault(entry["episode"], len(numbers))
        if name in (entry["episode"], str(number)):
            entries.append(entry)
    if not entries:
        raise DataError(f"{file} has no episode {name!r}; it has {len(numbers)}, such as {', '.join([*numbers][:3])}")
    return entries


def main() -> None:
    """Run the command. Exit code 2: bad input, one line on standard error."""
    parser = ArgumentParser(prog="python -m keep_agent.robots.mcap_log", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--episode", metavar="ID", default="0", help="id, or number in the run from 0 (default: 0)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write, such as episode.mcap")
    arguments = parser.parse_args()
    if code := guarded(lambda: _convert(arguments)):
        sys.exit(code)


def _convert(arguments: Namespace) -> None:
    entries = episode_of(arguments.run, arguments.episode)
    count = write_episode(entries, arguments.out, arguments.run)
    sys.stderr.write(f"{arguments.out}: {count} entries of {entries[0]['episode']}\n")


if __name__ == "__main__":
    main()
