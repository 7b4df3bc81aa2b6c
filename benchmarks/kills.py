"""Kill tests: child processes are killed with SIGKILL at random times; the work that they acknowledged must survive.

Children are forked from a process that has already imported all modules, so that they start fast. That process must not
have threads.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from envs.outcome import Outcome
from eval import alfred
from keep_agent.agent.agent import Agent
from keep_agent.agent.durable import DurableAgent
from keep_agent.config.planner_factory import PlannerResources
from keep_agent.rollout.run_folder import EPISODES, TRACE, find_runs

COMPACT_EVERY = 9  # acknowledged calls between two compactions; few, so that kills also hit a compaction
MAX_SECONDS = 0.3  # maximum seconds of work before a kill
START_SECONDS = 120.0  # maximum seconds until a child starts to work
TIME_FIELDS = ("seconds",)  # fields of an episode's line that differ between runs
Report = Callable[[dict[str, Any]], None]


@dataclass
class KillResult:
    """Results of one kind of kill."""

    name: str
    tries: int = 0
    losses: int = 0  # kills after which acknowledged work was missing
    raw: int = 0  # tracebacks

    def add_loss(self, problem: str) -> None:
        self.losses += 1
        sys.stderr.write(f"{self.name}, kill {self.tries + 1}: {problem}\n")


def kill_durable(make: Callable[[], PlannerResources], folder: Path, kills: int, rng: Random) -> Iterator[KillResult]:
    """Kill agents with a journal; yield after each kill."""

    def work(report: Report) -> None:
        agent = DurableAgent(Agent(make().planner("x"), "x", ahead=False, limit=10**6), folder)
        number = _facts_in(agent.dump())
        report({"start": number})
        while True:
            number += 1
            agent.observe([_fact(number)])
            report({"done": number})
            if number % 8 == 0:
                decision = agent.plan("put a mug in the fridge", ["go to fridge 1", "done"])
                agent.report(Outcome(True), decision.number)
            if number % COMPACT_EVERY == 0:
                agent.compact()

    yield from _kill_all("agent with a journal (observe, plan, report, compact)", work, kills, rng)


def kill_save(make: Callable[[], PlannerResources], path: Path, kills: int, rng: Random) -> Iterator[KillResult]:
    """Kill agents that repeatedly save their memory to a file; yield after each kill."""

    def work(report: Report) -> None:
        agent = Agent(make().planner("x"), "x", ahead=False)
        if path.exists():
            agent.load(path)
        number = _facts_in(agent.dump())
        report({"start": number})
        while True:
            number += 1
            agent.observe([_fact(number)])
            agent.save(path)
            report({"done": number})

    yield from _kill_all("Agent.save", work, kills, rng)


def kill_eval(folder: Path, kills: int, rng: Random) -> Iterator[KillResult]:
    """Kill and resume one run ``kills`` times; its results must equal those of an uninterrupted run."""
    if not kills:
        return
    result = KillResult("eval run, resumed")
    settings = ["planner=random", f"eval.episodes={12 * kills + 50}", "env.skills=grounded", "eval.progress=false"]
    killed, arguments = folder / "torn", [*settings, f"eval.out={folder / 'torn'}"]
    while result.tries < kills:
        size = _committed(killed)
        child = _ChildProcess(lambda report, arguments=arguments: _play(arguments))
        finished = child.wait_until(lambda size=size: _committed(killed) > size)
        time.sleep(0 if finished else rng.uniform(0, MAX_SECONDS))
        child.kill()
        result.tries += 1
        result.raw += child.raw
        if _committed(killed) < size:
            result.add_loss("committed lines are missing")
        arguments = [f"eval.resume={find_runs(killed)[0]}"]
        yield result
    for last in (arguments, [*settings, f"eval.out={folder / 'whole'}"]):
        _ChildProcess(lambda report, arguments=last: _play(arguments)).wait()
    if _rows(killed) != _rows(folder / "whole"):
        result.add_loss("the results differ from those of an uninterrupted run")
    yield result


class _ChildProcess:
    """Forked process that reports its progress to the parent, line by line."""

    def __init__(self, work: Callable[[Report], None]) -> None:
        self.raw = 0
        read, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(read)
            _run(work, write)
        os.close(write)
        self._stream = os.fdopen(read, "rb", buffering=0)

    def line(self) -> dict[str, Any] | None:
        """Return the next message, or None if the process has ended."""
        if not select.select([self._stream], [], [], START_SECONDS)[0]:
            self.kill()
            raise SystemExit(f"a child process sent no message within {START_SECONDS} s")
        line = self._stream.readline()
        return self._take(json.loads(line)) if line.endswith(b"\n") else None

    def kill(self) -> list[dict[str, Any]]:
        """Kill the process; return the messages that were not read before."""
        os.kill(self._pid, signal.SIGKILL)
        rest = self._stream.read().splitlines(keepends=True)
        messages = [self._take(json.loads(line)) for line in rest if line.endswith(b"\n")]
        os.waitpid(self._pid, 0)
        self._stream.close()
        return messages

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait until a condition holds or the process has ended; return whether the process has ended."""
        while not condition():
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


def _run(work: Callable[[Report], None], pipe: int) -> NoReturn:
    try:
        work(lambda message: os.write(pipe, json.dumps(message).encode() + b"\n") and None)
    except BaseException:
        os.write(pipe, json.dumps({"traceback": traceback.format_exc()}).encode() + b"\n")
    finally:
        os._exit(1)


def _kill_all(name: str, work: Callable[[Report], None], kills: int, rng: Random) -> Iterator[KillResult]:
    result, done = KillResult(name), 0
    while result.tries < kills:
        child = _ChildProcess(work)
        first = child.line() or {}
        if first.get("start", -1) < done:
            result.add_loss(f"{done} facts were acknowledged, but the next process started with {first}")
        time.sleep(rng.uniform(0, MAX_SECONDS))
        done = max([done, *(message.get("done", 0) for message in child.kill())])
        result.tries += 1
        result.raw += child.raw
        yield result


def _fact(number: int) -> dict[str, Any]:
    return {"id": f"mug_{number}", "category": "object", "type": "mug", "place": f"cabinet_{number % 5}"}


def _facts_in(state: dict[str, Any]) -> int:
    """Count the consecutive facts in a memory; return -1 if just one is missing after them."""
    text = json.dumps(state)
    count = 0
    while f'"mug_{count + 1}"' in text:
        count += 1
    return count if f'"mug_{count + 2}"' not in text else -1


def _play(arguments: list[str]) -> None:
    """Run `eval.alfred` with these arguments, without standard output."""
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
    """Return episodes and trace of the only run below a folder, without times and checksums."""
    (run,) = find_runs(folder)
    files = [[json.loads(line) for line in (run / name).read_bytes().splitlines()] for name in (EPISODES, TRACE)]
    return [[{key: row[key] for key in row if key not in (*TIME_FIELDS, "sum")} for row in rows] for rows in files]
