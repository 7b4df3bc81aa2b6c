"""Benchmark of a server with many robots: errors, latency, throughput, memory, and losses after SIGKILL.

    python -m benchmarks.server --agents 50 --plans 20 --kill
    python -m benchmarks.server --agents 1 --plans 60 --motion 0.3

Each robot acts in its own generated house: it observes, plans, executes the skill and reports. ``--motion`` is the
duration of a skill in seconds; the robot observes the effects at the start of the skill. ``--kill`` kills the server
after half of the plans, restarts it with the same folder, and checks that all acknowledged data are still there.
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
    """``keep-agent serve`` in a separate process, which keeps its port after a restart."""

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
        """Return the resident memory of the process in MiB; 0 if it has ended."""
        assert self.process is not None
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0.0
        sizes = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")]
        return sizes[0] / 1024 if sizes else 0.0


@dataclass
class Robot:
    """Robot with one client; records the latencies of its plans and the acknowledged facts."""

    number: int
    plans: int
    motion: float
    seconds: list[float] = field(default_factory=list)
    traces: list[dict[str, Any]] = field(default_factory=list)
    known: dict[str, Fact] = field(default_factory=dict)  # facts that the server has acknowledged
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
            skill = decision.skill if decision.skill != "done" else info["skills"][0]  # done would end the episode
            obs, _, terminated, truncated, info = env.step(skill)
            self._observe(agent, info["facts"])
            time.sleep(self.motion)
            agent.report(Outcome(info["outcome_ok"] and skill == decision.skill, obs["feedback"]))
            if terminated or truncated:
                return

    def _observe(self, agent: RemoteAgent, facts: Sequence[Fact]) -> None:
        agent.observe(facts)
        self.known.update((fact.id, fact) for fact in facts)

    def losses(self, client: Client, folder: Path) -> list[str]:
        """List the acknowledged data that are missing in the server's memory."""
        file = folder / f"{self.name}.memory"
        client.agent(self.name, create=False).save(file)
        state = read_memory(file)
        texts = {segment[2] for segment in state["planner"]["memory"]["segments"]}
        edits = PlainStyle().edits(fact for fact in self.known.values() if fact.category != "agent")
        missing = [f"{self.name}: {edit.text!r}" for edit in edits if edit.text is not None and edit.text not in texts]
        short = [] if state["number"] >= len(self.seconds) else [f"{self.name}: {state['number']} decisions"]
        return missing + short


@dataclass(frozen=True)
class LoadResult:
    robots: list[Robot]
    seconds: float
    start_megabytes: float
    peak_megabytes: float
    losses: list[str]
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def load(agents: int, plans: int, motion: float, kill: bool, folder: Path, overrides: Sequence[str] = ()) -> LoadResult:
    """Start a server, run all robots, and collect the results."""
    server = Server(folder / "server", overrides)
    server.folder.mkdir(parents=True)
    server.start()
    try:
        robots = [Robot(number, plans, motion) for number in range(agents)]
        threads = [threading.Thread(target=robot.live, args=(server.url,)) for robot in robots]
        first, began = server.megabytes(), time.perf_counter()
        with _sample_memory(server) as sizes:
            for thread in threads:
                thread.start()
            down = _kill_half_way(server, robots, agents * plans) if kill else 0.0
            for thread in threads:
                thread.join()
        took = time.perf_counter() - began
        with Client(server.url) as client:
            losses = [line for robot in robots if not robot.error for line in robot.losses(client, folder)]
        return LoadResult(robots, took, first, max(sizes), losses, down)
    finally:
        server.stop()


def _kill_half_way(server: Server, robots: Sequence[Robot], total: int) -> float:
    """Kill and restart the server after half of the plans; return the seconds until it serves again."""
    while sum(len(robot.seconds) for robot in robots) < total // 2 and not all(robot.error for robot in robots):
        time.sleep(0.01)
    server.kill()
    began = time.perf_counter()
    server.start()
    return time.perf_counter() - began


@contextmanager
def _sample_memory(server: Server) -> Iterator[list[float]]:
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


def show(result: LoadResult, agents: int, plans: int) -> None:
    times = 1e3 * np.array([seconds for robot in result.robots for seconds in robot.seconds])
    traces = [trace for robot in result.robots for trace in robot.traces[1:] if trace]  # the first plan is cold
    encoded = [trace["counts"].get("encoded_token_layers", 0) / trace["counts"]["layers"] for trace in traces]
    ahead = sum(trace.get("ahead", {}).get("tokens", 0) for trace in traces)
    p50, p95 = np.percentile(times, (50, 95))
    print(
        f"{agents} agents x {plans} plans: {len(times)} plans in {result.seconds:.1f} s, "
        f"{len(times) / result.seconds:.1f} plans/s, {len(result.errors)} errors"
    )
    print(f"plan: p50 {p50:.0f} ms, p95 {p95:.0f} ms, slowest {max(times):.0f} ms")
    print(
        f"encoded during a plan: p50 {np.percentile(encoded, 50):.0f}, p95 {np.percentile(encoded, 95):.0f} tokens; "
        f"encoded between plans: {ahead} tokens in total"
    )
    print(f"memory: {result.start_megabytes:.0f} MiB at the start, {result.peak_megabytes:.0f} MiB at most")
    if result.down_seconds:
        print(f"killed and back after {result.down_seconds:.1f} s; lost acknowledged data: {len(result.losses)}")
    for line in (*result.errors, *result.losses)[:10]:
        print(line)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of keep-agent serve")
    p.add_argument("--agents", type=int, default=50)
    p.add_argument("--plans", type=int, default=20, help="plans per agent")
    p.add_argument("--motion", type=float, default=0.0, help="duration of a skill in seconds")
    p.add_argument("--kill", action="store_true", help="kill the server with SIGKILL after half of the plans")
    args = p.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        result = load(args.agents, args.plans, args.motion, args.kill, Path(folder), args.overrides)
        show(result, args.agents, args.plans)
        if result.errors or result.losses:
            print((Path(folder) / "server.log").read_text()[-2000:], file=sys.stderr)
            sys.exit(1)


if __name__ == "__main__":
    main()
