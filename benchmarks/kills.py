"""Kills: processes that are ended by SIGKILL at random moments, and what is found of what they had acknowledged.

Children are forked from a process that has imported everything, so that they begin soon. It must have no threads.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from envs.outcome import Outcome
from eval import alfred
from keep_agent.agent.agent import Agent
from keep_agent.agent.durable import DurableAgent
from keep_agent.config.planner_factory import Brain
from keep_agent.rollout.run_folder import EPISODES, TRACE, find_runs

COMPACT = 9  # acknowledged calls between two whole memories, so that kills hit the writing of one
LONGEST = 0.3  # seconds that a child works before it is killed
START = 120.0  # seconds in which it must begin to
CLOCK = ("seconds",)  # of an episode's line; no two runs have the same
Tell = Callable[[dict[str, Any]], None]


@dataclass
class Killed:
    """Results of one kind of kill. ``lost``: kills after which something acknowledged was missing."""

    what: str
    tries: int = 0
    lost: int = 0
    raw: int = 0  # tracebacks

    def lose(self, problem: str) -> None:
        self.lost += 1
        sys.stderr.write(f"{self.what}, kill {self.tries + 1}: {problem}\n")


def kill_durable(make: Callable[[], Brain], folder: Path, kills: int, rng: random.Random) -> Iterator[Killed]:
    """Kill agents that keep a journal; yields after each kill."""

    def work(tell: Tell) -> None:
        agent = DurableAgent(Agent(make().planner("x"), "x", ahead=False, limit=10**6), folder)
        number = _told(agent.dump())
        tell({"found": number})
        while True:
            number += 1
            agent.observe([_fact(number)])
            tell({"done": number})
            if number % 8 == 0:
                decision = agent.plan("put a mug in the fridge", ["go to fridge 1", "done"])
                agent.report(Outcome(True), decision.number)
            if number % COMPACT == 0:
                agent.compact()

    yield from _kill_all("agent with a journal (observe, plan, report, compact)", work, kills, rng)


def kill_save(make: Callable[[], Brain], path: Path, kills: int, rng: random.Random) -> Iterator[Killed]:
    """Kill agents that save their memory to a file again and again."""

    def work(tell: Tell) -> None:
        agent = Agent(make().planner("x"), "x", ahead=False)
        if path.exists():
            agent.load(path)
        number = _told(agent.dump())
        tell({"found": number})
        while True:
            number += 1
            agent.observe([_fact(number)])
            agent.save(path)
            tell({"done": number})

    yield from _kill_all("Agent.save", work, kills, rng)


def kill_eval(folder: Path, kills: int, rng: random.Random) -> Iterator[Killed]:
    """Kill and resume a run until it has been killed so often; it must end as one that was left alone."""
    if not kills:
        return
    found = Killed("eval run, resumed")
    settings = ["planner=random", f"eval.episodes={12 * kills + 50}", "env.skills=grounded", "eval.progress=false"]
    torn, run = folder / "torn", None
    while found.tries < kills:
        size = _committed(torn)
        child = _Child(lambda tell, again=run: _play(again or [*settings, f"eval.out={torn}"]))
        ended = child.wait_until(lambda size=size: _committed(torn) > size)
        time.sleep(0 if ended else rng.uniform(0, LONGEST))
        child.kill()
        found.tries += 1
        found.raw += child.raw
        if _committed(torn) < size:
            found.lose("committed lines are gone")
        run = [f"eval.resume={find_runs(torn)[0]}"]
        yield found
    for arguments in (run, [*settings, f"eval.out={folder / 'whole'}"]):
        _Child(lambda tell, given=arguments: _play(given)).wait()
    if _rows(torn) != _rows(folder / "whole"):
        found.lose("the run ended otherwise than one that was left alone")
    yield found


class _Child:
    """A forked process that tells its parent what it has done, line by line."""

    def __init__(self, work: Callable[[Tell], None]) -> None:
        self.raw = 0
        read, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(read)
            _run(work, write)
        os.close(write)
        self._stream = os.fdopen(read, "rb", buffering=0)

    def line(self) -> dict[str, Any] | None:
        """What it tells next; None if it has ended."""
        if not select.select([self._stream], [], [], START)[0]:
            self.kill()
            raise SystemExit(f"a process told nothing for {START} s")
        line = self._stream.readline()
        return self._take(json.loads(line)) if line.endswith(b"\n") else None

    def kill(self) -> list[dict[str, Any]]:
        """End it; what it had told by then."""
        os.kill(self._pid, signal.SIGKILL)
        rest = self._stream.read().splitlines(keepends=True)
        told = [self._take(json.loads(line)) for line in rest if line.endswith(b"\n")]
        os.waitpid(self._pid, 0)
        self._stream.close()
        return told

    def wait_until(self, happened: Callable[[], bool]) -> bool:
        """Wait for something to happen; whether the process has ended instead."""
        while not happened():
            if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
            time.sleep(0.005)
        return False

    def wait(self) -> None:
        self.wait_until(lambda: False)
        self.kill()

    def _take(self, message: dict[str, Any]) -> dict[str, Any]:
        if "traceback" in message:
            self.raw += 1
            sys.stderr.write(message["traceback"])
        return message


def _run(work: Callable[[Tell], None], pipe: int) -> NoReturn:
    try:
        work(lambda message: os.write(pipe, json.dumps(message).encode() + b"\n") and None)
    except BaseException:
        os.write(pipe, json.dumps({"traceback": traceback.format_exc()}).encode() + b"\n")
    finally:
        os._exit(1)


def _kill_all(what: str, work: Callable[[Tell], None], kills: int, rng: random.Random) -> Iterator[Killed]:
    found, done = Killed(what), 0
    while found.tries < kills:
        child = _Child(work)
        first = child.line() or {}
        if first.get("found", -1) < done:
            found.lose(f"{done} were acknowledged, {first} is there")
        time.sleep(rng.uniform(0, LONGEST))
        done = max([done, *(message.get("done", 0) for message in child.kill())])
        found.tries += 1
        found.raw += child.raw
        yield found


def _fact(number: int) -> dict[str, Any]:
    return {"id": f"mug_{number}", "category": "object", "type": "mug", "place": f"cabinet_{number % 5}"}


def _told(state: dict[str, Any]) -> int:
    """Facts that a memory holds, told in order without gaps; -1 if there are gaps."""
    text = json.dumps(state)
    count = 0
    while f'"mug_{count + 1}"' in text:
        count += 1
    return count if f'"mug_{count + 2}"' not in text else -1


def _play(arguments: list[str]) -> None:
    """`eval.alfred` with these arguments, silently."""
    with _silent():
        sys.argv = ["eval.alfred", *arguments]
        try:
            alfred.main()
        except SystemExit as error:
            if error.code:
                raise


@contextmanager
def _silent() -> Iterator[None]:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    yield


def _committed(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob(f"*/{EPISODES}"))


def _rows(folder: Path) -> list[list[dict[str, Any]]]:
    """Episodes and trace of the one run below a folder, without times and checksums."""
    (run,) = find_runs(folder)
    rows = [[json.loads(line) for line in (run / name).read_bytes().splitlines()] for name in (EPISODES, TRACE)]
    return [[{key: row[key] for key in row if key not in (*CLOCK, "sum")} for row in one] for one in rows]
