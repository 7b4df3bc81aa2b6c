"""Many robots on one server: errors, p95 and throughput, memory; and what a kill -9 in the middle loses.

    python -m benchmarks.server --agents 50 --plans 20 --kill
    python -m benchmarks.server memory=keep --agents 1 --plans 60 --motion 0.3

Each robot lives in a generated house of its own and does what it is told: observe, plan, act, report. ``--motion`` is
the seconds that a skill takes; what it changes is observed when it begins. ``--kill`` ends the server without a word
when half of the plans are done, starts it again on the same folder, and looks whether everything that was acknowledged
is remembered.
"""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from envs.fact import Fact
from envs.outcome import Outcome
from envs.worlds import make_world
from keep_agent.agent.client import Client, RemoteAgent, ServerError
from keep_agent.agent.memory_file import read_memory
from planners.prompts.styles import PlainStyle


@dataclass
class Server:
    """``keep-agent serve`` in a process of its own, on one port whatever happens to it."""

    folder: Path
    overrides: Sequence[str] = ()
    port: int = field(default_factory=lambda: free_port())
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "keep_agent.cli", "serve", *self.overrides]
        command += ["--port", str(self.port), "--folder", str(self.folder)]
        with (self.folder.parent / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        ends = time.monotonic() + 120
        with Client(self.url, patience=0) as client:
            while not _is_up(client):
                if self.process.poll() is not None or time.monotonic() > ends:
                    raise SystemExit((self.folder.parent / "server.log").read_text()[-2000:])
                time.sleep(0.1)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(60)

    def megabytes(self) -> float:
        """Resident now."""
        assert self.process is not None
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0.0
        found = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(found[0].split()[1]) / 1024 if found else 0.0


@dataclass
class Robot:
    """One client: what it did, what was acknowledged, and how long it waited for its plans."""

    number: int
    plans: int
    motion: float
    seconds: list[float] = field(default_factory=list)
    traces: list[dict[str, Any]] = field(default_factory=list)
    known: dict[str, Fact] = field(default_factory=dict)  # acknowledged
    tasks: int = 0
    error: str = ""

    @property
    def name(self) -> str:
        return f"robot-{self.number}"

    def live(self, url: str) -> None:
        try:
            with Client(url, patience=180) as client:
                self._live(client.agent(self.name))
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def _live(self, agent: RemoteAgent) -> None:
        env = make_world("keep_agent:Alfred-v0", skills="grounded", observability="partial")
        obs, info = env.reset(seed=self.number)
        self._observe(agent, info["facts"])
        while len(self.seconds) < self.plans:
            began = time.perf_counter()
            decision = agent.plan(obs["instruction"], info["skills"])
            self.seconds.append(time.perf_counter() - began)
            self.traces.append(dict(decision.trace))
            skill = decision.skill if decision.skill != "done" else info["skills"][0]  # or the episode would be over
            obs, _, terminated, truncated, info = env.step(skill)
            self._observe(agent, info["facts"])
            time.sleep(self.motion)
            agent.report(Outcome(info["outcome_ok"] and skill == decision.skill, obs["feedback"]))
            if terminated or truncated:
                return

    def _observe(self, agent: RemoteAgent, facts: Sequence[Fact]) -> None:
        agent.observe(facts)
        self.known.update((fact.id, fact) for fact in facts)

    def lost(self, client: Client, folder: Path) -> list[str]:
        """What was acknowledged and is not remembered."""
        file = folder / f"{self.name}.memory"
        client.agent(self.name, create=False).save(file)
        state = read_memory(file)
        texts = {segment[2] for segment in state["planner"]["memory"]["segments"]}
        edits = PlainStyle().edits(fact for fact in self.known.values() if fact.category != "agent")
        missing = [f"{self.name}: {edit.text!r}" for edit in edits if edit.text is not None and edit.text not in texts]
        short = [] if state["number"] >= len(self.seconds) else [f"{self.name}: {state['number']} decisions"]
        return missing + short


@dataclass(frozen=True)
class Result:
    robots: list[Robot]
    seconds: float
    start_megabytes: float
    peak_megabytes: float
    lost: list[str]
    down_seconds: float

    @property
    def errors(self) -> list[str]:
        return [f"{robot.name}: {robot.error}" for robot in self.robots if robot.error]


def _is_up(client: Client) -> bool:
    try:
        client.send("GET", "/healthz")
    except ServerError:
        return False
    return True


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def load(agents: int, plans: int, motion: float, kill: bool, folder: Path, overrides: Sequence[str] = ()) -> Result:
    """Serve and be served."""
    server = Server(folder / "server", overrides)
    server.folder.mkdir(parents=True)
    server.start()
    try:
        robots = [Robot(number, plans, motion) for number in range(agents)]
        threads = [threading.Thread(target=robot.live, args=(server.url,)) for robot in robots]
        first, began = server.megabytes(), time.perf_counter()
        with _sampled(server) as sizes:
            for thread in threads:
                thread.start()
            down = _kill_half_way(server, robots, agents * plans) if kill else 0.0
            for thread in threads:
                thread.join()
        took = time.perf_counter() - began
        with Client(server.url) as client:
            lost = [line for robot in robots if not robot.error for line in robot.lost(client, folder)]
        return Result(robots, took, first, max(sizes), lost, down)
    finally:
        server.stop()


def _kill_half_way(server: Server, robots: Sequence[Robot], total: int) -> float:
    """Seconds for which nobody was served."""
    while sum(len(robot.seconds) for robot in robots) < total // 2 and not all(robot.error for robot in robots):
        time.sleep(0.01)
    server.kill()
    began = time.perf_counter()
    server.start()
    return time.perf_counter() - began


@contextmanager
def _sampled(server: Server) -> Iterator[list[float]]:
    sizes, over = [server.megabytes()], threading.Event()

    def sample() -> None:
        while not over.wait(0.1):
            sizes.append(server.megabytes())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield sizes
    finally:
        over.set()
        thread.join()


def show(result: Result, agents: int, plans: int) -> None:
    seconds = 1e3 * np.array([one for robot in result.robots for one in robot.seconds])
    traces = [trace for robot in result.robots for trace in robot.traces[1:] if trace]  # the first is cold
    encoded = [trace["counts"].get("encoded_token_layers", 0) / trace["counts"]["layers"] for trace in traces]
    ahead = sum(trace.get("ahead", {}).get("tokens", 0) for trace in traces)
    p50, p95 = np.percentile(seconds, (50, 95))
    print(
        f"{agents} agents x {plans} plans: {len(seconds)} plans in {result.seconds:.1f} s, "
        f"{len(seconds) / result.seconds:.1f} plans/s, {len(result.errors)} errors"
    )
    print(f"plan: p50 {p50:.0f} ms, p95 {p95:.0f} ms, slowest {max(seconds):.0f} ms")
    print(
        f"encoded while a plan waited: p50 {np.percentile(encoded, 50):.0f}, p95 {np.percentile(encoded, 95):.0f} "
        f"tokens a plan; ahead: {ahead} tokens in all"
    )
    print(f"memory: {result.start_megabytes:.0f} MiB at first, {result.peak_megabytes:.0f} MiB at most")
    if result.down_seconds:
        print(f"killed and back after {result.down_seconds:.1f} s; acknowledged and lost: {len(result.lost)}")
    for line in (*result.errors, *result.lost)[:10]:
        print(line)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for keep-agent serve")
    p.add_argument("--agents", type=int, default=50)
    p.add_argument("--plans", type=int, default=20, help="of each agent")
    p.add_argument("--motion", type=float, default=0.0, help="seconds that a skill takes")
    p.add_argument("--kill", action="store_true", help="end the server in the middle, without a word")
    given = p.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        place = given.agents, given.plans, given.motion, given.kill, Path(folder)
        result = load(*place, given.overrides)
        show(result, given.agents, given.plans)
        if result.errors or result.lost:
            print((Path(folder) / "server.log").read_text()[-2000:], file=sys.stderr)
            sys.exit(1)


if __name__ == "__main__":
    main()
