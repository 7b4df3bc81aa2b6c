"""Stand-in for AI2-THOR as a process: faults on demand, and its end."""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.envs.alfred.thor.leftovers import runs
from tests.waiting import PATIENCE, until

STUB = [sys.executable, "-m", "envs.alfred.thor_stub"]
HEADER = struct.Struct("!BI")


class PipeClient:
    """Client's end of two pipes to a stand-in process that may end."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.paths = [folder / "server.pipe", folder / "client.pipe"]
        for path in self.paths:
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        self.process = subprocess.Popen([*STUB, *flags, "-batchmode"], env=environment(folder), stderr=subprocess.PIPE)
        self.incoming = os.open(self.paths[0], os.O_RDONLY | os.O_NONBLOCK)
        self.outgoing = -1

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, or fewer if the process has ended."""
        content = b""
        while len(content) < size:
            has_ended = self.process.poll() is not None
            if select.select([self.incoming], [], [], 0.02)[0]:
                with suppress(BlockingIOError):
                    content += os.read(self.incoming, size - len(content))
            if has_ended:
                break
        return content

    def message(self) -> tuple[list[bytes], bool]:
        """Return (bodies of the records, whether the message was complete)."""
        bodies: list[bytes] = []
        while len(head := self.read(HEADER.size)) == HEADER.size:
            kind, length = HEADER.unpack(head)
            if kind == 255:
                return bodies, True
            bodies.append(self.read(length))
        return bodies, False

    def ask(self, action: str, **arguments: Any) -> tuple[list[bytes], bool]:
        if self.outgoing < 0:
            self.outgoing = os.open(self.paths[1], os.O_WRONLY)
        body = json.dumps({"action": action, "sequenceId": 5, **arguments}).encode()
        os.write(self.outgoing, HEADER.pack(2, len(body)) + body + HEADER.pack(255, 0))
        return self.message()

    def metadata(self, action: str, **arguments: Any) -> dict[str, Any]:
        (body, *_), whole = self.ask(action, **arguments)
        assert whole
        content: dict[str, Any] = msgpack.loads(body)
        return content

    def hang_up(self) -> None:
        for pipe in (self.incoming, self.outgoing):
            if pipe >= 0:
                os.close(pipe)
        self.incoming = self.outgoing = -1


def opened_by(process: int) -> set[str]:
    """Return the paths of the files that a process has open."""
    content = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # the file was closed during the loop
            content.add(str(link.readlink()))
    return content


def environment(folder: Path) -> dict[str, str]:
    pipes = {f"AI2THOR_FIFO_{name.upper()}_PIPE_PATH": str(folder / f"{name}.pipe") for name in ("server", "client")}
    return {**os.environ, **pipes, "AI2THOR_SERVER_TYPE": "FIFO"}


@contextmanager
def pipe_client(folder: Path, *flags: str) -> Iterator[PipeClient]:
    content = PipeClient(folder, *flags)
    try:
        yield content
    finally:
        content.hang_up()
        content.process.kill()
        content.process.communicate()


def test_it_ends_when_the_client_hangs_up_even_if_it_hangs(tmp_path: Path) -> None:
    with pipe_client(tmp_path) as client:
        assert client.message()[1] and client.metadata("Pass")["sequenceId"] == 5
        client.hang_up()
        assert client.process.wait(PATIENCE) == 0
    with pipe_client(tmp_path, "--fault", "hang-at-start") as client:
        until(lambda: str(client.paths[0]) in opened_by(client.process.pid))
        assert not select.select([client.incoming], [], [], 0.2)[0] and client.process.poll() is None
        client.hang_up()
        assert client.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("kind", ["FIFO", "WSGI"])
def test_it_ends_when_its_parent_is_gone_before_any_message(kind: str, tmp_path: Path) -> None:
    for name in ("server", "client"):
        os.mkfifo(tmp_path / f"{name}.pipe")
    code = (
        "import subprocess, time; from pathlib import Path; quiet = subprocess.DEVNULL\n"
        f"child = subprocess.Popen({STUB!r}, stdout=quiet, stderr=quiet); print(child.pid)\n"
        "maps = Path(f'/proc/{child.pid}/maps')\n"
        "while child.poll() is None and 'msgpack' not in maps.read_text(): time.sleep(0.05)\n"  # its imports have ended
        "time.sleep(1)"
    )
    env = {**environment(tmp_path), "AI2THOR_SERVER_TYPE": kind, "AI2THOR_HOST": "127.0.0.1", "AI2THOR_PORT": "9"}
    parent = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    until(lambda: not runs(int(parent.stdout)))


@pytest.mark.parametrize("fault", ["die-before-pipe", "die-at-start", "die-before-actions"])
def test_it_dies_at_the_start(fault: str, tmp_path: Path) -> None:
    with pipe_client(tmp_path, "--fault", fault) as client:
        assert client.message()[1] == (fault == "die-before-actions") and client.process.wait(PATIENCE) == 3


def test_it_fails_at_the_named_actions(tmp_path: Path) -> None:
    specs = ("error:2:InvalidAction", "fail:3", "sequence:4", "garbage:5", "no-action:Done", "die-half:7")
    with pipe_client(tmp_path, *(word for spec in specs for word in ("--fault", spec))) as client:
        client.message()
        answers = [client.metadata("Pass") for _ in range(4)]
        agents = [answer["agents"][0] for answer in answers]
        assert [agent["lastActionSuccess"] for agent in agents] == [True, False, False, True]
        assert (agents[1]["errorCode"], agents[1]["errorMessage"]) == ("InvalidAction", "injected")
        assert (agents[2]["errorCode"], agents[2]["errorMessage"]) == ("", "")
        assert [answer["sequenceId"] for answer in answers] == [5, 5, 5, 12]
        (body,), whole = client.ask("Pass")
        with pytest.raises(ValueError):
            msgpack.loads(body)
        assert whole and client.metadata("Done")["agents"][0]["errorMessage"] == "Invalid action: Done"
        bodies, whole = client.ask("Pass")
        assert bodies and not whole and client.process.wait(PATIENCE) == 3


def test_a_fault_once(tmp_path: Path) -> None:
    flags = ("--fault", "die:1", "--once", str(tmp_path / "mark"))
    with pipe_client(tmp_path, *flags) as client:
        client.message()
        assert not (tmp_path / "mark").exists()
        assert client.ask("Pass") == ([], False) and client.process.wait(PATIENCE) == 3
    assert (tmp_path / "mark").exists()
    with pipe_client(tmp_path, *flags) as client:
        client.message()
        assert client.metadata("Pass")["agents"][0]["lastActionSuccess"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fault", "explode"], "--help lists the faults"),
        (["--data", "/no/such/folder"], "does not exist"),
        ([], "no client"),
    ],
)
def test_a_wrong_start_is_an_error_message(flags: list[str], message: str) -> None:
    bare = {key: value for key, value in os.environ.items() if not key.startswith("AI2THOR")}
    result = subprocess.run([*STUB, *flags], env=bare, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and message in result.stderr
